"""How results leave kernels of `wgmma_product.cuh`: boxes in shared memory, and the room for them
beside the stages."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Literal, NamedTuple

from gemmkit.dtypes import FLOAT_BYTES, ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.plan import FewerStages, TileConfig, ceil_div
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.warpgroups import (
    LINE_BYTES,
    ROWS,
    TMA_UNIT,
    aligned_bytes,
    line,
    stores_by_tma,
)
from gemmkit.problem import GemmProblem

# Columns of a box come in such steps, lines of a transposed one in the smaller one.
COLUMN_STEP, EIGHT = 16, 8
# Lines of a box of transposed results, of up to 16 bits and of 32.
MOST_BOX_LINES, MOST_WORD_LINES = 96, 32
# Buffers for results on their way to memory, per consumer: those that there is room for; and bytes
# of the lines of those that have other matrices before or beside results.
FEWEST_BUFFERS, MOST_BUFFERS, MOST_FUSED_BUFFERS = 2, 4, 8
BOX_LINE_BYTES = (LINE_BYTES, LINE_BYTES // 2)
# The same of those that have results alone.
RESULT_LINE_BYTES = (LINE_BYTES, LINE_BYTES // 2, LINE_BYTES // 4)
# Stages that are left where the boxes of a tile take one, with one tile in hand, and with two
# (ping-pong).
FEWEST_STAGES = {1: 3, 2: 4}


class Results(NamedTuple):
    """What of a problem decides how its results leave: bytes of one, whether TMA can store them,
    whether it is to bring what the epilogue reads, too, whether that is anything besides vectors,
    and whether there is an auxiliary output.

    Searches ask for the room of thousands of tiles: problems that are alike in this share the
    answer.
    """

    item: int
    stored_by_tma: bool
    fused: bool
    reads: bool
    auxiliary: bool

    @classmethod
    def of(cls, problem: GemmProblem) -> Results:
        """Those of a problem."""
        epilogue, scaled = problem.epilogue, problem.beta != 0
        further = epilogue.residual or epilogue.auxiliary
        return cls(
            problem.out_item_bytes,
            stores_by_tma(problem),
            problem.further_aligned if further else scaled,
            scaled or epilogue.residual,
            epilogue.auxiliary,
        )


def write_back(
    results: Results, config: TileConfig, operands: LoadedOperands
) -> Literal["FROM_REGISTERS", "FROM_SHARED", "BY_TMA", "FUSED_BY_TMA"]:
    """How results leave, as write_back.cuh calls it: of tiles that are transposed because they
    have few rows, only those come to shared memory of which a line has all columns: elements of 8
    and of 16 bits."""
    narrow = results.item <= ITEM_BYTES["float16"]
    if operands.is_swapped(config) and (
        config["BM"] <= EIGHT or not (narrow or operands.from_registers)
    ):
        return "FROM_REGISTERS"
    if not (operands.maps_c and results.stored_by_tma):
        return "FROM_SHARED"
    # Boxes are read by ldmatrix; of 32 bits they would be no faster (H100).
    halves = results.item == ITEM_BYTES["float16"]
    return "FUSED_BY_TMA" if operands.fuses and halves and results.fused else "BY_TMA"


class Boxes(NamedTuple):
    """Boxes in which a consumer's results are stored: their sides, the bytes that the swizzle
    spans and lines lie apart, how many buffers of them a tile has, and how many of them a buffer
    has, side by side."""

    columns: int
    lines: int
    pitch: int
    number: int
    beside: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of a buffer."""
        return self.beside * self.lines * self.pitch


def boxes_of(
    results: Results, config: TileConfig, operands: LoadedOperands, box_line: int
) -> Boxes:
    """Those of C, as fragment_store.cuh and swapped_store.cuh have them; `box_line` says how many
    bytes their lines have at most, but for transposed ones that have results alone."""
    fused = write_back(results, config, operands) == "FUSED_BY_TMA"
    rows, columns = operands.sides(config)
    columns //= config["cluster_k"]
    tiles = rows // (config["consumers"] // config["pingpong"] * ROWS)
    item = results.item
    if operands.is_swapped(config):
        span = min(line(item), ROWS)
        beside = ROWS // span
        most = MOST_BOX_LINES if span == ROWS else MOST_WORD_LINES
        most = box_line // 2 // beside if fused else most
        lines = _even_part(columns, EIGHT, min(columns, most))
        return Boxes(span, lines, span * item, tiles * (columns // lines), beside)
    # Boxes that TMA also loads fill the span of their swizzle.
    most = box_line // item
    across = gcd(columns, most) if fused else _box_columns(columns, most)
    pitch = next(each for each in (32, 64, LINE_BYTES) if each >= across * item)
    return Boxes(across, ROWS, pitch, tiles * ceil_div(columns, across))


def _box_columns(columns: int, most: int) -> int:
    """Columns of a box, as `box_columns` of operands.cuh has them: the rest is no box."""
    even = _even_part(columns, COLUMN_STEP, most)
    return most if columns > most and 4 * even < 3 * most else even


def _even_part(extent: int, step: int, most: int) -> int:
    """The largest part in such steps that divides an extent and is `most` or less."""
    return next(each for each in range(most, 0, -step) if extent % each == 0)


@lru_cache(maxsize=4096)
def shared_bytes(
    results: Results,
    config: TileConfig,
    operands: LoadedOperands,
    count: int,
    box_line: int,
) -> int:
    """Shared bytes of all stages, of so many buffers per consumer, and of barriers."""
    item, stages = operands.item_bytes, config["stages"]
    # Boxes across k are whole.
    a, b = (
        side if along_k else ceil_div(side, line(item)) * line(item)
        for side, along_k in (
            (config["BM"], operands.a_along_k),
            (config["BN"], operands.b_along_k),
        )
    )
    total, parts = stages * (a + b) * operands.depth(config) * item, config["cluster_k"]
    if operands.scaled_on_chip:
        total += FLOAT_BYTES * (2 if stages % 2 == 0 else stages) * (config["BM"] + config["BN"])
    way, barriers = write_back(results, config, operands), 2 * stages + 1
    if way != "FROM_REGISTERS":
        boxes = count * boxes_of(results, config, operands, box_line).nbytes
        if way == "FUSED_BY_TMA":
            boxes *= 1 + results.auxiliary
            barriers += 2 * count * config["consumers"]
        total += config["consumers"] * aligned_bytes(boxes)
    else:
        total += TMA_UNIT
    # Sums that other blocks send.
    total += FLOAT_BYTES * config["BM"] * config["BN"] // parts * (parts - 1) or FLOAT_BYTES
    return aligned_bytes(total + 8 * barriers + 8)


class Fitted(NamedTuple):
    """What shared memory has room for: a configuration, so many buffers per consumer, and bytes of
    a line of their boxes."""

    config: TileConfig
    buffers: int
    line: int = LINE_BYTES

    def shared_bytes(self, results: Results, operands: LoadedOperands) -> int:
        """Shared bytes of a block."""
        return shared_bytes(results, self.config, operands, self.buffers, self.line)

    def fewer_stages(self, asked: TileConfig) -> FewerStages | None:
        """What became of the stages that were asked for, where these are more."""
        if self.config["stages"] == asked["stages"]:
            return None
        reason = "the shared memory of one holds what the epilogue reads"
        return FewerStages(self.config["stages"], reason)


@lru_cache(maxsize=4096)
def fit(results: Results, config: TileConfig, gpu: GpuSpec, operands: LoadedOperands) -> Fitted:
    """A configuration with its buffers for results.

    Where TMA brings what the epilogue reads, a tile's boxes are to be there when its sums are: they
    take a stage if there is no room for all beside these (bf16 4096³ with β = 1 in 209 µs in place
    of 215 on an H100, where three stages in place of four cost nothing). Consumers with a tile each
    lose more by the fourth stage (8192x16384x8192 with a residual in 3400 µs in place of 3247 on an
    H200 at its power limit, 3123 in place of 2792 after a rest) than they gain by a tile's boxes,
    for which one has time while the other multiplies. Two matrices in a buffer have narrow lines,
    for more buffers (with ReLU and an auxiliary output 4096x4096x1024 in 66 µs in place of 68).
    """
    if write_back(results, config, operands) != "FUSED_BY_TMA":
        return _fit_results(results, config, gpu, operands)
    ways = [config]
    if results.reads and config["stages"] > FEWEST_STAGES[config["pingpong"]]:
        ways.append(replace(config, stages=config["stages"] - 1))
    lines = BOX_LINE_BYTES[1:] if results.auxiliary else BOX_LINE_BYTES
    numbers = {
        each: _one_for_each_box(results, config, operands, each, MOST_FUSED_BUFFERS)
        for each in lines
    }
    whole = (Fitted(each, numbers[lines[0]], lines[0]) for each in ways)
    parts = (
        Fitted(each, count, box_line)
        for box_line, number in numbers.items()
        for each in reversed(ways)
        for count in range(number, FEWEST_BUFFERS - 1, -1)
    )
    fitting = (
        each
        for each in (*whole, *parts)
        if _fits(results, each.config, gpu, operands, each.buffers, each.line)
    )
    return next(fitting, Fitted(config, FEWEST_BUFFERS, lines[-1]))


def _fits(
    results: Results,
    config: TileConfig,
    gpu: GpuSpec,
    operands: LoadedOperands,
    count: int,
    box_line: int,
) -> bool:
    needed = shared_bytes(results, config, operands, count, box_line)
    return rules.dynamic_shared(needed, gpu) is None


def _fit_results(
    results: Results, config: TileConfig, gpu: GpuSpec, operands: LoadedOperands
) -> Fitted:
    """Where results are alone: the widest boxes of which the fewest buffers have room, and of these
    as many as have it, since with one for each box of a tile none waits for a store."""
    # Those of transposed results have one width; others have whole steps of columns.
    least = LINE_BYTES if operands.is_swapped(config) else COLUMN_STEP * results.item
    lines = [each for each in RESULT_LINE_BYTES if each >= least]
    roomy = (each for each in lines if _fits(results, config, gpu, operands, FEWEST_BUFFERS, each))
    box_line, most = next(roomy, lines[-1]), FEWEST_BUFFERS
    if write_back(results, config, operands) == "BY_TMA":
        most = _one_for_each_box(results, config, operands, box_line, MOST_BUFFERS)
    counts = (
        count
        for count in range(most, FEWEST_BUFFERS, -1)
        if _fits(results, config, gpu, operands, count, box_line)
    )
    return Fitted(config, next(counts, FEWEST_BUFFERS), box_line)


def _one_for_each_box(
    results: Results, config: TileConfig, operands: LoadedOperands, box_line: int, most: int
) -> int:
    """A buffer for each box of a consumer's tile, but no more than `most`."""
    return max(FEWEST_BUFFERS, min(boxes_of(results, config, operands, box_line).number, most))


def room(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, operands: LoadedOperands
) -> str | None:
    """Equal shares of what the blocks of a cluster load, and room for the stages and buffers that
    `fit` chooses: the fewest, where there is no more."""
    if (reason := operands.shares(config)) is not None:
        return reason
    return rules.dynamic_shared(fitted_bytes(Results.of(problem), config, gpu, operands), gpu)


def fitted_bytes(
    results: Results, config: TileConfig, gpu: GpuSpec, operands: LoadedOperands
) -> int:
    """Shared bytes of a block as `fit` has it."""
    return fit(results, config, gpu, operands).shared_bytes(results, operands)
