"""CUDA's error codes as sentences that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemmkit.errors import DeviceError, GemmkitError

_LOST = "; the GPU is unusable for the rest of this process"

_ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU has too little free memory: take a smaller size, or end "
    "other programs that use it",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel accessed memory outside its arrays" + _LOST,
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel accessed a misaligned address" + _LOST,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "a kernel executed an illegal instruction" + _LOST,
    "CUDA_ERROR_LAUNCH_FAILED": "a kernel broke off" + _LOST,
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel ran longer than this display GPU allows" + _LOST,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "a block needs more registers or shared memory than an "
    "SM has: take a smaller configuration",
    "CUDA_ERROR_INVALID_VALUE": "the driver refused an argument, such as a grid, a block or shared "
    "memory beyond the GPU's limits",
    "CUDA_ERROR_INVALID_HANDLE": "a stream or an event has been destroyed, or is another GPU's",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel was compiled for another GPU",
    "CUDA_ERROR_INVALID_IMAGE": "the driver cannot load this binary: update the NVIDIA driver",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is too old for this PTX: update the NVIDIA "
    "driver, or `pip install 'gemmkit[ptx]'` to have ptxas assemble it",
    "CUDA_ERROR_INVALID_PTX": "the driver's assembler refuses this PTX",
    "CUDA_ERROR_NO_DEVICE": "there is no NVIDIA GPU",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process holds the GPU in exclusive mode",
    "CUDA_ERROR_NOT_FOUND": "the binary has no kernel of that name",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory has an uncorrectable error" + _LOST,
}


def explain(doing: str, error: object) -> DeviceError:
    """A `DeviceError` for a failure met while `doing` something, by the CUDA error it names."""
    text = str(error)
    found = re.search(r"CUDA_ERROR_[A-Z0-9_]+", text)
    if found is None:
        return DeviceError(f"{doing} failed: {text}")
    advice = _ADVICE.get(found[0], "see the CUDA driver API's list of errors")
    return DeviceError(f"{doing} failed: {advice} ({found[0]})")


@contextmanager
def cuda_errors(doing: str) -> Iterator[None]:
    """Turn what cuda.core, cuda.bindings and libraries on them raise within into a `DeviceError`.

    They have a private class for driver errors, and built-in ones for a missing or old driver.
    """
    try:
        yield
    except GemmkitError:
        raise
    except Exception as error:
        failed = isinstance(error, RuntimeError | OSError | SystemError | ImportError)
        if failed or type(error).__name__ == "CUDAError":
            raise explain(doing, error) from error
        raise


def result(returned: tuple[Any, ...]) -> Any:
    """The value of a cuda.bindings call, whose error `cuda_errors` turns into a sentence."""
    status, *values = returned
    if status != 0:
        raise RuntimeError(status.name)
    return values[0] if values else None
