"""`GPU`: an executor that assembles a PTX text by the driver and runs it on this machine's GPU.

It counts nothing. An argument that is an array is copied to the GPU and back; a tensor map of one
is encoded by the driver.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from functools import lru_cache
from typing import Any

import numpy as np
from launching import Executor
from numpy.typing import NDArray

from gemmkit.devices.cuda import CudaDevice
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.tensor_maps import driver_encoded
from gemmkit.emulator import DeviceMemory, LaunchRequest
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.tensor_maps import decoded, is_map
from gemmkit.emulator.launch import Execution
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.tensor_maps import MAP_BYTES


@lru_cache(maxsize=1)
def _device() -> CudaDevice:
    return CudaDevice()


@lru_cache(maxsize=16)
def _function(ptx: str, name: str, shared_bytes: int) -> tuple[Any, Any]:
    """A kernel, and the module that it belongs to."""
    from cuda.bindings import driver

    # ptxas has a register of that name, and some forms are of later versions than the tests name.
    text = re.sub(r"%tid\b(?!\.)", "%thread", ptx)
    text = re.sub(r"^\.version \S+", ".version 9.0", text, count=1, flags=re.M)
    with cuda_errors("loading the PTX"):
        module = result(driver.cuModuleLoadData(text.encode() + b"\0"))
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
    for start, nbytes in memory.regions().tolist():
        array = memory.view(start, nbytes)
        held.append((device.upload(array), array))
    moved = {array.ctypes.data: buffer.address for buffer, array in held}
    packed = _moved(request.parameters, moved)
    raw = ctypes.create_string_buffer(packed, len(packed))
    start = ctypes.addressof(raw)
    offsets = [each.offset for each in flow.kernel.parameters.values()]
    pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(start + each for each in offsets))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = request.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = request.block
    config.sharedMemBytes, config.hStream = request.shared_bytes, device.stream.handle
    if request.cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = request.cluster
        config.attrs, config.numAttrs = [attribute], 1
    with cuda_errors(f"'{flow.kernel.name}'"):
        result(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))
        device.stream.sync()
    for buffer, array in held:
        found = np.empty_like(array)
        device.download(buffer, found)
        array[:] = found
    return Execution(Tally.zeros(len(flow.forms)), 0.0)


def _moved(parameters: bytes, moved: dict[int, int]) -> bytes:
    """The parameters with the addresses of arrays, and maps of arrays, as on the GPU."""
    whole = parameters.ljust(-(-len(parameters) // 8) * 8, b"\0")
    words: NDArray[np.uint64] = np.frombuffer(whole, np.uint64).copy()
    maps = np.flatnonzero(is_map(words)).tolist()
    for at, word in enumerate(words.tolist()):
        if word in moved and not any(0 <= at - start < MAP_BYTES // 8 for start in maps):
            words[at] = moved[word]
    for at in maps:
        found = decoded(words[at : at + MAP_BYTES // 8].tobytes())
        there = dataclasses.replace(found, address=moved[found.address])
        words[at : at + MAP_BYTES // 8] = np.frombuffer(driver_encoded(there), np.uint64)
    return words.tobytes()[: len(parameters)]


GPU = Executor("gpu", _run)
