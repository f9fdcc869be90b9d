"""Whether the packages through which gemmkit uses a GPU, those of its extra `gpu`, are there."""

from __future__ import annotations

import sys
from pathlib import Path

from gemmkit.errors import DeviceError
from gemmkit.loading import load

_HOW_TO_GET = "run `pip install 'gemmkit[gpu]'`"

# The generation of the driver API whose functions are called.
_CUDA = 13
# Names of modules and of what they are installed as.
PACKAGES = {"cuda.bindings": "cuda-bindings", "cuda.core": "cuda-core"}


def packages_problem() -> str | None:
    """Why they cannot be used, and what to do, or None.

    Nothing of them is run yet that needs a GPU or a driver.
    """
    missing = [name for module, name in PACKAGES.items() if not _is_installed(module)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{' and '.join(missing)} {verb} missing: {_HOW_TO_GET}"
    try:
        load("cuda.bindings")
    except ImportError as error:
        return f"cuda-bindings cannot be loaded ({error}): {_HOW_TO_GET}"
    from cuda import bindings

    # Other libraries, such as PyTorch for CUDA 12, install other versions.
    version = str(bindings.__version__)
    if version.partition(".")[0] != str(_CUDA):
        return f"cuda-bindings {version} is not for CUDA {_CUDA}: {_HOW_TO_GET}"
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
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        # The namespace package that they share.
        load("cuda", "importlib.util")
    except ImportError:
        return False
    import cuda

    name = module.rpartition(".")[2]
    if any(Path(folder, name).is_dir() for folder in cuda.__path__):
        return True
    # Packages in development may be anywhere.
    from importlib.util import find_spec

    return find_spec(module) is not None
