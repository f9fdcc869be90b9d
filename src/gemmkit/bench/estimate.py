"""How long the emulator is going to take, roughly, so that a user can decide whether to wait."""

from __future__ import annotations

from gemmkit.devices.device import Device
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem

# Multiply-adds a second on one core of a 2024 server, by the fewest results per thread: a thread
# that computes many loads less for each. Measured with the ladder at 512³.
_RATES = ((16, 2.2e9), (2, 1.2e9), (0, 0.6e9))


def emulation_seconds(plan: LaunchPlan, problem: GemmProblem, device: Device) -> float:
    """Seconds that a launch is expected to take on the emulator; 0 on a GPU."""
    if not isinstance(device, EmulatedDevice):
        return 0.0
    threads = plan.blocks * plan.threads_per_block
    each = problem.m * problem.n * problem.batch / max(threads, 1)
    rate = next(rate for least, rate in _RATES if each >= least)
    return problem.flops / 2 / (rate * device.threads)
