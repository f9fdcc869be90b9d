"""One thread for each product of NumPy's BLAS, where many threads multiply at once.

OpenBLAS divides each product among all cores, and its threads wait for one another actively. Called
by as many threads, they keep each other from running: that took up to 30 times as long.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

# What OpenBLAS's functions are called in NumPy's wheels and in other builds.
_NAMES = (
    ("scipy_openblas_", "64_"),
    ("scipy_openblas_", ""),
    ("openblas_", "64_"),
    ("openblas_", ""),
)
_MAPS = Path("/proc/self/maps")


class _Control(NamedTuple):
    """Reads and sets the number of threads of a library."""

    get: Callable[[], int]
    set: Callable[[int], object]


class _Limits:
    """How many limits are in force, and the number of threads that each library had before."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0
        self.before: list[int] = []


_limits = _Limits()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products of this process take one thread each; several such limits may be in force at once.

    Where NumPy has another BLAS than OpenBLAS, nothing changes.
    """
    with _limits.lock:
        if not _limits.count:
            _limits.before = [each.get() for each in _controls()]
            for each in _controls():
                each.set(1)
        _limits.count += 1
    try:
        yield
    finally:
        with _limits.lock:
            _limits.count -= 1
            if not _limits.count:
                for each, threads in zip(_controls(), _limits.before, strict=True):
                    each.set(threads)


@cache
def _controls() -> tuple[_Control, ...]:
    """Those of each OpenBLAS that this process has loaded, NumPy's among them."""
    np.zeros((1, 1)) @ np.zeros((1, 1))  # It may be loaded at its first use.
    found = []
    for path in _libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for prefix, suffix in _NAMES:
            get = getattr(library, f"{prefix}get_num_threads{suffix}", None)
            put = getattr(library, f"{prefix}set_num_threads{suffix}", None)
            if get is not None and put is not None:
                found.append(_Control(get, put))
                break
    return tuple(found)


def _libraries() -> list[Path]:
    """Files of OpenBLAS: what is loaded, or where that is not told, what came with NumPy."""
    if _MAPS.exists():
        lines = _MAPS.read_text("utf-8", "replace").splitlines()
        loaded = (line.split(maxsplit=5)[-1] for line in lines if "openblas" in line)
        return [Path(each) for each in dict.fromkeys(loaded)]
    beside = Path(np.__file__).parent
    folders = beside.parent / "numpy.libs", beside / ".dylibs"
    return [each for folder in folders for each in folder.glob("*openblas*")]
