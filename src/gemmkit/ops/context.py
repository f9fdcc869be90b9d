"""`Context`: a GPU as the operations use it; its kernels, its scratch memory, its own stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Memory of the GPU's pool, to which it goes back with this object, in a stream's order."""

    def __init__(self, context: Context, address: int, nbytes: int, stream: int) -> None:
        self._context, self._stream = context, stream
        self.address, self.nbytes = address, nbytes

    def free_on(self, stream: int) -> None:
        """Have it given back in the order of another stream."""
        self._stream = stream

    def __del__(self) -> None:
        # A fork has no GPU, and when the process ends there may be no driver any more.
        with suppress(Exception):
            if not _forks.of_a_user:
                self._context.free(self.address, self._stream)


class Context:
    """The primary context of a GPU, which CUDA's runtime and all libraries of arrays share.

    `own_stream` is a stream of its own, which waits for no other; what is put on it is waited for,
    or ordered by events.

    Raises:
        DeviceError: there is no such GPU, it is too old, or this process was forked from one that
            had used it.
    """

    def __init__(self, ordinal: int) -> None:
        # (cuda.core would do much of this too, but its import takes longer than all the rest.)
        load("cuda.bindings.driver")
        from cuda.bindings import driver

        if _forks.of_a_user:
            raise DeviceError(
                "this process was forked from one that had used the GPU, which CUDA does not "
                "support: start it by the 'spawn' or 'forkserver' method of multiprocessing, or "
                "give device='emulator'"
            )
        self.ordinal = ordinal
        with cuda_errors(f"opening GPU {ordinal}"):
            result(driver.cuInit(0))
            device = result(driver.cuDeviceGet(ordinal))
            self.handle = result(driver.cuDevicePrimaryCtxRetain(device))
            figures = _Figures(device)
            capability = figures.compute_capability_major, figures.compute_capability_minor
            self.spec: GpuSpec = spec_of(_name(device), capability, figures)
            with self.current():
                flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
                self.own_stream = int(result(driver.cuStreamCreate(flags)))
                self._pool = _pool(device)
        self.scratch = ScratchPool(self)
        # A signal handler may come to it in the thread that holds it.
        self._lock = threading.RLock()
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

        key = binary.key, binary.entry
        with self._lock, cuda_errors(f"loading '{plan.kernel}'"), self.current():
            function = self._functions.get(key)
            if function is None:
                # Without a cubin, the driver assembles the PTX. It is never unloaded.
                code = binary.cubin or binary.ptx.encode()
                library = result(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))
                kernel = result(driver.cuLibraryGetKernel(library, binary.entry.encode()))
                function = int(result(driver.cuKernelGetFunction(kernel)))
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

        memory = self.allocate_on(nbytes, self.own_stream)
        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"), self.current():
            result(driver.cuStreamSynchronize(self.own_stream))
        return memory

    def allocate_on(self, nbytes: int, stream: int) -> Memory:
        """Device memory for use on a stream, in whose order it is given back.

        Raises:
            DeviceError: there is not enough.
        """
        from cuda.bindings import driver

        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"), self.current():
            made = driver.cuMemAllocFromPoolAsync(max(nbytes, 1), self._pool, stream)
            return Memory(self, int(result(made)), nbytes, stream)

    def free(self, address: int, stream: int) -> None:
        """Give memory back to the pool, in a stream's order.

        Raises:
            RuntimeError: the driver refuses to take it.
        """
        from cuda.bindings import driver

        with self.current():
            result(driver.cuMemFreeAsync(address, stream))

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


class _Figures:
    """What a driver tells of a device, by its own names in small letters."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> int:
        from cuda.bindings import driver

        wanted = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name.upper()}")
        return int(result(driver.cuDeviceGetAttribute(wanted, self._device)))


_LONGEST_NAME = 256


def _name(device: Any) -> str:
    """What a driver calls a device, such as `NVIDIA H100 80GB HBM3`."""
    from cuda.bindings import driver

    found: bytes = result(driver.cuDeviceGetName(_LONGEST_NAME, device))
    return found.partition(b"\0")[0].decode()


def _pool(device: Any) -> Any:
    """A device's current pool of memory, which keeps what it gets back unless a limit is set."""
    from cuda.bindings import driver

    pool = result(driver.cuDeviceGetMemPool(device))
    limit = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    if int(result(driver.cuMemPoolGetAttribute(pool, limit))) == 0:
        result(driver.cuMemPoolSetAttribute(pool, limit, driver.cuuint64_t(2**64 - 1)))
    return pool


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
