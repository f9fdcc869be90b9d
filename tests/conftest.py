"""What all tests share: the `gpu` marker, cache folders away from the user's own, Hypothesis."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Fixed examples in continuous integration; elsewhere new ones each time, a failure with its seed.
hypothesis.settings.register_profile(
    "gemmkit", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("gemmkit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is no usable GPU, with the reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str | None:
    """What the CUDA driver says, asked without any of gemmkit's own code."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return "needs an NVIDIA GPU: no CUDA driver library on this machine"
    status = driver.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"needs an NVIDIA GPU: the CUDA driver answers with error {status}"
    return None if count.value else "needs an NVIDIA GPU: the CUDA driver finds none"


@pytest.fixture(scope="session", autouse=True)
def shared_cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache folder for this test session: each kernel is compiled once in it.

    All of pytest-xdist's processes, and what they start, share it. A test that looks at the cache
    itself takes `cache_dir` instead.
    """
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    folder = session / "user-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache folder of the test's own; not yet made."""
    return tmp_path / "cache"
