"""The cost of a configuration in cycles of an SM, from its tile sizes and its rung.

Cycles of an SM hold for every board of the same compute capability, whatever its number of SMs,
clock and memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from gemmkit.analysis.machine import SCHEDULERS, fma_pipe_cycles, machine_of
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.rules import MAX_RESULTS_IN_128
from gemmkit.problem import FLOAT_BYTES

# The first rungs that have tiles in shared memory, read four floats at a time, have launch bounds,
# fetch the next tiles during arithmetic, and copy without registers. A kernel of a user's own
# counts as one of the last.
FIRST_TILED, FIRST_WIDE, FIRST_BOUNDED, FIRST_OVERLAPPED, FIRST_RING = 3, 6, 7, 8, 10

# Registers of a thread besides its results and its fragments, by what its rung does: addresses,
# counters, floats on their way. A thread of `gemm_skinny` has all of a piece's there.
OTHER_REGISTERS, RING_REGISTERS, STREAMING_REGISTERS = 30, 60, 110
# Register limits from launch bounds: for a thread with few results, and for any.
BOUNDED_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 128, 255, 8

# Floats per vector, and wavefronts in which a warp reads one vector per lane.
VECTOR, FRAGMENT_WAVEFRONTS = 4, 2
# Wavefronts in which a warp reads a float of 32 rows of A, and one of B that all lanes share.
UNCOALESCED_WAVEFRONTS = WARP_SIZE + 1
# Concurrent loads of a loop without barriers.
UNROLLED = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """What derived costs rest on, besides the board's own figures; cycles but for the ratios.

    `multiply_add` is the issue slots of one in an outer product, with its waits for register
    banks. Each copy of a thread takes of its scheduler `float_copy` for a float by cp.async,
    `vector_copy` for a vector, `transposed_copy` for each float of a vector that is turned around
    on its way, and `plain_copy` for a float through a register. `barrier` is all warps' meeting in
    each step, and `unit_exponent` says how little the units of an SM hold each other up (infinite:
    the busiest counts alone). A kernel that streams a matrix through registers waits for
    `streaming` latencies of memory in a step. Before the first step and after the last a tile takes
    `latencies` of memory, and its results leave at `writing` of the bandwidth.

    A step takes `crowding` longer for each register that a thread would like and has not: its
    results, its fragments twice, `under_way` for each copy that begins at one place of the loop,
    and `address` for each of a step.

    They and the defaults of `Costs` and `BoardCosts` but for `streaming` were fitted together by
    `benchmarks/closed_form.py`, to every other one of 29 shapes that were tuned on an H100 and to
    the rungs before 10 at nine sizes. See there for what they are worth at the others.
    """

    multiply_add: float = 1.11
    float_copy: float = 13.0
    vector_copy: float = 9.0
    transposed_copy: float = 24.0
    plain_copy: float = 19.0
    barrier: float = 96.0
    unit_exponent: float = 2.3
    streaming: float = 1.3
    latencies: float = 1.2
    writing: float = 0.34
    crowding: float = 0.008
    under_way: float = 2.7
    address: float = 0.8


FIGURES = Figures()


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles of one block of a configuration, and the registers of a thread.

    `step` is what one step of BK along k takes of the SM's throughput, `latency` (no less) how long
    it takes where the block has the SM for itself. `tile` is what comes before the first step
    and after the last. Where rows are not aligned, copies go float by float, and a step takes
    `unaligned` times as long. `sharing` is what a block spends where others work on its tile too:
    to announce itself, and to find out whether it came last.
    """

    step: float
    latency: float
    tile: float
    unaligned: float = 1.08
    sharing: float = 2550.0
    registers: int


class BoardCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What all configurations share on a kind of board, and what some cost there, by instance.

    `launch_us` is from one kernel of a CUDA graph to the next, in microseconds; `dram_efficiency`
    the share of the published bandwidth that copies reach, 0 to 1; `partial_bytes` the bytes of
    partial results that a block reads or writes per cycle; `exponent` says how fast latency fades
    as more blocks share an SM (infinite: the longer of latency and throughput counts alone).
    `fitted` says on what the figures rest, empty where nothing was measured on such a board.
    """

    launch_us: float = 1.95
    dram_efficiency: float = 0.9
    partial_bytes: float = 150.0
    exponent: float = 2.2
    configurations: dict[str, Costs] = {}
    fitted: str = ""


GENERAL = BoardCosts()


def derived_costs(
    kernel: Kernel, config: TileConfig, threads: int, gpu: GpuSpec, figures: Figures = FIGURES
) -> Costs:
    """Costs by the sizes of a configuration's tiles and what is known of the SM's units.

    A step takes little more than the busiest unit needs for it: the fp32 lanes or the scheduler,
    shared memory's wavefronts, or the L2's delivery.
    """
    machine = machine_of(gpu)
    rung = math.inf if kernel.rung is None else kernel.rung
    BM, BN, BK = config.BM or 1, config.BN or 1, config.BK or 1
    results, fragments = (config.TM or 1) * (config.TN or 1), (config.TM or 1) + (config.TN or 1)
    warps = ceil_div(threads, WARP_SIZE)
    # Of one thread, or warp, in a step.
    multiply_adds = BM * BN * BK / threads
    depth = multiply_adds / results
    copies, copying = _copies(rung, BM * BK / threads, BN * BK / threads, figures)
    # Slots and wavefronts of the reads at each k; those of 128 bits hide behind arithmetic.
    reading, wavefronts = 0.0, fragments / VECTOR * FRAGMENT_WAVEFRONTS
    if rung < FIRST_WIDE:
        reading = wavefronts = float(fragments)
    if rung == 1:
        wavefronts = float(UNCOALESCED_WAVEFRONTS)
    slots = multiply_adds * figures.multiply_add + depth * reading + copying
    dispatch = max(multiply_adds * fma_pipe_cycles(gpu), slots)
    step = _joined(
        figures.unit_exponent,
        warps / SCHEDULERS * dispatch,
        warps * depth * wavefronts,
        FLOAT_BYTES * BK * (BM + BN) / machine.l2_bytes,
    )
    chain = ceil_div(warps, SCHEDULERS) * dispatch
    if rung < FIRST_TILED:
        latency = max(step, chain) + machine.l2_latency / UNROLLED
    elif rung < FIRST_OVERLAPPED:
        latency = max(step, chain) + machine.l2_latency + 2 * figures.barrier
    elif config.BM is None:
        latency = max(step, chain + figures.barrier, figures.streaming * machine.dram_latency)
    else:
        stages_ahead = max((config.stages or 2) - 1, 1)
        latency = max(step, chain + figures.barrier, machine.l2_latency / stages_ahead)
    most = most_registers(gpu, threads)
    if rung >= FIRST_BOUNDED:
        most = min(most, BOUNDED_REGISTERS if results <= MAX_RESULTS_IN_128 else MOST_REGISTERS)
    held = results + 2 * fragments
    crowding = 1.0
    if rung >= FIRST_WIDE and config.BM is not None:
        places = max(min(config.bursts or 1, depth), 1)
        wanted = held + copies * (figures.under_way / places + figures.address)
        crowding += figures.crowding * max(wanted - most, 0.0)
    if rung < FIRST_RING:
        others = OTHER_REGISTERS
    else:
        others = STREAMING_REGISTERS if config.BM is None else RING_REGISTERS
    write_bytes = figures.writing * gpu.dram_gb_per_s * 1e3 / gpu.clock_mhz / gpu.sm_count
    return Costs(
        step=step * crowding,
        latency=latency * crowding,
        tile=figures.latencies * machine.dram_latency + FLOAT_BYTES * BM * BN / write_bytes,
        registers=min(held + others, most),
    )


def _copies(rung: float, a: float, b: float, figures: Figures) -> tuple[float, float]:
    """A thread's copies in a step, of so many floats of A and B, and the slots that they take."""
    if rung < FIRST_TILED:
        return 0.0, 0.0
    if rung < FIRST_WIDE:
        return a + b, (a + b) * figures.plain_copy
    b /= VECTOR
    slots = b * figures.vector_copy
    if rung < FIRST_RING:
        return a / VECTOR + b, slots + a * figures.transposed_copy
    return a + b, slots + a * figures.float_copy


def most_registers(gpu: GpuSpec, threads: int) -> int:
    """Registers that a thread can have where one block is to fit, in the compiler's steps of 8."""
    limits = gpu.capability
    each = limits.registers_per_block // threads // REGISTER_STEP * REGISTER_STEP
    return min(each, limits.max_registers_per_thread)


def _joined(exponent: float, *times: float) -> float:
    longest = max(times)
    total = sum((each / longest) ** exponent for each in times)
    return float(longest * total ** (1 / exponent))
