"""The closed-form time of a launch on a board: waves of blocks, steps along k, and what is fixed.

An SM gets some blocks, one after the other in groups as large as it can hold. A group takes as long
as the steps of its blocks, which overlap, and what each tile needs before and after them. Blocks
that share a tile put their partial results together on top; and no product is faster than its
matrices come from memory. No code is read or run for it: `analysis.model` predicts from code.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from gemmkit.analysis.occupancy import occupancy
from gemmkit.dispatch.candidates import Candidate
from gemmkit.dispatch.costs import BoardCosts, Costs, board_costs
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import LaunchShape, ceil_div
from gemmkit.kernels.ladder import vector_width
from gemmkit.kernels.rules import PAD, stage_bytes
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# Arithmetic and reading from memory overlap so far that the longer all but hides the shorter.
MEMORY_EXPONENT = 4.0


class Work(NamedTuple):
    """How a launch cuts a problem up.

    `tiles` are those of C; `steps` are those of BK along k that one block makes, in `visits`
    tiles; `parts` is how many blocks share a tile, 1 where none does.
    """

    blocks: int
    tiles: int
    steps: int
    visits: int
    parts: int


class Estimate(NamedTuple):
    """An estimated launch: microseconds, and what of the board its blocks fill.

    `waves` is the grid's blocks over those that the board holds at once; `busy` is the share of all
    SMs' time, 0 to 1, in which each has a block; `memory_us` the time in which the matrices come
    from memory and go there once.
    """

    microseconds: float
    work: Work
    blocks_per_sm: int
    waves: float
    busy: float
    memory_us: float


class Shares(NamedTuple):
    """Factors of a launch's speed, 0 to 1: their product is its share of the fp32 peak.

    `inside` is the share of its tiles that lies inside C, `busy` that of all SMs' time in which
    each has a block, `speed` what an SM with its blocks reaches.
    """

    inside: float
    busy: float
    speed: float


class Contender:
    """A candidate on a board: what it costs there, and how many of its blocks an SM holds.

    The board must be able to run it. `costs` are those of the board's kind by default.
    """

    def __init__(self, candidate: Candidate, gpu: GpuSpec, costs: BoardCosts | None = None) -> None:
        self.candidate, self.gpu = candidate, gpu
        self.kernel, self.config = candidate.kernel, candidate.config
        self.board = costs or board_costs(gpu.capability.major, gpu.capability.minor)

    @cached_property
    def costs(self) -> Costs:
        """Cycles of a block, registers of a thread."""
        return self.board.of(self.candidate.label, self.config, self._threads, self.gpu)

    @cached_property
    def blocks_per_sm(self) -> int:
        """Blocks that an SM holds, by the registers that a thread is thought to need."""
        shared_bytes = self._tile_shape.shared_bytes
        if not shared_bytes and self.config.BK:
            shared_bytes = 2 * stage_bytes(self.config, PAD)
        found = occupancy(
            self.gpu,
            registers=min(self.costs.registers, most_registers(self.gpu, self._threads)),
            threads=self._threads,
            shared_bytes=shared_bytes,
            blocks=1,
        )
        return max(found.blocks_per_sm, 1)

    def estimate(self, problem: GemmProblem) -> Estimate:
        """The time of one launch, with operands that start in DRAM."""
        gpu, costs, board = self.gpu, self.costs, self.board
        work = self._work(problem)
        resident = self.blocks_per_sm
        memory_us = problem.minimal_bytes / (board.dram_efficiency * gpu.dram_gb_per_s * 1e3)
        if not work.blocks:
            return Estimate(0.0, work, resident, 0.0, 1.0, 0.0)
        # The busiest SM; blocks go to where there is room.
        blocks = ceil_div(work.blocks, gpu.sm_count)
        groups, rest = divmod(blocks, resident)
        step_cycles = groups * self._step(resident)
        if rest:
            step_cycles += self._step(rest)
            groups += 1
        if vector_width(problem) == 1:
            step_cycles *= costs.unaligned
        # Once an SM holds several blocks, a new one starts beside others that are at work.
        starts = work.visits * (1 + (groups - 1) / resident)
        cycles = work.steps * step_cycles + starts * costs.tile
        if work.parts > 1:
            rows, columns = self._tile(problem)
            moved = (1 + work.parts) * FLOAT_BYTES * rows * columns
            cycles += costs.sharing + moved / board.partial_bytes
        compute_us = cycles / gpu.clock_mhz
        power = MEMORY_EXPONENT
        return Estimate(
            board.launch_us + (compute_us**power + memory_us**power) ** (1 / power),
            work,
            resident,
            work.blocks / (gpu.sm_count * resident),
            work.blocks / (blocks * gpu.sm_count),
            memory_us,
        )

    def shares(self, problem: GemmProblem, seen: Estimate) -> Shares:
        """Why the launch is slower than the board's fp32 peak, apart from what is fixed."""
        work, lanes = seen.work, self.gpu.capability.fp32_lanes_per_sm
        if not work.blocks:
            return Shares(1.0, 1.0, 1.0)
        rows, columns = self._tile(problem)
        together = min(ceil_div(work.blocks, self.gpu.sm_count), seen.blocks_per_sm)
        ideal = together * rows * columns * (self.config.BK or 1) / lanes
        inside = problem.m * problem.n / (work.tiles * rows * columns)
        return Shares(inside, seen.busy, ideal / self._step(together))

    def _tile(self, problem: GemmProblem) -> tuple[int, int]:
        """Rows and columns of a block's tile; kernels for skinny products take a side whole."""
        BM, BN = self.config.BM, self.config.BN or 1
        if BM is not None:
            return BM, BN
        return (max(problem.m, 1), BN) if problem.m <= problem.n else (BN, max(problem.n, 1))

    def _step(self, together: int) -> float:
        """Cycles of a step of so many blocks side by side on one SM.

        It is `latency` for one, and comes close to their `step`s together where those are longer.
        """
        if together == 1:
            return self.costs.latency
        power, step = self.board.exponent, self.costs.step
        total = self.costs.latency**power + (together * step) ** power - step**power
        return float(total ** (1 / power))

    def _work(self, problem: GemmProblem) -> Work:
        """Blocks that are fewer than the tiles take several; those that share tiles, even parts."""
        shape, config = self.kernel.launch(problem, self.config, self.gpu), self.config
        blocks = shape.grid[0] * shape.grid[1] * shape.grid[2]
        tile_rows, tile_columns = self._tile(problem)
        tiles = ceil_div(problem.m, tile_rows) * ceil_div(problem.n, tile_columns)
        # BLAS: α = 0 never reads A or B.
        steps = max(ceil_div(problem.k if problem.alpha else 0, config.BK or 1), 1)
        if not blocks:
            return Work(0, tiles, 0, 0, 1)
        own = ceil_div(tiles * steps, blocks)
        if not shape.arrivals:
            visits = ceil_div(tiles, blocks)
            return Work(blocks, tiles, max(own, visits * steps), visits, 1)
        parts = max(2, ceil_div(blocks, shape.arrivals))
        return Work(blocks, tiles, own, 1 + ceil_div(own, steps) if blocks < tiles else 1, parts)

    @cached_property
    def _tile_shape(self) -> LaunchShape:
        """The launch of one tile: threads and shared memory are those of every problem."""
        side = max(self.config.BM or 1, self.config.BN or 1)
        return self.kernel.launch(GemmProblem(side, side, side), self.config, self.gpu)

    @cached_property
    def _threads(self) -> int:
        x, y, z = self._tile_shape.block
        return x * y * z


def most_registers(gpu: GpuSpec, threads: int) -> int:
    """Registers that a thread can have if at least one block is to fit, in the compiler's steps."""
    capability = gpu.capability
    return min(
        capability.registers_per_block // threads // 8 * 8, capability.max_registers_per_thread
    )
