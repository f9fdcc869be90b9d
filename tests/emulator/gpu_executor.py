"""`GPU`: an executor that assembles a PTX text by the driver and runs it on this machine's GPU.

It counts nothing. An argument that is an array is copied to the GPU and back.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from launching import Executor

from gemmkit.devices.cuda import CudaDevice
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.emulator import DeviceMemory, LaunchRequest
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.launch import Execution
from gemmkit.emulator.ptx.cfg import ControlFlow

# CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END of cuda.h.
_POINTER, _SIZE, _END = 1, 2, 0
_ALIGNMENT = 64


@lru_cache(maxsize=1)
def _device() -> CudaDevice:
    return CudaDevice()


@lru_cache(maxsize=16)
def _function(ptx: str, name: str, shared_bytes: int) -> tuple[Any, Any]:
    """A kernel, and the module that it belongs to."""
    from cuda.bindings import driver

    with cuda_errors("loading the PTX"):
        module = result(driver.cuModuleLoadData(ptx.encode() + b"\0"))
        function = result(driver.cuModuleGetFunction(module, name.encode()))
        if shared_bytes:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            result(driver.cuFuncSetAttribute(function, most, shared_bytes))
    return function, module


def _run(ptx: str, flow: ControlFlow, request: LaunchRequest, memory: DeviceMemory) -> Execution:
    from cuda.bindings import driver

    device = _device()
    function, _ = _function(ptx, flow.kernel.name, request.shared_bytes)
    held = []
    packed = bytearray(request.parameters)
    for start, nbytes in memory.regions().tolist():
        array = memory.view(start, nbytes)
        buffer = device.upload(array)
        held.append((buffer, array))
        for at in range(0, len(packed) - 7, 8):
            if int.from_bytes(packed[at : at + 8], "little") == start:
                packed[at : at + 8] = buffer.address.to_bytes(8, "little")
    raw = ctypes.create_string_buffer(len(packed) + _ALIGNMENT)
    address = -(-ctypes.addressof(raw) // _ALIGNMENT) * _ALIGNMENT
    ctypes.memmove(address, bytes(packed), len(packed))
    size = ctypes.c_size_t(len(packed))
    extra = (ctypes.c_void_p * 5)(_POINTER, address, _SIZE, ctypes.addressof(size), _END)
    shape = (*request.grid, *request.block, request.shared_bytes)
    with cuda_errors(f"'{flow.kernel.name}'"):
        handle = device.stream.handle
        result(driver.cuLaunchKernel(function, *shape, handle, 0, ctypes.addressof(extra)))
        device.stream.sync()
    for buffer, array in held:
        found = np.empty_like(array)
        device.download(buffer, found)
        array[:] = found
    return Execution(Tally.zeros(len(flow.forms)), 0.0)


GPU = Executor("gpu", _run)
