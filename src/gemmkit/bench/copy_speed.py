"""How fast a device copies memory to itself: what a product that only moves data can reach."""

from __future__ import annotations

from gemmkit.bench.timer import time_in_turn
from gemmkit.devices.cuda import copy_work
from gemmkit.devices.device import TimedDevice
from gemmkit.errors import DeviceError

# Far beyond the L2 cache of any board.
COPY_BYTES = 2**29
SECONDS = 0.2


def copy_gb_per_s(device: TimedDevice) -> float | None:
    """Bytes read and written by a device-to-device copy, 1e9 a second; None without memory for it.

    Raises:
        DeviceError: the copy failed.
    """
    try:
        source, target = device.empty(COPY_BYTES), device.empty(COPY_BYTES)
    except DeviceError:
        return None
    work = copy_work(source, target)
    (times,) = time_in_turn(device, [[work]], seconds=SECONDS, kept=[source, target])
    return 2 * COPY_BYTES / times.median / 1e3
