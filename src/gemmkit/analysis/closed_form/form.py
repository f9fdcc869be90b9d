"""`ClosedForm`: the time of a configuration's launches on a board.

An SM gets some CTAs, one after the other in groups as large as it can hold. A group takes as long
as the steps of its CTAs, which overlap, and what each tile needs before and after them. CTAs
that share a tile add their partial results up on top; and no product is faster than its
matrices come from memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gemmkit.analysis.closed_form.costs import (
    FIGURES,
    GENERAL,
    UNCORRECTED,
    BoardCosts,
    Correction,
    Costs,
    Figures,
    derived_costs,
    most_registers,
)
from gemmkit.analysis.machine import machine_of
from gemmkit.analysis.memory_ports import port_time
from gemmkit.analysis.occupancy import occupancy
from gemmkit.dtypes import FLOAT_BYTES, Dtype
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.work import PLAIN, VECTOR_BYTES, Demands, Work
from gemmkit.problem import GemmProblem

# Arithmetic and memory traffic overlap so far that the longer almost hides the shorter.
MEMORY_EXPONENT = 4.0

# Kernels for thin problems take their short side whole. Their costs are those of a single row;
# with so many a step takes twice as long.
DOUBLING_SIDE = 16

# Cycles in which a CTA fetches the tensor maps of a product and fills its pipeline anew: those with
# which 1000 products of 64³ and of 128³, 250 of 256³ and 64 of 64×1408×2048 in bf16 are estimated
# at 0.9 to 1.04 of what `grouped_wgmma` took on an H100 (19.4, 38.8, 41.4 and 142 µs).
NEXT_PRODUCT = 2000.0


class Estimate(NamedTuple):
    """An estimated launch: microseconds, and what of the board its CTAs fill.

    `blocks_per_sm` is what an SM holds with the registers that a thread is thought to need; where
    a CTA does not fit at all it is 0, and the time infinite. `waves` is the grid's CTAs over
    those that the board holds at once; `busy` is the share of all SMs' time, 0 to 1, in which each
    has a CTA; `memory_us` the time in which the matrices come from memory and go there once.

    The CTAs of the busiest SM spend `steps_us` in their steps along k, `tiles_us` before the first
    and after the last, and `sharing_us` on the fix-up of tiles that they share. Arithmetic and
    memory traffic overlap, so none of these is longer than the launch, but their sum may be.
    A launch before it, which copies operands, takes `before_us` of the `microseconds`. Of
    `memory_us`, no less than `port_us` goes by until each group of SMs has read its part.
    """

    microseconds: float
    work: Work
    blocks_per_sm: int
    waves: float
    busy: float
    memory_us: float
    steps_us: float = 0.0
    tiles_us: float = 0.0
    sharing_us: float = 0.0
    before_us: float = 0.0
    port_us: float = 0.0

    @property
    def waits_for_memory(self) -> bool:
        """Whether the matrices take longer to come and go than the busiest SM works on them."""
        return self.memory_us >= self.steps_us + self.tiles_us + self.sharing_us


class Shares(NamedTuple):
    """Factors of a launch's speed, 0 to 1: their product is its share of its pipe's peak.

    `inside` is the share of its tiles that lies inside C, `busy` that of all SMs' time in which
    each has a CTA, `speed` what an SM with its CTAs reaches. What is fixed comes on top.
    """

    inside: float
    busy: float
    speed: float


class Bandwidth(NamedTuple):
    """Shares of the published bandwidth of memory, 0 to 1, that a launch reads and writes at."""

    reading: float
    writing: float


class ClosedForm:
    """A configuration on a board: what its CTAs cost an SM there, and what launches take.

    Args:
        kernel: what is launched.
        config: one that its rule allows there.
        gpu: the board.
        board: what all configurations share on boards of this kind.
        correction: what was measured of this one.
        costs: its costs, where they do not follow from its demands.
        figures: what derived costs rest on.
    """

    def __init__(
        self,
        kernel: Kernel,
        config: TileConfig,
        gpu: GpuSpec,
        *,
        board: BoardCosts = GENERAL,
        correction: Correction = UNCORRECTED,
        costs: Costs | None = None,
        figures: Figures = FIGURES,
    ) -> None:
        self.kernel, self.config, self.gpu, self.board = kernel, config, gpu, board
        self._correction, self._given, self._figures = correction, costs, figures
        self._derived: dict[tuple[Demands, int, int, Dtype], Costs] = {}
        self._resident: dict[tuple[int, int, int], int] = {}

    def correction_for(self, dtype: Dtype) -> Correction:  # noqa: ARG002
        """What was measured of the costs for matrices of a type."""
        return self._correction

    def costs(self, work: Work, dtype: Dtype = "float32") -> Costs:
        """Cycles of a CTA of such work, for matrices of a type."""
        if self._given is not None:
            return self._given
        # Of what takes the short side whole one row counts; sums take one word or two.
        words = 2 if dtype == "float64" else 1
        results = work.rows * work.columns // max(work.thin, 1) * words
        key = work.demands, work.threads, results, dtype
        found = self._derived.get(key)
        if found is None:
            found = self._derived[key] = derived_costs(
                work.demands,
                work.threads,
                results,
                self.gpu,
                board=self.board,
                correction=self.correction_for(dtype),
                figures=self._figures,
            )
        return found

    def blocks_per_sm(self, work: Work, registers: int) -> int:
        """CTAs that an SM holds, where a thread has that many registers."""
        key = work.threads, work.shared_bytes, registers
        found = self._resident.get(key)
        if found is None:
            found = self._resident[key] = occupancy(
                self.gpu,
                registers=min(registers, most_registers(self.gpu, work.threads)),
                threads=work.threads,
                shared_bytes=work.shared_bytes,
                blocks=1,
            ).blocks_per_sm
        return found

    def estimate(self, problem: GemmProblem) -> Estimate:
        """The time of one launch, with operands initially in DRAM."""
        gpu, board = self.gpu, self.board
        work = self.kernel.work(problem, self.config, gpu)
        dtype = problem.dtype
        written = problem.written_bytes
        reading, writing = self.bandwidth(work.demands)
        peak = gpu.dram_gb_per_s * 1e3
        minimal_bytes = problem.minimal_bytes
        memory_us = ((minimal_bytes - written) / reading + written / writing) / peak
        if not work.ctas:
            return Estimate(0.0, work, 1, 0.0, 1.0, 0.0)
        # The busiest SM; CTAs go to where there is room.
        ctas = ceil_div(work.ctas, gpu.sm_count)
        busy = work.ctas / (ctas * gpu.sm_count)
        if work.threads > gpu.capability.max_threads_per_block:
            return Estimate(math.inf, work, 0, math.inf, busy, memory_us)
        costs = self.costs(work, dtype)
        resident = self.blocks_per_sm(work, costs.registers)
        if not resident:
            return Estimate(math.inf, work, resident, math.inf, busy, memory_us)
        units = max(work.ctas, work.tiles * work.parts)
        at_once = work.ctas if units > work.ctas else gpu.sm_count * resident
        port_us = port_time(minimal_bytes - written, units, at_once, gpu)
        memory_us = max(memory_us, port_us)
        groups, rest = divmod(ctas, resident)
        step_cycles = groups * self._step(costs, resident) if groups else 0.0
        if rest:
            step_cycles += self._step(costs, rest)
            groups += 1
        tile_cycles = costs.tile
        slower = costs.of_layout(problem.layout)
        if not problem.is_aligned(VECTOR_BYTES):
            # TMA loads rows that are aligned, or copies of them.
            slower *= 1.0 if work.demands.by_tma else costs.unaligned
            tile_cycles *= board.unaligned_tile
        step_cycles *= slower
        if work.thin:
            step_cycles *= 1 + work.thin / DOUBLING_SIDE
        # Once an SM holds several CTAs, a new one starts beside others that are at work.
        beside = 1 + (groups - 1) / resident
        in_steps, around, sharing = (
            work.steps * step_cycles,
            beside * work.visits * tile_cycles + self._finishing(work, reading * peak),
            0.0,
        )
        around += work.products * NEXT_PRODUCT
        if work.parts > 1:
            # Each CTA leaves its part of a tile, or two; the last of them reads them all.
            part = FLOAT_BYTES * work.rows * work.columns / board.partial_bytes
            sharing = beside * min(work.visits, 2) * (costs.sharing + 2 * part)
            sharing += (work.parts - 1) * part
        if work.longest > work.steps:
            # The CTA with the most steps continues when the others have ended.
            longest = work.longest * slower * costs.latency
            if longest + tile_cycles > in_steps + around + sharing:
                in_steps, around, sharing = longest, tile_cycles, 0.0
        compute_us = (in_steps + around + sharing) / gpu.clock_mhz
        power = MEMORY_EXPONENT
        total_us = board.launch_us + (compute_us**power + memory_us**power) ** (1 / power)
        # What was measured of whole launches is true of each of their parts, but memory is never
        # faster than its published bandwidth.
        launch = self.correction_for(dtype).launch
        least_us = minimal_bytes / peak
        scale = launch / gpu.clock_mhz
        before_us = 0.0
        if work.copied_bytes:
            moving = work.copied_bytes / (peak * board.dram_efficiency * work.copy_share)
            before_us = board.launch_us + board.copy_us + moving
        return Estimate(
            before_us + max(launch * total_us, board.launch_us + least_us),
            work,
            resident,
            work.ctas / (gpu.sm_count * resident),
            busy,
            max(launch * memory_us, least_us),
            scale * in_steps,
            scale * around,
            scale * sharing,
            before_us,
            port_us,
        )

    def _finishing(self, work: Work, bytes_per_us: float) -> float:
        """Cycles of what the epilogue adds to the write-back of a CTA's tiles, at this bandwidth of
        memory.

        Several teams of warps finish all tiles but the last while others multiply.
        """
        asked, pipes = work.finishing, self.gpu.pipes
        if asked == PLAIN:
            return 0.0
        special = asked.special * WARP_SIZE * pipes.issue / pipes.special_lanes
        on_scheduler = work.demands.results * math.ceil(work.team_warps / pipes.issue)
        each = on_scheduler * max(asked.issue, special)
        each += asked.waits * machine_of(self.gpu).l2_latency
        first_us = min(work.ctas, self.gpu.sm_count) * asked.first_bytes / bytes_per_us
        return (work.visits if work.teams == 1 else 1) * each + first_us * self.gpu.clock_mhz

    def bandwidth(self, demands: Demands) -> Bandwidth:
        """What accesses of this kind reach of the memory's bandwidth."""
        board = self.board
        return Bandwidth(
            board.dram_efficiency * (demands.streams or 1.0),
            board.dram_efficiency if demands.coalesced_stores else board.store_efficiency,
        )

    def shares(self, problem: GemmProblem, seen: Estimate) -> Shares:
        """Why the launch is slower than its pipe's peak, apart from what is fixed."""
        work = seen.work
        if not work.ctas or not seen.blocks_per_sm:
            return Shares(1.0, 1.0, 1.0)
        costs = self.costs(work, problem.dtype)
        together = min(ceil_div(work.ctas, self.gpu.sm_count), seen.blocks_per_sm)
        demands = work.demands
        rate = self.gpu.pipes.multiply_adds(demands.math)
        ideal = together * demands.multiply_adds * work.threads / rate
        area = work.rows * work.columns
        inside = problem.results / (work.tiles * area)
        return Shares(min(inside, 1.0), seen.busy, min(ideal / self._step(costs, together), 1.0))

    def _step(self, costs: Costs, together: int) -> float:
        """Cycles of a step of so many CTAs side by side on one SM.

        It is `latency` for one block, and approaches the sum of their `step`s if that is longer.
        """
        if together == 1:
            return costs.latency
        power = self.board.exponent
        total = costs.latency**power + (together * costs.step) ** power - costs.step**power
        return float(total ** (1 / power))
