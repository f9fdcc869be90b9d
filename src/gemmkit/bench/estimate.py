"""How long runs on the emulator take, relative to each other; their pace is seen as they run."""

from __future__ import annotations

from gemmkit.devices.device import Device
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem

# Multiply-adds per second on one core of a 2024 server, by the fewest results per thread: a thread
# that computes many loads less for each. Measured with the ladder at 512³.
_RATES = ((16, 2.2e9), (2, 1.2e9), (0, 0.6e9))
# Seconds of every run, for its machine code and its check.
_FIXED_SECONDS = 0.1
# How much longer a launch takes with all sanitizers, the median of the ladder.
_SANITIZED = 2.4


def emulation_seconds(plan: LaunchPlan, problem: GemmProblem, device: Device) -> float:
    """Seconds that a run would take on idle cores of a 2024 server; 0 on a GPU."""
    if not isinstance(device, EmulatedDevice):
        return 0.0
    threads = plan.blocks * plan.threads_per_block
    each = problem.results / max(threads, 1)
    rate = next(rate for least, rate in _RATES if each >= least)
    seconds = problem.flops / 2 / (rate * device.threads)
    return _FIXED_SECONDS + seconds * (_SANITIZED if device.sanitize else 1)
