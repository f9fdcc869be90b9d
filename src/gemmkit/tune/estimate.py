"""A closed-form time of any configuration of any kernel, for ranking thousands of them in a second.

It knows what the sizes of the tiles tell: the multiply-adds, fragments and copies of a step along
k, how many blocks an SM holds, how many it gets, and what must come from memory. No code is
compiled or run for it; `analysis.model` predicts from code, and takes about a second for each.

`STEP_CYCLES` and `ALONE` are fitted, on some two thousand trials of four shapes on an H100, where
the rank correlation with measured times is 0.6 to 0.7 among configurations near the best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmkit.analysis.machine import SCHEDULERS, fma_pipe_cycles, machine_of
from gemmkit.analysis.model import LAUNCH_US
from gemmkit.analysis.occupancy import occupancy
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.kernel import Kernel, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.ladder import vector_width
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# Registers of a thread besides its results and fragments: addresses, counters, copies under way.
OTHER_REGISTERS = 36
REGISTER_STEP = 8
# What a thread whose values do not fit its registers loses to memory.
SPILLING = 3.0

# Rungs before these read floats one by one, and wait for each tile before they multiply.
FIRST_WIDE, FIRST_OVERLAPPED, FIRST_RING = 6, 8, 10

# Wavefronts of a 128-bit fragment; of a single float, where lanes mostly read the same.
WIDE_WAVEFRONTS, NARROW_WAVEFRONTS = 2.0, 1.0
# A multiply-add in an outer product waits now and then for a bank of the register file.
BANK_WAITS = 0.1
# Address, test and copy of one float or vector.
COPY_INSTRUCTIONS = 2.0

# Cycles of a step in which all warps wait: the barrier, the first fragments.
STEP_CYCLES = 40.0
# Loads of a loop without barriers that are under way together.
UNROLLED = 16
# A warp that has its scheduler for itself waits for its own fragments and copies.
ALONE = 1.3
# Cycles in which a block that shares a tile announces itself and waits for the answer.
SHARING_CYCLES = 2500.0

# Units that work side by side: the longest time counts, and others a little.
EXPONENT = 4.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated launch, in microseconds, and how it fills the board.

    `waves` is the grid's blocks over those that the board holds at once, `blocks_per_sm` what an
    SM holds with the registers that are expected; 0 where a block does not fit at all. `shape` is
    what is launched.
    """

    microseconds: float
    blocks: int
    blocks_per_sm: int
    waves: float
    shape: LaunchShape


def estimate(
    kernel: Kernel,
    config: TileConfig,
    problem: GemmProblem,
    spec: GpuSpec,
    *,
    registers: int | None = None,
    shared_bytes: int | None = None,
) -> Estimate:
    """Estimate one launch.

    Args:
        kernel: what to launch.
        config: one that the kernel supports.
        problem: what it computes.
        spec: the board.
        registers: of a thread, where the compiler has told; else a guess.
        shared_bytes: of a block, static and dynamic, likewise.
    """
    shape = kernel.launch(problem, config, spec)
    threads = math.prod(shape.block)
    blocks = math.prod(shape.grid)
    guessed, spills = _registers(config, threads, spec)
    held = occupancy(
        spec,
        registers=guessed if registers is None else registers,
        threads=threads,
        shared_bytes=_shared(config, shape) if shared_bytes is None else shared_bytes,
        blocks=blocks,
    )
    if not held.blocks_per_sm or not blocks:
        time_us = math.inf if blocks else LAUNCH_US
        return Estimate(time_us, blocks, held.blocks_per_sm, 0.0, shape)
    cut = _Cut.of(kernel, config, problem, shape, threads)
    compute_us = cut.cycles(held.blocks_per_sm, spec) / spec.clock_mhz
    machine = machine_of(spec)
    dram_rate = spec.dram_gb_per_s * 1e3 * machine.dram_efficiency
    # Partial results go to the L2 and come back.
    l2_rate = machine.l2_bytes * spec.clock_mhz * spec.sm_count
    microseconds = _joined(compute_us, problem.minimal_bytes / dram_rate)
    microseconds += 2 * shape.workspace_bytes / l2_rate
    if spills and registers is None:
        microseconds *= SPILLING
    microseconds += LAUNCH_US
    return Estimate(microseconds, blocks, held.blocks_per_sm, held.waves_per_sm, shape)


@dataclass(frozen=True, slots=True)
class _Cut:
    """What one block does: `depth` steps of k, in `steps` tiles along it, on BM×BN results.

    `slots`, `multiply_adds` are of one warp and one k; `wavefronts` of shared memory alike.
    `copied` is the bytes that the block fetches for one k. `overlapped` says whether copies go on
    during arithmetic, `shared` whether blocks put partial results together.
    """

    blocks: int
    warps: int
    depth: float
    steps: float
    multiply_adds: float
    slots: float
    wavefronts: float
    copied: float
    results: int
    overlapped: bool
    shared: bool

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        config: TileConfig,
        problem: GemmProblem,
        shape: LaunchShape,
        threads: int,
    ) -> _Cut:
        rung = math.inf if kernel.rung is None else kernel.rung
        wide = 4 if rung >= FIRST_WIDE else 1
        blocks = math.prod(shape.grid)
        BM, BN, BK = config.BM or 1, config.BN or 1, config.BK or 1
        if config.BM is None:
            # The kernel takes all rows at once, or all columns.
            BM = ceil_div(problem.m * problem.n, blocks * BN)
        tiles = ceil_div(problem.m, BM) * ceil_div(problem.n, BN)
        TM, TN = config.TM or 1, config.TN or 1
        if config.BK is None:
            # No tiles in shared memory: each result reads its own row and column, through the L1.
            loads, copies = 2.0 * TM * TN, 0.0
            wavefronts = (BM + BN) / max(threads / WARP_SIZE, 1) if rung > 1 else 2.0 * WARP_SIZE
        else:
            # Groups of warps may share the k of a step: each reads the fragments of its part.
            groups = max(TM * TN * threads / (BM * BN), 1.0)
            loads = (TM + TN) / wide / groups
            vector = min(wide, vector_width(problem))
            # A ring of stages is filled by cp.async, which turns A around float by float.
            a_vector = 1 if rung >= FIRST_RING else vector
            copies = COPY_INSTRUCTIONS * (BM / a_vector + BN / vector) / threads
            wavefronts = loads * (WIDE_WAVEFRONTS if wide > 1 else NARROW_WAVEFRONTS)
        # Blocks that share tiles deal the steps out evenly.
        steps = max(tiles, 1) * ceil_div(problem.k, BK) / blocks
        depth = steps * BK
        if config.BK is None:
            steps /= UNROLLED
        results = BM * BN / threads
        return cls(
            blocks=blocks,
            warps=ceil_div(threads, WARP_SIZE),
            depth=depth,
            steps=steps,
            multiply_adds=results,
            slots=results * (1 + BANK_WAITS) + loads + copies + 0.5,
            wavefronts=wavefronts,
            copied=FLOAT_BYTES * (BM + BN),
            results=BM * BN,
            overlapped=rung >= FIRST_OVERLAPPED,
            shared=shape.workspace_bytes > 0,
        )

    def cycles(self, resident: int, spec: GpuSpec) -> float:
        """Cycles of the SM that gets the most blocks, `resident` of them at a time."""
        most = ceil_div(self.blocks, spec.sm_count)
        full, rest = divmod(most, min(resident, most))
        together = min(resident, most)
        cycles = full * self._together(together, spec)
        return cycles + (self._together(rest, spec) if rest else 0.0)

    def _together(self, count: int, spec: GpuSpec) -> float:
        """Cycles of so many blocks side by side: latency fades as others fill the gaps."""
        machine = machine_of(spec)
        one, many = (self._throughput(number, spec) for number in (1, count))
        waiting = STEP_CYCLES if self.overlapped else STEP_CYCLES + machine.l2_latency
        ends = 2 * machine.dram_latency + self.results * FLOAT_BYTES / machine.l1_fill_bytes
        if self.shared:
            ends += SHARING_CYCLES
        chain = self.depth * max(self.multiply_adds, self.slots) * ALONE
        alone = max(one, chain) + self.steps * waiting + ends
        power = machine.latency_exponent
        return float((alone**power + many**power - one**power) ** (1 / power))

    def _throughput(self, count: int, spec: GpuSpec) -> float:
        machine = machine_of(spec)
        on_scheduler = ceil_div(count * self.warps, SCHEDULERS)
        lanes = self.multiply_adds * fma_pipe_cycles(spec) * (1 + BANK_WAITS)
        busy = min(spec.sm_count, self.blocks)
        l2_rate = min(machine.l2_bytes * spec.sm_count / busy, machine.l1_fill_bytes)
        return self.depth * _joined(
            on_scheduler * max(lanes, self.slots),
            count * self.warps * self.wavefronts,
            count * self.copied / l2_rate,
        )


def _registers(config: TileConfig, threads: int, spec: GpuSpec) -> tuple[int, bool]:
    """Registers that a thread will take, and whether it would like more than it can have."""
    TM, TN = config.TM or 1, config.TN or 1
    wanted = TM * TN + 2 * (TM + TN) + OTHER_REGISTERS
    limits = spec.capability
    each = limits.registers_per_block // threads // REGISTER_STEP * REGISTER_STEP
    most = min(limits.max_registers_per_thread, each)
    if wanted <= most:
        return -(-wanted // REGISTER_STEP) * REGISTER_STEP, False
    # What is beyond fragments and results can mostly be done without.
    return most, wanted - OTHER_REGISTERS // 2 > most


def _shared(config: TileConfig, shape: LaunchShape) -> int:
    """Shared memory of a block: as the launch asks, or two pairs of tiles."""
    if shape.shared_bytes or config.BK is None:
        return shape.shared_bytes
    return 2 * FLOAT_BYTES * config.BK * ((config.BM or 1) + (config.BN or 1))


def _joined(*times: float) -> float:
    longest = max(times)
    if longest == 0:
        return 0.0
    return float(longest * sum((each / longest) ** EXPONENT for each in times) ** (1 / EXPONENT))
