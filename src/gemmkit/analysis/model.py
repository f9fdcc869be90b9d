"""The predicted time of a kernel on a board, from its code alone, and what limits it.

An SM holds several blocks at once. One block alone takes as long as its warps' chains of dependent
instructions (`warp_time`); many take as long as the busiest unit of the SM needs for all of them.
The two are combined so that latency counts in full for one block and is hidden as others fill the
gaps. Nothing here was measured on the requested board: every figure is a prediction.

Five parameters are fitted (`Machine.tile_spread`, `Machine.latency_exponent`,
`Machine.unit_exponent`; for loads by TMA `Machine.tma_latency` and `Machine.load_exponent`);
everything else is a published or measured constant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.block_profile import BlockProfile, profile_block
from gemmkit.analysis.copy_latency import Loads, loads_of
from gemmkit.analysis.demand import Demand, demand_of, multiplies
from gemmkit.analysis.machine import COPY_US, Machine, machine_of, pipe_cycles
from gemmkit.analysis.memory_ports import port_time
from gemmkit.analysis.occupancy import Occupancy, launch_occupancy
from gemmkit.analysis.prediction import Prediction
from gemmkit.analysis.specialized import TileTimes, multiplying_warps
from gemmkit.analysis.terms import Parts, terms_of
from gemmkit.analysis.traffic import Traffic, traffic
from gemmkit.analysis.warp_time import Segment, segments
from gemmkit.errors import UsageError
from gemmkit.gpu import FP32, GpuSpec, MathPipe
from gemmkit.jit.binary import Binary
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem


def predict(
    kernel: Kernel,
    problem: GemmProblem,
    spec: GpuSpec,
    *,
    config: TileConfig | None = None,
    binary: Binary | None = None,
    cache_dir: Path | None = None,
) -> Prediction:
    """Predict the time of one launch on a board, with operands initially in DRAM.

    Args:
        kernel: the kernel to launch.
        problem: what it computes.
        spec: the board.
        config: by default the kernel's own.
        binary: the kernel, if it is already compiled for this problem and configuration.
        cache_dir: root of the compiler's cache; by default the user's.

    Raises:
        UnsupportedProblem: the kernel refuses the problem or the configuration.
        UsageError: the problem is empty, or the kernel's register count is unknown.
        DeviceError: the kernel failed when a block of it was run.
    """
    if not problem.flops:
        raise UsageError(f"{problem.shape} is empty, so there is nothing to predict")
    profile = profile_block(
        kernel, problem, spec, config=config, binary=binary, cache_dir=cache_dir
    )
    return predict_profile(profile, problem, spec)


def predict_profile(
    profile: BlockProfile,
    problem: GemmProblem,
    spec: GpuSpec,
    *,
    machine: Machine | None = None,
) -> Prediction:
    """`predict` for a block that is already profiled, for this problem and board.

    `machine` overrides the constants of the board's generation.

    Raises:
        UsageError: a block does not fit on an SM, or its register count is unknown.
    """
    occupied = launch_occupancy(profile.plan, profile.binary, spec)
    if not occupied.blocks_per_sm:
        raise UsageError(
            f"'{profile.plan.kernel}': a block does not fit on an SM of {spec.name} "
            f"({occupied.limiter})"
        )
    return _Model(profile, problem, spec, occupied, machine or machine_of(spec)).prediction()


@dataclass(frozen=True, slots=True)
class SegmentTime:
    """A segment as all warps of one block execute it, with no other block on the SM.

    `cycles` is the time of one execution, `busy` that of the busiest unit of the SM, `multiplying`
    that in which a scheduler issues multiply-adds; `turns` is how often each warp executes it.
    """

    segment: Segment
    turns: float
    cycles: float
    busy: float
    multiplying: float


def block_segments(
    profile: BlockProfile, problem: GemmProblem, spec: GpuSpec
) -> tuple[Machine, list[SegmentTime]]:
    """The segments of a block alone on an SM, in the first wave, and the constants used.

    Raises:
        UsageError: the block's register count is unknown.
    """
    occupied = launch_occupancy(profile.plan, profile.binary, spec)
    model = _Model(profile, problem, spec, occupied, machine_of(spec))
    return model.machine, list(model.segment_times(model.machine.dram_latency))


class _Model:
    """The times of one launch, in cycles of the boost clock."""

    def __init__(
        self,
        profile: BlockProfile,
        problem: GemmProblem,
        spec: GpuSpec,
        occupied: Occupancy,
        machine: Machine,
    ) -> None:
        self.profile, self.problem, self.spec, self.occupied = profile, problem, spec, occupied
        self.machine = replace(machine, ffma_issue=max(profile.ffma_issue, pipe_cycles(spec)))
        self.executed: NDArray[np.float64] = (
            profile.executed(problem.mean_k, profile.visits) / profile.warps
        )
        self.traffic: Traffic = traffic(profile, problem, spec, occupied)
        # Blocks on the busiest SM; one that ends makes room for the next.
        self.blocks = math.ceil(profile.plan.blocks / spec.sm_count)
        self._found: dict[float, list[tuple[Segment, float]]] = {}
        self._found_loads: dict[float, Loads | None] = {}

    def prediction(self) -> Prediction:
        cycles = self._waves() + self._fix_up
        compute_us = cycles / self.spec.clock_mhz
        dram_us = self._dram_us()
        microseconds = self.spec.pipes.launch_us + self.machine.joined(compute_us, dram_us)
        microseconds += self._before_us
        terms = terms_of(self._parts(dram_us), self.spec)
        return Prediction(
            microseconds=microseconds,
            tflops=self.problem.flops / microseconds / 1e6,
            limiter=terms[0].name,
            terms=terms,
            occupancy=self.occupied,
            busy_share=self._busy_share,
            shared_bytes=self.traffic.shared_bytes,
            l2_bytes=self.traffic.l2_bytes,
            dram_bytes=self.traffic.dram_bytes,
            pipe=self._pipe,
        )

    @property
    def _busy_share(self) -> float:
        """The share of all SMs' time in which they have a block with a tile left."""
        blocks = self.profile.plan.blocks / (self.blocks * self.spec.sm_count)
        return blocks * min(self.profile.tiles / self.profile.visits, 1.0)

    def _parts(self, dram_us: float) -> Parts:
        waves = math.ceil(self.blocks / self.occupied.blocks_per_sm)
        chain = self._chain(self.machine.dram_latency)
        finishing = 0.0
        if self._multiplying is not None:
            found = self._specialized(self._multiplying, self.machine.dram_latency)
            finishing = waves * found.exposed
        loads = self._loads(self.machine.dram_latency)
        return Parts(
            whole=self._whole,
            warps=self.blocks * self.profile.warps,
            waves=waves,
            l2=self.blocks * self._l2_cycles,
            chain=chain + (waves - 1) * self._chain(self._warm_latency),
            fix_up=self._fix_up,
            finishing=finishing,
            loads=waves * loads.cycles if loads is not None else 0.0,
            of_loads=loads.meaning(self.spec.clock_mhz) if loads is not None else "",
            dram_us=dram_us,
            before_us=self._before_us,
        )

    # --- time ------------------------------------------------------------------------------

    @property
    def _before_us(self) -> float:
        """The launch that comes first, which copies operands at the speed of memory or at a share
        of it."""
        moved = self.profile.moved_before
        if not moved:
            return 0.0
        rate = self.spec.dram_gb_per_s * 1e3 * self.machine.dram_efficiency
        rate *= self.profile.copy_share
        return self.spec.pipes.launch_us + COPY_US + moved / rate

    def _waves(self) -> float:
        """The busiest SM's cycles: a first wave with cold caches, then warm ones."""
        resident = self.occupied.blocks_per_sm
        first = min(self.blocks, resident)
        full, rest = divmod(self.blocks - first, resident)
        cycles = self._together(first, self.machine.dram_latency)
        if full:
            cycles += full * self._together(resident, self._warm_latency)
        if rest:
            cycles += self._together(rest, self._warm_latency)
        if self.problem.groups is not None:
            # The block with the longest k continues when the others have ended.
            longest = self.problem.k / self.problem.mean_k / max(self.profile.tiles, 1.0)
            cycles = max(cycles, longest * self._block_alone(self.machine.dram_latency))
        return cycles

    @property
    def _fix_up(self) -> float:
        """Cycles in which the last block of a tile increments the counter and adds up all parts.

        Fence, increment and first read are one L2 round trip each, in sequence; the parts then
        arrive at the bandwidth of one SM.
        """
        plan = self.profile.plan
        if not plan.semaphores:
            return 0.0
        parts = plan.workspace_bytes / plan.semaphores
        return 3 * self.machine.l2_latency + parts / self.machine.l1_fill_bytes

    @property
    def _warm_latency(self) -> float:
        """Cycles of an L1 miss after the first wave, when the L2 holds all or most operands."""
        near, far = self.machine.l2_latency, self.machine.dram_latency
        return near + self.traffic.reread * (far - near)

    def _chain(self, memory_latency: float) -> float:
        """Cycles of one warp that has the SM to itself."""
        return sum(turns * each.latency for each, turns in self._segments(memory_latency))

    def _together(self, blocks: int, memory_latency: float) -> float:
        """Cycles of this many concurrent blocks on one SM."""
        alone = self._block_alone(memory_latency)
        return self.machine.faded(alone, self._throughput(1), self._throughput(blocks))

    def _block_alone(self, memory_latency: float) -> float:
        """Cycles of one block, from barrier to barrier."""
        if self._multiplying is not None:
            return self._specialized(self._multiplying, memory_latency).total
        steps = sum(each.turns * each.cycles for each in self.segment_times(memory_latency))
        return steps + self._awaited(steps, memory_latency)

    def _loads(self, memory_latency: float) -> Loads | None:
        """The stages of a circular buffer that bulk copies fill."""
        if memory_latency not in self._found_loads:
            self._found_loads[memory_latency] = loads_of(
                self.profile, self.problem, self.spec, self.machine, memory_latency
            )
        return self._found_loads[memory_latency]

    def _awaited(self, steps: float, memory_latency: float) -> float:
        """Cycles that waits for the loads of later stages add to those of the steps of a block."""
        loads = self._loads(memory_latency)
        if loads is None:
            return 0.0
        together = self.machine.joined(steps, loads.cycles, power=self.machine.load_exponent)
        return loads.awaited * (together - steps)

    @cached_property
    def _multiplying(self) -> frozenset[int] | None:
        """What the warps that multiply execute, where others bring their operands."""
        return multiplying_warps(self.profile)

    def _specialized(self, own: frozenset[int], memory_latency: float) -> TileTimes:
        """The tiles of one block whose warps bring operands or multiply.

        Steps take as long as the tensor cores or the delivery of their operands: both are
        asynchronous and hold up nothing but each other. Before them come the latency of the first
        stage and, beside it on the way from DRAM, what the write-back of the first tiles reads:
        that of later ones is brought while the tiles before are multiplied.
        """
        profile, tiles = self.profile, max(self.profile.visits, 1.0)
        low, high = profile.executed_at
        once = self.machine.tile_spread * memory_latency + self._first_boxes
        steps = finishing = 0.0
        for segment, turns in self._segments(memory_latency):
            head, all_warps = segment.head, turns * profile.warps
            if head not in own:
                continue
            if high[head] > low[head] or self._demand(segment.instructions).tensor:
                steps += self._by_warps(segment, turns, all_warps)
                continue
            of_tile = self._of_tile(head, all_warps)
            finishing += self._by_warps(segment, turns, of_tile)
            once += self._by_warps(segment, turns, max(all_warps - of_tile * tiles, 0.0))
        steps = max(steps, self._l2_cycles)
        steps += self._awaited(steps, memory_latency)
        return TileTimes(once, steps, finishing, tiles, profile.teams)

    def _of_tile(self, head: int, all_warps: float) -> float:
        """Executions of a segment by a block's warps in each tile, of `all_warps` in the launch.

        Where runs with more tiles have not told, a block does the same in each tile.
        """
        tiles, per_tile = self.profile.visits, self.profile.executed_per_tile
        if tiles <= 1:
            return all_warps
        return float(per_tile[head]) if per_tile.any() else all_warps / tiles

    def _by_warps(self, segment: Segment, turns: float, count: float) -> float:
        """Cycles of so many executions of a segment by warps of a block, all at once if they can;
        each of them executes it `turns` times in the launch."""
        warps = min(max(count, 1.0), self.profile.warps)
        demand = self._demand(segment.instructions)
        one, many = (self._busiest(demand, each) / turns for each in (1, warps))
        return count / warps * self.machine.faded(segment.latency, one, many)

    @property
    def _first_boxes(self) -> float:
        """Cycles in which DRAM sends all SMs what the write-back of their first tiles reads."""
        profile, spec = self.profile, self.spec
        first = min(profile.teams, profile.tiles) * profile.copied_added_bytes
        rate = spec.dram_gb_per_s * 1e3 * self.machine.dram_efficiency
        return min(profile.plan.blocks, spec.sm_count) * first / rate * spec.clock_mhz

    def segment_times(self, memory_latency: float) -> Iterator[SegmentTime]:
        """The segments of one block alone."""
        warps, uneven = self.profile.warps, self.profile.turns_of_schedulers
        on_scheduler = uneven * math.ceil(warps / self.spec.pipes.issue)
        for segment, turns in self._segments(memory_latency):
            demand = self._demand(segment.instructions)
            one = self._busiest(demand, 1) / turns
            all_warps = self._busiest(demand, warps, uneven) / turns
            yield SegmentTime(
                segment=segment,
                turns=turns,
                cycles=self.machine.faded(segment.latency, one, all_warps),
                busy=all_warps,
                multiplying=on_scheduler * (demand.fma + demand.tensor) / turns,
            )

    def _throughput(self, blocks: int) -> float:
        """Cycles of the units for this many blocks, without latency."""
        busy = self._busiest(self._whole, blocks * self.profile.warps)
        if self._multiplying is not None:
            return max(busy, blocks * self._l2_cycles)
        return self.machine.joined(busy, blocks * self._l2_cycles)

    def _busiest(self, demand: Demand, warps: float, uneven: float = 1.0) -> float:
        """Cycles of the busiest unit; one scheduler's work may be `uneven` times the mean."""
        on_scheduler = uneven * math.ceil(warps / self.spec.pipes.issue)
        return self.machine.joined(
            on_scheduler * demand.dispatch,
            warps * demand.data,
            warps * demand.tag,
        )

    def _segments(self, memory_latency: float) -> list[tuple[Segment, float]]:
        """Segments that are executed, and how often each warp executes them."""
        if memory_latency not in self._found:
            found = segments(self.profile, self.machine, memory_latency)
            turns = [(segment, float(self.executed[segment.head])) for segment in found]
            running = [(segment, count) for segment, count in turns if count > 0]
            self._found[memory_latency] = running
        return self._found[memory_latency]

    @cached_property
    def _whole(self) -> Demand:
        return self._demand(range(len(self.profile.actions)))

    def _demand(self, numbers: Iterable[int]) -> Demand:
        return demand_of(numbers, self.profile, self.executed, self.spec, self.machine)

    @cached_property
    def _pipe(self) -> MathPipe:
        """What makes most of the multiply-adds."""
        found: Counter[MathPipe] = Counter()
        for number, action in enumerate(self.profile.actions):
            pipe, amount = multiplies(action.form)
            if pipe is not None:
                found[pipe] += int(amount * float(self.executed[number]))
        return max(found, key=found.__getitem__, default=FP32)

    @cached_property
    def _l2_cycles(self) -> float:
        """Cycles in which the L2 delivers the busiest block's bytes to an SM: its share of the
        bandwidth, or its port."""
        blocks, pipes = self.profile.plan.blocks, self.spec.pipes

        def cycles(nbytes: float, rate: float) -> float:
            return nbytes / blocks / self.machine.delivered(rate, self.spec, blocks)

        copied = self.traffic.tma_bytes
        rest = cycles(self.traffic.l2_bytes - copied, pipes.l2_bytes)
        most = self.profile.visits / self.profile.tiles
        return most * (rest + cycles(copied, pipes.tma_bytes))

    def _dram_us(self) -> float:
        """The time of all traffic at the memory's rate, or of what is read at that of the ports."""
        rate = self.spec.dram_gb_per_s * 1e3 * self.machine.dram_efficiency
        nbytes, blocks = self.traffic.dram_bytes, self.profile.plan.blocks
        parts = round(blocks * max(self.profile.tiles, 1.0))
        # Blocks that go on to another tile are all there from the beginning.
        resident = self.spec.sm_count * self.occupied.blocks_per_sm
        at_once = blocks if parts > blocks else resident
        read = nbytes - self.problem.written_bytes
        return max(nbytes / rate, port_time(read, parts, at_once, self.spec))
