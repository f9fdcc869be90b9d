"""A launch on the emulated GPU: the request and the result of engine and oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmkit.emulator.counters.tally import Tally
    from gemmkit.record import Finding

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Grid and block in CUDA's x, y, z order; `parameters` is the kernel's parameter space.

    `shared_bytes` is dynamic shared memory, in addition to the kernel's static part.
    """

    grid: Dim3
    block: Dim3
    parameters: bytes
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a launch: raw counts, wall time in seconds, and printed lines.

    `findings` are the sanitizers', if these were enabled. `regions` holds, by the number of a
    memory instruction, the address of the allocation in global memory that it accessed last.
    """

    tally: Tally
    seconds: float
    printed: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    regions: Mapping[int, int] = field(default_factory=dict)
