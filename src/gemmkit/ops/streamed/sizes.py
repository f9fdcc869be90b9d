"""`StreamProblem` and `Tiling`: what is streamed, how it is cut, and the device memory of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmkit.kernels.plan import ceil_div

# Rows and parts of the arena begin at multiples of these: kernels' widest access, and allocations.
ROW_ALIGNMENT, PART_ALIGNMENT = 16, 256
# Bytes of an element of the accumulators of narrower types.
FLOAT_BYTES = 4


def round_up(number: int, unit: int) -> int:
    """The next multiple of a unit."""
    return ceil_div(number, unit) * unit


@dataclass(frozen=True, slots=True)
class StreamProblem:
    """A stack of `batch` products m×k by k×n in host memory; item sizes are in bytes.

    `columns_a` and `columns_b` say that it is the columns that are contiguous, `shared_a` and
    `shared_b` that all products have the same matrix. `k` is 0 where A and B are not read.
    `reads_c`, `residual` and `auxiliary` say which further matrices of C's size are copied,
    `fixed_bytes` is what all tiles share on a device (bias, scales), `k_unit` what the depth of
    a panel is a multiple of, and `line_unit` its sides if there are several.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    item: int = 4
    out_item: int = 4
    columns_a: bool = False
    columns_b: bool = False
    shared_a: bool = False
    shared_b: bool = False
    reads_c: bool = False
    residual: bool = False
    auxiliary: bool = False
    fixed_bytes: int = 0
    k_unit: int = 1
    line_unit: int = 1

    @property
    def flops(self) -> float:
        """Floating-point operations: a multiplication and an addition for each of k."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def result_bytes(self) -> int:
        """Bytes of C."""
        return self.batch * self.m * self.n * self.out_item

    @property
    def operand_bytes(self) -> int:
        """Bytes of A and B, each once."""
        matrices_a, matrices_b = (1 if each else self.batch for each in self.shared)
        return (matrices_a * self.m + matrices_b * self.n) * self.k * self.item

    @property
    def shared(self) -> tuple[bool, bool]:
        """Whether all products share A, and B."""
        return self.shared_a, self.shared_b

    @property
    def total_bytes(self) -> int:
        """What goes over the link at least, both ways."""
        further = self.reads_c + self.residual + self.auxiliary
        return self.operand_bytes + self.result_bytes * (1 + further)


@dataclass(frozen=True, slots=True)
class Part:
    """Equal slots in device memory: where the first begins, and the bytes of each."""

    offset: int
    nbytes: int
    slots: int

    def at(self, slot: int) -> int:
        """Where a slot begins, in bytes from the start of the memory."""
        return self.offset + slot * self.nbytes


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a `StreamProblem` is cut, and how much of it a device holds.

    Tiles of C are `m`×`n`, of `group` products where these are whole. A panel is the part of A
    (`m`×`k`) or B (`k`×`n`) that one launch reads; a device holds `slots_a` and `slots_b` of them.
    `tiles` are in flight at once: being computed, or on the way back. With `by_rows`, a row of
    tiles follows another; otherwise a column another. With `squares`, tiles come in squares that
    grow by a row and a column at a time, so that products keep up with panels from the start: for
    devices that hold all panels. `workspace_bytes` and `semaphores` are what the launches need
    besides.
    """

    m: int
    n: int
    k: int
    group: int = 1
    slots_a: int = 2
    slots_b: int = 2
    tiles: int = 2
    by_rows: bool = True
    squares: bool = False
    workspace_bytes: int = 0
    semaphores: int = 0

    def chunks(self, problem: StreamProblem) -> int:
        """Panels along k."""
        return max(ceil_div(problem.k, self.k), 1) if self.k else 1

    def counts(self, problem: StreamProblem) -> tuple[int, int, int]:
        """Groups of products, and rows and columns of tiles of each."""
        return (
            ceil_div(problem.batch, self.group),
            ceil_div(problem.m, self.m),
            ceil_div(problem.n, self.n),
        )

    def widened(self, problem: StreamProblem) -> bool:
        """Whether tiles are accumulated in fp32, and rounded to their type at the end."""
        return self.chunks(problem) > 1 and problem.out_item < FLOAT_BYTES

    def accumulator_item(self, problem: StreamProblem) -> int:
        """Bytes of an element of a tile while it is computed."""
        return FLOAT_BYTES if self.widened(problem) else problem.out_item

    def pitch_a(self, problem: StreamProblem) -> int:
        """Bytes from a line of a panel of A to the next: a row, or a column."""
        return round_up((self.m if problem.columns_a else self.k) * problem.item, ROW_ALIGNMENT)

    def pitch_b(self, problem: StreamProblem) -> int:
        """The same of B."""
        return round_up((self.k if problem.columns_b else self.n) * problem.item, ROW_ALIGNMENT)

    def pitch_c(self, item: int) -> int:
        """The same of a tile, whose elements have `item` bytes."""
        return round_up(self.n * item, ROW_ALIGNMENT)

    def panel_a(self, problem: StreamProblem) -> int:
        """Bytes of a slot for a panel of A."""
        lines = self.k if problem.columns_a else self.m
        matrices = 1 if problem.shared_a else self.group
        return round_up(matrices * lines * self.pitch_a(problem), PART_ALIGNMENT)

    def panel_b(self, problem: StreamProblem) -> int:
        """The same of B."""
        lines = self.n if problem.columns_b else self.k
        matrices = 1 if problem.shared_b else self.group
        return round_up(matrices * lines * self.pitch_b(problem), PART_ALIGNMENT)

    def tile_bytes(self, item: int) -> int:
        """Bytes of a slot for a tile, whose elements have `item` bytes."""
        return round_up(self.group * self.m * self.pitch_c(item), PART_ALIGNMENT)

    def _sizes(self, problem: StreamProblem) -> Iterator[tuple[str, int, int]]:
        own = self.accumulator_item(problem)
        tile, rounded = self.tile_bytes(own), self.tile_bytes(problem.out_item)
        yield "a", self.panel_a(problem), self.slots_a
        yield "b", self.panel_b(problem), self.slots_b
        yield "out", tile, self.tiles
        if problem.residual:
            yield "residual", tile, self.tiles
        if problem.auxiliary:
            yield "auxiliary", tile, self.tiles
        if self.widened(problem):
            yield "rounded out", rounded, self.tiles
            if problem.auxiliary:
                yield "rounded auxiliary", rounded, self.tiles
        yield "fixed", round_up(problem.fixed_bytes, PART_ALIGNMENT), 1
        yield "workspace", round_up(self.workspace_bytes, PART_ALIGNMENT), 1
        yield "semaphores", round_up(4 * self.semaphores, PART_ALIGNMENT), 1

    def parts(self, problem: StreamProblem) -> dict[str, Part]:
        """The parts of the one piece of device memory that is allocated, by what they hold."""
        found, offset = {}, 0
        for name, nbytes, slots in self._sizes(problem):
            found[name] = Part(offset, nbytes, slots)
            offset += nbytes * slots
        return found

    def device_bytes(self, problem: StreamProblem) -> int:
        """The device memory that is allocated."""
        return sum(nbytes * slots for _, nbytes, slots in self._sizes(problem))
