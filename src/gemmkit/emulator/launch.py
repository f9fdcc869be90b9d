"""A launch on the emulated GPU: the request and the result of engine and oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gemmkit.emulator.counters.tally import Tally
    from gemmkit.emulator.machine.memory import DeviceMemory
    from gemmkit.findings import Finding

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Grid and block in CUDA's x, y, z order; `parameters` is the kernel's parameter space.

    `shared_bytes` is dynamic shared memory, in addition to the kernel's static part.
    `parameters_at` is the address of a copy of the parameters in device memory, if there is one.
    """

    grid: Dim3
    block: Dim3
    parameters: bytes
    shared_bytes: int = 0
    parameters_at: int = 0

    @contextmanager
    def resident(self, memory: DeviceMemory, *, addressed: bool) -> Iterator[LaunchRequest]:
        """The request as it runs: where the kernel takes the address of a parameter (`addressed`),
        with a copy of the parameters in device memory, which is freed at the end."""
        if not addressed:
            yield self
            return
        copy = memory.allocate(len(self.parameters), "kernel parameters")
        try:
            view = memory.view(copy.address, copy.nbytes)
            view[:] = np.frombuffer(self.parameters, np.uint8)
            yield replace(self, parameters_at=copy.address)
        finally:
            memory.free(copy)


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
