"""How fast a device copies memory to itself: what a product that only moves data can reach."""

from __future__ import annotations

from gemmkit.bench.timer import time_in_turn
from gemmkit.devices.cuda import copy_work
from gemmkit.devices.device import TimedDevice
from gemmkit.errors import DeviceError

# Far beyond the L2 cache of any board. Copies of 512 MiB and more are slower where they are part of
# a graph, by a fifth on an H100; those of half the size are not.
COPY_BYTES = 2**28
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
