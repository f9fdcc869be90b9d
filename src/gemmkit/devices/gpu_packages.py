"""Whether the packages through which gemmkit uses a GPU, those of its extra `gpu`, are there."""

from __future__ import annotations

import sys

from gemmkit.errors import DeviceError
from gemmkit.loading import load

HOW_TO_GET = "run `pip install 'gemmkit[gpu]'`"

# The generation of the driver API whose functions are called.
_CUDA = 13
# Names of modules and of what they are installed as.
PACKAGES = {"cuda.bindings": "cuda-bindings", "cuda.core": "cuda-core"}


def packages_problem() -> str | None:
    """Why they cannot be used, and what to do, or None; they are found, but not run."""
    missing = [name for module, name in PACKAGES.items() if not _is_installed(module)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{' and '.join(missing)} {verb} missing: {HOW_TO_GET}"
    load("cuda.bindings")
    from cuda import bindings

    # Other libraries, such as PyTorch for CUDA 12, install other versions.
    version = str(bindings.__version__)
    if version.partition(".")[0] != str(_CUDA):
        return f"cuda-bindings {version} is not for CUDA {_CUDA}: {HOW_TO_GET}"
    return None


def check_packages() -> None:
    """Check that a GPU can be used.

    Raises:
        DeviceError: a package is missing, or is one for another CUDA; the text says what to do.
    """
    problem = packages_problem()
    if problem is not None:
        raise DeviceError(f"cannot use the GPU: {problem}")


def _is_installed(module: str) -> bool:
    if sys.modules.get(module) is not None:
        return True
    load("importlib.util")
    from importlib.util import find_spec

    try:
        # The namespace package that they share.
        load("cuda")
        return find_spec(module) is not None
    except ImportError:
        return False
