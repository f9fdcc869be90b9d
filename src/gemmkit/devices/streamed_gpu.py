"""`StreamedGpu`: a GPU that copies both ways, by its copy engines, while it computes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.context import Context, context_of
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.device import Buffer
from gemmkit.devices.launcher import PreparedLaunch, prepared_launches
from gemmkit.devices.patches import Places
from gemmkit.devices.pinned import pinned_bytes
from gemmkit.devices.streamed import Event, ReadyLaunch, StreamName
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan

# Of the GPU's memory, what a product may leave in the pool: the driver takes 1.3 ms to take back a
# GiB, of one GPU after the other.
KEPT_SHARE = 1 / 16

_STREAMS: tuple[StreamName, ...] = ("in", "compute", "out")

# Pinned memory that no call uses, by its size: any GPU may.
_spare_staging: dict[int, list[NDArray[np.uint8]]] = {}
_lock = threading.Lock()


class _GpuEvent:
    """A CUDA event, which is used again when nobody has it."""

    def __init__(self, handle: int, spare: list[int]) -> None:
        self.handle, self._spare = handle, spare

    def __del__(self) -> None:
        self._spare.append(self.handle)

    def wait(self) -> None:
        from cuda.bindings import driver

        with cuda_errors("a product of host matrices"):
            result(driver.cuEventSynchronize(self.handle))


class _GpuLaunch:
    def __init__(self, launches: Sequence[PreparedLaunch], stream: int) -> None:
        self._launches, self._stream = launches, stream

    def run(self, addresses: Sequence[int], scratch: tuple[int, int]) -> None:
        for launch in self._launches:
            launch.run(addresses, self._stream, scratch)


class StreamedGpu:
    """A GPU with three streams of its own.

    Raises:
        DeviceError: there is no such GPU.
    """

    emulated = False

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        self._context: Context = context_of(ordinal)
        self.spec = self._context.spec
        self._spare: list[int] = []
        self._events: list[int] = []
        self._staging: list[NDArray[np.uint8]] = []
        with cuda_errors("opening streams"), self._context.current():
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._streams = {name: int(result(driver.cuStreamCreate(flags))) for name in _STREAMS}

    def enter(self) -> None:
        """As `StreamedDevice.enter`."""
        with cuda_errors("opening the GPU"):
            self._context.make_current()

    def free_bytes(self) -> int:
        """As `StreamedDevice.free_bytes`, with what the pool keeps for later calls."""
        with cuda_errors("asking for free memory"), self._context.current():
            return self._context.free_bytes()

    def allocate(self, nbytes: int) -> Buffer:
        """As `StreamedDevice.allocate`, but for a little that the pool keeps for later calls."""
        context = self._context
        if nbytes <= KEPT_SHARE * (self.spec.memory_gib or 0) * 2**30:
            with suppress(DeviceError):
                return context.allocate(nbytes)
        try:
            return context.allocate_apart(nbytes)
        except DeviceError:
            with cuda_errors("giving memory back"), context.current():
                context.trim()
            return context.allocate_apart(nbytes)

    def staging(self, nbytes: int) -> NDArray[np.uint8]:
        """As `StreamedDevice.staging`; it stays pinned for later calls, which takes time."""
        with _lock:
            spare = _spare_staging.setdefault(nbytes, [])
            found = spare.pop() if spare else None
        if found is None:
            found = pinned_bytes(nbytes, self._context)
        self._staging.append(found)
        return found

    def is_pinned(self, array: NDArray[Any]) -> bool:
        """As `StreamedDevice.is_pinned`; the array's first and last byte are looked at."""
        from cuda.bindings import driver

        if not array.size:
            return True
        reach = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
        low = array.ctypes.data + sum(min(each, 0) for each in reach)
        high = array.ctypes.data + sum(max(each, 0) for each in reach) + array.itemsize
        kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        host = int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
        with cuda_errors("asking for pinned memory"), self._context.current():
            for address in (low, high - 1):
                status, *found = driver.cuPointerGetAttribute(kind, address)
                if status != 0 or int(found[0]) != host:
                    return False
        return True

    def copy_in(self, source: NDArray[Any], address: int, pitch: int) -> None:
        """As `StreamedDevice.copy_in`."""
        self._copy("in", source, address, pitch)

    def copy_out(self, address: int, pitch: int, target: NDArray[Any]) -> None:
        """As `StreamedDevice.copy_out`."""
        self._copy("out", target, address, pitch)

    def _copy(self, name: StreamName, host: NDArray[Any], address: int, pitch: int) -> None:
        from cuda.bindings import driver

        if not host.size:
            return
        lines, length = host.shape
        width, stream = length * host.itemsize, self._streams[name]
        own = host.strides[0] if lines > 1 else width
        at = host.ctypes.data
        with cuda_errors("copying a tile"):
            if own == width == pitch or lines == 1:
                if name == "in":
                    result(driver.cuMemcpyHtoDAsync(address, at, lines * width, stream))
                else:
                    result(driver.cuMemcpyDtoHAsync(at, address, lines * width, stream))
                return
            copy = driver.CUDA_MEMCPY2D()
            copy.WidthInBytes, copy.Height = width, lines
            of_host = driver.CUmemorytype.CU_MEMORYTYPE_HOST
            of_device = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
            if name == "in":
                copy.srcMemoryType, copy.srcHost, copy.srcPitch = of_host, at, own
                copy.dstMemoryType, copy.dstDevice, copy.dstPitch = of_device, address, pitch
            else:
                copy.srcMemoryType, copy.srcDevice, copy.srcPitch = of_device, address, pitch
                copy.dstMemoryType, copy.dstHost, copy.dstPitch = of_host, at, own
            result(driver.cuMemcpy2DAsync(copy, stream))

    def clear(self, address: int, nbytes: int) -> None:
        """As `StreamedDevice.clear`."""
        from cuda.bindings import driver

        if nbytes:
            with cuda_errors("clearing memory on the GPU"):
                result(driver.cuMemsetD8Async(address, 0, nbytes, self._streams["compute"]))

    def ready(
        self, plan: LaunchPlan, binary: Binary, numbers: Mapping[str, Any], places: Places
    ) -> ReadyLaunch:
        """As `StreamedDevice.ready`."""
        launches = prepared_launches(self._context, plan, binary, numbers, places)
        return _GpuLaunch(launches, self._streams["compute"])

    def record(self, stream: StreamName) -> Event:
        """As `StreamedDevice.record`."""
        from cuda.bindings import driver

        with cuda_errors("recording an event"):
            event = _GpuEvent(self._event(), self._spare)
            result(driver.cuEventRecord(event.handle, self._streams[stream]))
            return event

    def _event(self) -> int:
        from cuda.bindings import driver

        with suppress(IndexError):
            return self._spare.pop()
        flags = driver.CUevent_flags
        wanted = int(flags.CU_EVENT_DISABLE_TIMING) | int(flags.CU_EVENT_BLOCKING_SYNC)
        made = int(result(driver.cuEventCreate(wanted)))
        self._events.append(made)
        return made

    def order(self, stream: StreamName, event: Event) -> None:
        """As `StreamedDevice.order`."""
        from cuda.bindings import driver

        assert isinstance(event, _GpuEvent)
        with cuda_errors("ordering two streams"):
            result(driver.cuStreamWaitEvent(self._streams[stream], event.handle, 0))

    def close(self) -> None:
        """As `StreamedDevice.close`."""
        from cuda.bindings import driver

        streams, self._streams = self._streams, {}
        events, self._events = self._events, []
        failed = None
        with cuda_errors("a product of host matrices"), self._context.current():
            for stream in streams.values():
                (status,) = driver.cuStreamSynchronize(stream)
                failed = failed or (status if status != 0 else None)
                driver.cuStreamDestroy(stream)
            for event in events:
                driver.cuEventDestroy(event)
        with _lock:
            for each in self._staging:
                _spare_staging[each.nbytes].append(each)
            self._staging = []
        if failed is not None:
            with cuda_errors("a product of host matrices"):
                result((failed,))
