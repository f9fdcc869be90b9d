"""How occupancy would change with registers, shared memory or block size, one at a time.

Occupancy is a staircase in each of the three: what matters is the next step on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gemmkit.analysis.occupancy import Occupancy, occupancy
from gemmkit.gpu import WARP_SIZE, GpuSpec

Quantity = Literal["registers per thread", "shared bytes per block", "threads per block"]


@dataclass(frozen=True, slots=True)
class Point:
    """Occupancy (0 to 1) and resident blocks at one value of the quantity that varies."""

    value: int
    theoretical: float
    blocks_per_sm: int


@dataclass(frozen=True, slots=True)
class Step:
    """A range of values, `first` to `last`, with the same occupancy (0 to 1)."""

    first: int
    last: int
    theoretical: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Occupancy over one quantity; `here` is the kernel's own value, one of `points`."""

    quantity: Quantity
    points: tuple[Point, ...]
    here: Point

    def steps(self) -> tuple[Step, ...]:
        """The staircase: adjacent points of equal occupancy combined."""
        found: list[Step] = []
        for point in self.points:
            if found and found[-1].theoretical == point.theoretical:
                found[-1] = Step(found[-1].first, point.value, point.theoretical)
            else:
                found.append(Step(point.value, point.value, point.theoretical))
        return tuple(found)

    @property
    def next_gain(self) -> Step | None:
        """The nearest step with a higher occupancy; None if there is none."""
        return self._nearest(lambda step: step.theoretical > self.here.theoretical)

    @property
    def next_loss(self) -> Step | None:
        """The nearest step with a lower occupancy; None if there is none."""
        return self._nearest(lambda step: step.theoretical < self.here.theoretical)

    def _nearest(self, wanted: Callable[[Step], bool]) -> Step | None:
        def distance(step: Step) -> int:
            return min(abs(step.first - self.here.value), abs(step.last - self.here.value))

        return min(filter(wanted, self.steps()), key=distance, default=None)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The three curves of one kernel on one board, and its actual occupancy."""

    board: str
    here: Occupancy
    registers: Curve
    shared_bytes: Curve
    threads: Curve

    @property
    def curves(self) -> tuple[Curve, Curve, Curve]:
        """All three."""
        return self.registers, self.shared_bytes, self.threads


def what_if(
    spec: GpuSpec, *, registers: int, threads: int, shared_bytes: int, blocks: int = 1
) -> WhatIf:
    """Occupancy over registers per thread, shared bytes per block, and threads per block.

    Registers range over all counts that a thread may have, shared memory over the board's
    allocation units, block sizes over whole warps; the kernel's own value is always included.
    Registers per thread are assumed not to change with the block size.

    Args:
        spec: the board.
        registers: 32-bit registers per thread.
        threads: threads per block.
        shared_bytes: static and dynamic shared memory per block, in bytes.
        blocks: blocks in the grid, for the waves of `WhatIf.here`.

    Raises:
        UsageError: a count is negative, or a block has no thread.
    """
    capability = spec.capability

    def at(registers: int, threads: int, shared_bytes: int) -> Occupancy:
        return occupancy(
            spec, registers=registers, threads=threads, shared_bytes=shared_bytes, blocks=blocks
        )

    units = range(0, capability.max_shared_per_block + 1, capability.shared_unit)
    return WhatIf(
        board=spec.name,
        here=at(registers, threads, shared_bytes),
        registers=_curve(
            "registers per thread",
            range(1, capability.max_registers_per_thread + 1),
            registers,
            lambda value: at(value, threads, shared_bytes),
        ),
        shared_bytes=_curve(
            "shared bytes per block",
            units,
            shared_bytes,
            lambda value: at(registers, threads, value),
        ),
        threads=_curve(
            "threads per block",
            range(WARP_SIZE, capability.max_threads_per_block + 1, WARP_SIZE),
            threads,
            lambda value: at(registers, value, shared_bytes),
        ),
    )


def _curve(
    quantity: Quantity, values: Iterable[int], here: int, at: Callable[[int], Occupancy]
) -> Curve:
    points = {value: _point(value, at(value)) for value in sorted({*values, here})}
    return Curve(quantity, tuple(points.values()), points[here])


def _point(value: int, seen: Occupancy) -> Point:
    return Point(value, seen.theoretical, seen.blocks_per_sm)
