"""`ClosedForm`: the time of a configuration's launches on a board.

An SM gets some blocks, one after the other in groups as large as it can hold. A group takes as long
as the steps of its blocks, which overlap, and what each tile needs before and after them. Blocks
that share a tile put their partial results together on top; and no product is faster than its
matrices come from memory.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

from gemmkit.analysis.closed_form.costs import (
    FIRST_OVERLAPPED,
    GENERAL,
    BoardCosts,
    Costs,
    derived_costs,
    most_registers,
)
from gemmkit.analysis.closed_form.work import Cutter, Work
from gemmkit.analysis.occupancy import occupancy
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launches import vector_width
from gemmkit.kernels.plan import LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.rules import PAD, STATIC_SHARED_BYTES, stage_bytes
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# Arithmetic and memory traffic overlap so far that the longer almost hides the shorter.
MEMORY_EXPONENT = 4.0

# Kernels for skinny products take their short side whole. Their costs are those of a single row;
# with so many a step takes twice as long.
DOUBLING_SIDE = 16


class Estimate(NamedTuple):
    """An estimated launch: microseconds, and how its blocks fill the board.

    `blocks_per_sm` is the blocks per SM with the estimated registers per thread; if a block does
    not fit it is 0, and the time infinite. `waves` is the grid's blocks over those that the board
    holds at once; `busy` is the share of the SMs' time, 0 to 1, in which they have a block;
    `memory_us` the time to read and write each matrix once.
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
    each has a block, `speed` what an SM with its blocks reaches. What is fixed comes on top.
    """

    inside: float
    busy: float
    speed: float


class ClosedForm:
    """A configuration on a board: what its blocks cost an SM there, and what launches take.

    Args:
        kernel: what is launched.
        config: one that its rule allows there.
        gpu: the board.
        board: what all configurations share on boards of this kind.
        costs: the configuration's own, where they were measured; else they follow from its sizes.
        launched: a launch of it, where the caller has one at hand.
    """

    def __init__(
        self,
        kernel: Kernel,
        config: TileConfig,
        gpu: GpuSpec,
        *,
        board: BoardCosts = GENERAL,
        costs: Costs | None = None,
        launched: LaunchShape | None = None,
    ) -> None:
        self.kernel, self.config, self.gpu, self.board = kernel, config, gpu, board
        self.cutter = Cutter(kernel, config, gpu, launched)
        self._costs = costs

    @cached_property
    def costs(self) -> Costs:
        """Cycles per block, registers per thread."""
        return self._costs or derived_costs(self.kernel, self.config, self.cutter.threads, self.gpu)

    @cached_property
    def blocks_per_sm(self) -> int:
        """Blocks per SM, with the estimated registers per thread."""
        shared_bytes = self.cutter.tile_shape.shared_bytes
        if not shared_bytes and self.config.BK:
            rung = self.kernel.rung
            pairs = 2 if rung is None or rung >= FIRST_OVERLAPPED else 1
            shared_bytes = pairs * stage_bytes(self.config, PAD)
        if "arrivals" in self.kernel.signature:
            shared_bytes += STATIC_SHARED_BYTES
        threads = self.cutter.threads
        found = occupancy(
            self.gpu,
            registers=min(self.costs.registers, most_registers(self.gpu, threads)),
            threads=threads,
            shared_bytes=shared_bytes,
            blocks=1,
        )
        return found.blocks_per_sm

    def estimate(self, problem: GemmProblem) -> Estimate:
        """The time of one launch, with operands initially in DRAM."""
        return self.estimate_work(
            self.cutter.work(problem),
            problem.minimal_bytes,
            aligned=vector_width(problem) > 1,
            shorter=min(problem.m, problem.n),
        )

    def estimate_work(
        self, work: Work, minimal_bytes: int, *, aligned: bool, shorter: int = 1
    ) -> Estimate:
        """The same for work that is already divided.

        Args:
            work: what the launch does.
            minimal_bytes: what it reads and writes at least.
            aligned: whether rows are copied in vectors.
            shorter: the shorter side of C, which kernels for skinny products take whole.
        """
        gpu, costs, board = self.gpu, self.costs, self.board
        resident = self.blocks_per_sm
        memory_us = minimal_bytes / (board.dram_efficiency * gpu.dram_gb_per_s * 1e3)
        if not work.blocks:
            return Estimate(0.0, work, resident, 0.0, 1.0, 0.0)
        # The busiest SM; blocks go to SMs with room.
        blocks = ceil_div(work.blocks, gpu.sm_count)
        busy = work.blocks / (blocks * gpu.sm_count)
        if not resident:
            return Estimate(math.inf, work, resident, math.inf, busy, memory_us)
        groups, rest = divmod(blocks, resident)
        step_cycles = groups * self._step(resident) if groups else 0.0
        if rest:
            step_cycles += self._step(rest)
            groups += 1
        if not aligned:
            step_cycles *= costs.unaligned
        if self.config.BM is None:
            step_cycles *= 1 + shorter / DOUBLING_SIDE
        # If an SM holds several blocks, a new one starts while others are running.
        beside = 1 + (groups - 1) / resident
        cycles = work.steps * step_cycles + beside * work.visits * costs.tile
        if work.parts > 1:
            # Each block writes one or two partial results; the last one reads them all.
            part = FLOAT_BYTES * work.rows * work.columns / board.partial_bytes
            cycles += beside * min(work.visits, 2) * (costs.sharing + 2 * part)
            cycles += (work.parts - 1) * part
        compute_us = cycles / gpu.clock_mhz
        power = MEMORY_EXPONENT
        return Estimate(
            board.launch_us + (compute_us**power + memory_us**power) ** (1 / power),
            work,
            resident,
            work.blocks / (gpu.sm_count * resident),
            busy,
            memory_us,
        )

    def shares(self, problem: GemmProblem, seen: Estimate) -> Shares:
        """Why the launch is slower than the board's fp32 peak, apart from what is fixed."""
        work, lanes = seen.work, self.gpu.capability.fp32_lanes_per_sm
        if not work.blocks or not seen.blocks_per_sm:
            return Shares(1.0, 1.0, 1.0)
        together = min(ceil_div(work.blocks, self.gpu.sm_count), seen.blocks_per_sm)
        area = work.rows * work.columns
        ideal = together * area * (self.config.BK or 1) / lanes
        inside = problem.m * problem.n * problem.batch / (work.tiles * area)
        return Shares(inside, seen.busy, ideal / self._step(together))

    def _step(self, together: int) -> float:
        """Cycles of a step of this many concurrent blocks on one SM.

        It is `latency` for one block, and approaches the sum of their `step`s if that is longer.
        """
        if together == 1:
            return self.costs.latency
        power, step = self.board.exponent, self.costs.step
        total = self.costs.latency**power + (together * step) ** power - step**power
        return float(total ** (1 / power))
