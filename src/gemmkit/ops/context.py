"""`Context`: a GPU as the operations use it; its kernels, its scratch memory, its own stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.cuda_spec import spec_of
from gemmkit.errors import DeviceError
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.loading import load
from gemmkit.ops.scratch import ScratchPool


class Memory:
    """Device memory from cuda.core's pool, which gets it back with this object."""

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer = buffer
        self.address = int(buffer.handle)
        self.nbytes = nbytes

    def free_on(self, stream: int) -> None:
        """Have it given back in the order of another stream."""
        self.buffer.set_deallocation_stream(_pool_stream(stream))


class Context:
    """The primary context of a GPU, which CUDA's runtime and all libraries of arrays share.

    `own_stream` is a stream of its own, which waits for no other; what is put on it is waited for,
    or ordered by events.

    Raises:
        DeviceError: there is no such GPU, it is too old, or this process was forked from one that
            had used it.
    """

    def __init__(self, ordinal: int) -> None:
        load("cuda.bindings.driver", "cuda.core")
        from cuda.bindings import driver

        if _forks.of_a_user:
            raise DeviceError(
                "this process was forked from one that had used the GPU, which CUDA does not "
                "support: start it by the 'spawn' or 'forkserver' method of multiprocessing, or "
                "give device='emulator'"
            )
        self.ordinal = ordinal
        with cuda_errors(f"opening GPU {ordinal}"):
            from cuda.core import Device, DeviceMemoryResource

            result(driver.cuInit(0))
            self.handle = result(
                driver.cuDevicePrimaryCtxRetain(result(driver.cuDeviceGet(ordinal)))
            )
            device = Device(ordinal)
            major, minor = device.compute_capability
            self.spec: GpuSpec = spec_of(
                str(device.name), (int(major), int(minor)), device.properties
            )
            with self.current():
                flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
                self.own_stream = int(result(driver.cuStreamCreate(flags)))
                self._pool = DeviceMemoryResource(ordinal)
        self.scratch = ScratchPool(self)
        # A signal handler may come to it in the thread that holds it.
        self._lock = threading.RLock()
        self._kernels: dict[tuple[str, str], Any] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._shared_bytes: dict[int, int] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the calling thread's context, and allow what stream capture would forbid."""
        from cuda.bindings import driver

        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        result(driver.cuCtxPushCurrent(self.handle))
        try:
            before = result(driver.cuThreadExchangeStreamCaptureMode(relaxed))
            try:
                yield
            finally:
                driver.cuThreadExchangeStreamCaptureMode(before)
        finally:
            driver.cuCtxPopCurrent()

    def make_current(self) -> None:
        """Make it the calling thread's context for good."""
        from cuda.bindings import driver

        result(driver.cuCtxSetCurrent(self.handle))

    def function(self, plan: LaunchPlan, binary: Binary) -> int:
        """The handle of a loaded kernel, with leave to use the shared memory that the plan asks.

        Raises:
            DeviceError: the driver refuses the binary.
        """
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        key = binary.key, binary.entry
        with self._lock, cuda_errors(f"loading '{plan.kernel}'"), self.current():
            function = self._functions.get(key)
            if function is None:
                # Without a cubin, the driver assembles the PTX.
                code = (
                    ObjectCode.from_cubin(binary.cubin)
                    if binary.cubin
                    else ObjectCode.from_ptx(binary.ptx.encode())
                )
                kernel = self._kernels[key] = code.get_kernel(binary.entry)
                function = int(result(driver.cuKernelGetFunction(kernel.handle)))
                self._functions[key] = function
            if plan.shared_bytes > self._shared_bytes.get(function, 0):
                limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                result(driver.cuFuncSetAttribute(function, limit, plan.shared_bytes))
                self._shared_bytes[function] = plan.shared_bytes
        return function

    def allocate(self, nbytes: int) -> Memory:
        """Device memory that is ready for any stream, its content undefined.

        Raises:
            DeviceError: there is not enough.
        """
        from cuda.bindings import driver

        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"), self.current():
            buffer = self._pool.allocate(max(nbytes, 1), stream=_pool_stream(self.own_stream))
            result(driver.cuStreamSynchronize(self.own_stream))
        return Memory(buffer, nbytes)

    def allocate_on(self, nbytes: int, stream: int) -> Memory:
        """Device memory for use on a stream, in whose order it is given back.

        Raises:
            DeviceError: there is not enough.
        """
        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"), self.current():
            buffer = self._pool.allocate(max(nbytes, 1), stream=_pool_stream(stream))
        return Memory(buffer, nbytes)

    def zeros(self, nbytes: int) -> Memory:
        """The same, filled with zeros.

        Raises:
            DeviceError: there is not enough.
        """
        from cuda.bindings import driver

        memory = self.allocate(nbytes)
        with cuda_errors("clearing memory on the GPU"), self.current():
            result(driver.cuMemsetD8Async(memory.address, 0, max(nbytes, 1), self.own_stream))
            result(driver.cuStreamSynchronize(self.own_stream))
        return memory


def _pool_stream(handle: int) -> Any:
    """A stream as cuda.core's pools take it, to which 1 is the legacy default stream."""
    from cuda.core import Stream

    return Stream.from_handle(handle or 1)


@cache
def context_of(ordinal: int) -> Context:
    """The context of a GPU, by the ordinal that CUDA gives it; made once.

    Raises:
        DeviceError: as `Context`.
    """
    _forks.watch()
    return Context(ordinal)


class _Forks:
    """Whether this process is a fork of one that had used a GPU."""

    def __init__(self) -> None:
        self.of_a_user = False
        self._watched = False

    def watch(self) -> None:
        """Have processes that are forked from now on know."""
        if not self._watched and hasattr(os, "register_at_fork"):
            self._watched = True
            os.register_at_fork(after_in_child=self._begin_child)

    def _begin_child(self) -> None:
        self.of_a_user = True
        context_of.cache_clear()


_forks = _Forks()
