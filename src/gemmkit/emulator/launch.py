"""A launch on the emulated GPU, as engine and oracle both take it and answer it."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.counters.tally import Tally
from gemmkit.record import Finding

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Grid and block in CUDA's x, y, z order; `parameters` is the kernel's parameter space.

    `shared_bytes` is dynamic shared memory, on top of the kernel's static part.
    """

    grid: Dim3
    block: Dim3
    parameters: bytes
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """What a launch showed: raw counts, wall time in seconds, and lines that the kernel printed.

    `findings` are the sanitizers', where they were switched on.
    """

    tally: Tally
    seconds: float
    printed: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
