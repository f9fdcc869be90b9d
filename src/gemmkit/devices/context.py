"""`Context`: one GPU of this process, with its loaded kernels, its memory and its own stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gemmkit.devices.captures import DependentLaunches
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.cuda_spec import read_board
from gemmkit.devices.gpu_packages import check_packages
from gemmkit.devices.scratch import HeldScratch, ScratchPool
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.loading import load


class Memory:
    """Memory of a GPU, given back with this object: in a stream's order, or at once without one."""

    def __init__(self, context: Context, address: int, nbytes: int, stream: int | None) -> None:
        self._context, self._stream = context, stream
        self.address, self.nbytes = address, nbytes

    def free_on(self, stream: int) -> None:
        """Have it given back in the order of another stream."""
        self._stream = stream

    def __del__(self) -> None:
        # A fork has no GPU, and when the process ends there may be no driver any more. Errors can
        # only repeat those that a launch or a copy has reported.
        with suppress(Exception):
            if not _forks.of_a_user:
                self._context.free(self.address, self._stream)


class _Loaded(NamedTuple):
    """Handles of a kernel, and of the library in which it was loaded."""

    function: int
    library: Any


class Context:
    """The primary context of a GPU, which CUDA's runtime and all libraries of arrays share.

    `own_stream` is a stream of its own, which waits for no other; what is put on it is waited for,
    or ordered by events. `scratch` is memory for launches, `held_scratch` for what takes several.

    Raises:
        DeviceError: there is no such GPU, it is too old, this process was forked from one that had
            used it, or a package of the extra `gpu` is missing.
    """

    def __init__(self, ordinal: int) -> None:
        check_packages()
        # (cuda.core would do much of this too, but its import takes longer than all the rest.)
        load("cuda.bindings.driver")
        from cuda.bindings import driver

        refuse_forks()
        self.ordinal = ordinal
        with cuda_errors(f"opening GPU {ordinal}"):
            result(driver.cuInit(0))
            device = result(driver.cuDeviceGet(ordinal))
            self.handle = result(driver.cuDevicePrimaryCtxRetain(device))
            self.name, self.spec = read_board(device)
            with self.current():
                flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
                self.own_stream = int(result(driver.cuStreamCreate(flags)))
                self._pool = _pool(device)
        self.scratch, self.held_scratch = ScratchPool(self), HeldScratch(self)
        self.dependent_launches = DependentLaunches()
        # A signal handler may come to it in the thread that holds it.
        self._lock = threading.RLock()
        self._loaded: dict[tuple[str, str], _Loaded] = {}
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

    # --- kernels ----------------------------------------------------------------------------

    def function(self, plan: LaunchPlan, binary: Binary) -> int:
        """The handle of a loaded kernel, ready for the plan.

        It has leave to use the shared memory that the plan asks for, and the plan's variables set.

        Raises:
            DeviceError: the driver refuses the binary, or what the plan asks for.
        """
        from cuda.bindings import driver

        key = binary.key, binary.entry
        with self._lock, cuda_errors(f"loading '{plan.kernel}'"), self.current():
            loaded = self._loaded.get(key)
            if loaded is None:
                # Without a cubin, the driver assembles the PTX. It is never unloaded.
                code = binary.cubin or binary.ptx.encode()
                library = result(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))
                kernel = result(driver.cuLibraryGetKernel(library, binary.entry.encode()))
                loaded = _Loaded(int(result(driver.cuKernelGetFunction(kernel))), library)
                self._loaded[key] = loaded
            if plan.requested_bytes > self._shared_bytes.get(loaded.function, 0):
                limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                result(driver.cuFuncSetAttribute(loaded.function, limit, plan.requested_bytes))
                self._shared_bytes[loaded.function] = plan.requested_bytes
            if plan.constants:
                self._set_variables(binary, plan, loaded.library)
        return loaded.function

    def _set_variables(self, binary: Binary, plan: LaunchPlan, library: Any) -> None:
        """Fill `__constant__` and `__device__` variables, as `cudaMemcpyToSymbol` does."""
        from cuda.bindings import driver

        from gemmkit.devices.variables import find_symbol, variable_symbols

        for name, data in plan.constants:
            symbol = find_symbol(name, variable_symbols(binary.ptx)) if data else None
            # What the kernel does not use is not in its PTX.
            if symbol is None:
                continue
            with cuda_errors(f"setting '{name}'"):
                address = result(driver.cuLibraryGetGlobal(library, symbol.encode()))
                result(driver.cuMemcpyHtoD(address, data, len(data)))

    # --- memory -----------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Memory:
        """Device memory of the pool that is ready for any stream, its content undefined.

        Raises:
            DeviceError: there is not enough.
        """
        from cuda.bindings import driver

        memory = self.allocate_on(nbytes, self.own_stream)
        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"), self.current():
            result(driver.cuStreamSynchronize(self.own_stream))
        return memory

    def allocate_on(self, nbytes: int, stream: int) -> Memory:
        """Device memory of the pool for use on a stream, in whose order it is given back.

        Raises:
            DeviceError: there is not enough.
        """
        from cuda.bindings import driver

        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"), self.current():
            made = driver.cuMemAllocFromPoolAsync(max(nbytes, 1), self._pool, stream)
            return Memory(self, int(result(made)), nbytes, stream)

    def allocate_apart(self, nbytes: int) -> Memory:
        """Device memory that goes back to the driver at once, where other libraries can have it.

        Either may wait for the GPU, so that this is for measurements rather than for calls.

        Raises:
            DeviceError: there is not enough.
        """
        from cuda.bindings import driver

        with cuda_errors(f"allocating {nbytes:,} bytes on the GPU"), self.current():
            return Memory(self, int(result(driver.cuMemAlloc(max(nbytes, 1)))), nbytes, None)

    def free(self, address: int, stream: int | None) -> None:
        """Give memory back, in a stream's order or at once.

        Raises:
            RuntimeError: the driver refuses to take it.
        """
        from cuda.bindings import driver

        with self.current():
            if stream is None:
                result(driver.cuMemFree(address))
            else:
                result(driver.cuMemFreeAsync(address, stream))

    def free_bytes(self) -> int:
        """Memory that is free on the GPU, or in the pool, in the current context.

        Raises:
            RuntimeError: the driver does not answer.
        """
        from cuda.bindings import driver

        status, free, _ = driver.cuMemGetInfo()
        result((status,))
        kinds = driver.CUmemPool_attribute
        reserved, used = (
            int(result(driver.cuMemPoolGetAttribute(self._pool, kind)))
            for kind in (
                kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
            )
        )
        return int(free) + max(reserved - used, 0)

    def trim(self) -> None:
        """Give back to the driver what the pool keeps for later allocations.

        Raises:
            RuntimeError: the driver refuses to.
        """
        from cuda.bindings import driver

        # What was freed in the order of a stream is there when that is done.
        result(driver.cuStreamSynchronize(self.own_stream))
        result(driver.cuMemPoolTrimTo(self._pool, 0))

    def zeros(self, nbytes: int) -> Memory:
        """As `allocate`, filled with zeros.

        Raises:
            DeviceError: there is not enough.
        """
        from cuda.bindings import driver

        memory = self.allocate(nbytes)
        with cuda_errors("clearing memory on the GPU"), self.current():
            result(driver.cuMemsetD8Async(memory.address, 0, max(nbytes, 1), self.own_stream))
            result(driver.cuStreamSynchronize(self.own_stream))
        return memory

    def set_float(self, address: int, value: float, stream: int) -> None:
        """Have a stream write a number to memory, rounded to fp32; nothing is waited for.

        Raises:
            DeviceError: the driver refuses it.
        """
        from cuda.bindings import driver

        bits = int(np.float32(value).view(np.uint32))
        with cuda_errors("writing a number on the GPU"), self.current():
            result(driver.cuMemsetD32Async(address, bits, 1, stream))


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


def refuse_forks() -> None:
    """Check that this process may use a GPU.

    Raises:
        DeviceError: it was forked from one that had used it.
    """
    if _forks.of_a_user:
        raise DeviceError(
            "this process was forked from one that had used the GPU, which CUDA does not support: "
            "start it by the 'spawn' or 'forkserver' method of multiprocessing, or give "
            "device='emulator'"
        )
