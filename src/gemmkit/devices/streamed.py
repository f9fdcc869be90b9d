"""A device as products of host matrices use it: copies both ways beside launches, in streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.device import Buffer
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.patches import ROLES, Places
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan

# Copies to the device, launches, copies to the host: each in its own order.
StreamName = Literal["in", "compute", "out"]


class Event(Protocol):
    """What was on a stream when it was recorded."""

    def wait(self) -> None:
        """Have the calling thread wait until that is done.

        Raises:
            DeviceError: a launch or a copy has failed.
        """


class ReadyLaunch(Protocol):
    """The launches of a plan, of which only addresses change."""

    def run(self, addresses: Sequence[int], scratch: tuple[int, int]) -> None:
        """Put them on the compute stream.

        Args:
            addresses: of element 0 of each operand, as `ROLES` has them.
            scratch: of workspace and semaphores.

        Raises:
            DeviceError: the device refuses them.
        """


class StreamedDevice(Protocol):
    """A device whose copies and launches overlap. Any thread may use it after `enter`."""

    spec: GpuSpec
    emulated: bool

    def enter(self) -> None:
        """Make the device the calling thread's own."""

    def free_bytes(self) -> int:
        """Device memory that can be allocated now."""

    def allocate(self, nbytes: int) -> Buffer:
        """Device memory that goes back to the driver with the object.

        Raises:
            DeviceError: there is not enough.
        """

    def staging(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory, which copies to and from the device go by way of.

        Raises:
            DeviceError: there is too little that can be pinned.
        """

    def is_pinned(self, array: NDArray[Any]) -> bool:
        """Whether the device copies from and to this host memory by itself."""

    def copy_in(self, source: NDArray[Any], address: int, pitch: int) -> None:
        """Copy rows, each contiguous, on the stream `in`, to rows `pitch` bytes apart."""

    def copy_out(self, address: int, pitch: int, target: NDArray[Any]) -> None:
        """Copy rows that lie `pitch` bytes apart, on the stream `out`, to rows of host memory."""

    def clear(self, address: int, nbytes: int) -> None:
        """Fill with zeros, on the compute stream."""

    def ready(
        self, plan: LaunchPlan, binary: Binary, numbers: Mapping[str, Any], places: Places
    ) -> ReadyLaunch:
        """Launches for one thread; arguments are as `PreparedLaunch` has them.

        Raises:
            DeviceError: the driver refuses the binary.
        """

    def record(self, stream: StreamName) -> Event:
        """An event for what is on a stream now."""

    def order(self, stream: StreamName, event: Event) -> None:
        """Have a stream wait for an event."""

    def close(self) -> None:
        """Wait for everything, and give streams and events back; memory goes with its objects."""


class _Done:
    """An event of a device that does everything at once."""

    def wait(self) -> None:
        """Return."""


class _EmulatedLaunch:
    def __init__(
        self,
        device: EmulatedDevice,
        launch: tuple[LaunchPlan, Binary, Mapping[str, Any]],
        places: Places,
    ) -> None:
        self._device, self._launch, self._places = device, launch, places

    def run(self, addresses: Sequence[int], scratch: tuple[int, int]) -> None:
        plan, binary, numbers = self._launch
        if not plan.blocks:
            return
        found = {
            name: addresses[ROLES.index(role)] + offset
            for name, (role, offset) in self._places.items()
        }
        own = {"workspace": scratch[0], "semaphores": scratch[1]}
        self._device.execute(binary, plan, {**numbers, **found, **own})


class StreamedEmulator:
    """The emulator with memory of its own, on which everything is done when a call returns."""

    emulated = True

    def __init__(self, emulator: EmulatedDevice) -> None:
        self._device = emulator.with_own_memory()
        self.spec = emulator.spec

    def enter(self) -> None:
        """As `StreamedDevice.enter`."""

    def free_bytes(self) -> int:
        """As much as the board has, or an H100 where that is not known."""
        return (self.spec.memory_gib or 80) << 30

    def allocate(self, nbytes: int) -> Buffer:
        """As `StreamedDevice.allocate`."""
        return self._device.empty(nbytes)

    def staging(self, nbytes: int) -> NDArray[np.uint8]:
        """As `StreamedDevice.staging`."""
        return np.empty(nbytes, np.uint8)

    def is_pinned(self, array: NDArray[Any]) -> bool:  # noqa: ARG002 (there is no GPU to pin it for)
        """As `StreamedDevice.is_pinned`: none is."""
        return False

    def _rows(self, address: int, pitch: int, like: NDArray[Any]) -> NDArray[Any]:
        lines, length = like.shape
        nbytes = (lines - 1) * pitch + length * like.itemsize if like.size else 0
        memory = self._device.memory.view(address, nbytes)
        return np.ndarray(like.shape, like.dtype, memory, 0, (pitch, like.itemsize))

    def copy_in(self, source: NDArray[Any], address: int, pitch: int) -> None:
        """As `StreamedDevice.copy_in`."""
        if source.size:
            self._rows(address, pitch, source)[...] = source

    def copy_out(self, address: int, pitch: int, target: NDArray[Any]) -> None:
        """As `StreamedDevice.copy_out`."""
        if target.size:
            target[...] = self._rows(address, pitch, target)

    def clear(self, address: int, nbytes: int) -> None:
        """As `StreamedDevice.clear`."""
        self._device.memory.view(address, nbytes)[:] = 0

    def ready(
        self, plan: LaunchPlan, binary: Binary, numbers: Mapping[str, Any], places: Places
    ) -> ReadyLaunch:
        """As `StreamedDevice.ready`."""
        return _EmulatedLaunch(self._device, (plan, binary, numbers), places)

    def record(self, stream: StreamName) -> Event:  # noqa: ARG002 (there is nothing to wait for)
        """As `StreamedDevice.record`."""
        return _Done()

    def order(self, stream: StreamName, event: Event) -> None:
        """As `StreamedDevice.order`."""

    def close(self) -> None:
        """As `StreamedDevice.close`."""
