"""What a configuration costs an SM, in cycles: fitted where it was measured, else from its sizes.

Cycles of an SM hold for every board of the same compute capability, whatever its number of SMs,
clock and memory.
"""

from __future__ import annotations

import warnings
from functools import cache

import msgspec

from gemmkit.analysis.machine import SCHEDULERS, fma_pipe_cycles, machine_of
from gemmkit.dispatch import shipped_file
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.kernel import TileConfig, ceil_div
from gemmkit.kernels.rules import MAX_RESULTS_IN_128
from gemmkit.problem import FLOAT_BYTES

# Registers of a thread besides its results and its fragments: addresses, counters, and values that
# are fetched early. Launch bounds keep threads with few results to 128.
OTHER_REGISTERS = 60
BOUNDED_REGISTERS, MOST_REGISTERS = 128, 255

# The figures below, and the defaults of `Costs` and `BoardCosts`, were fitted together to the times
# of some 900 launches of rungs 10, 11 and 13 on an H100, of many configurations at 22 shapes; the
# median error was 5 %. All but the first are cycles.
# Issue slots of a multiply-add of an outer product, with the waits for register banks.
MULTIPLY_ADD_SLOTS = 1.08
# Of a thread at each k besides: its loads of fragments, and what they hold up.
FRAGMENT_CYCLES = 2.5
# Of a thread for each float of A, and each vector of B, that it copies.
FLOAT_COPY_CYCLES, VECTOR_COPY_CYCLES = 20.0, 28.0
# Floats of a vector, and wavefronts in which a warp reads one of each lane's fragments.
VECTOR, FRAGMENT_WAVEFRONTS = 4, 2
# All warps' meeting in each step.
BARRIER_CYCLES = 15.0
# Before the first step and after the last, in latencies of memory; the results leave at that share
# of the bandwidth.
LATENCIES_PER_TILE, WRITE_EFFICIENCY = 4.5, 0.7


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
    unaligned: float = 1.06
    sharing: float = 2500.0
    registers: int


class BoardCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What all configurations share on a kind of board, and what each costs, by its instance.

    `launch_us` is from one kernel of a CUDA graph to the next, in microseconds; `dram_efficiency`
    the share of the published bandwidth that copies reach, 0 to 1; `partial_bytes` the bytes of
    partial results that a block reads or writes per cycle; `exponent` says how fast latency fades
    as more blocks share an SM (infinite: the longer of latency and throughput counts alone).
    `fitted` says on what the figures rest, empty where nothing was measured.
    """

    launch_us: float = 1.9
    dram_efficiency: float = 0.9
    partial_bytes: float = 50.0
    exponent: float = 10.0
    configurations: dict[str, Costs] = {}
    fitted: str = ""


@cache
def board_costs(major: int, minor: int) -> BoardCosts:
    """The figures of a compute capability; general ones where nothing was measured.

    A file that cannot be read is told in a warning, and counts as not there.
    """
    path = shipped_file("fitted", f"sm_{major}{minor}.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=BoardCosts)
    except FileNotFoundError:
        return BoardCosts()
    except (OSError, msgspec.MsgspecError) as error:
        warnings.warn(
            f"{path} cannot be read ({error}): times are estimated without it",
            RuntimeWarning,
            stacklevel=2,
        )
        return BoardCosts()


def derived_costs(config: TileConfig, threads: int, gpu: GpuSpec) -> Costs:
    """Costs by the sizes of a configuration's tiles and what is known of the SM's units.

    A step takes as long as the busiest unit needs for it: the fp32 lanes, the schedulers, shared
    memory's wavefronts, or the L2's delivery.
    """
    machine = machine_of(gpu)
    BM, BN, BK = config.BM or 1, config.BN or 1, config.BK or 1
    results, fragments = (config.TM or 1) * (config.TN or 1), (config.TM or 1) + (config.TN or 1)
    warps = ceil_div(threads, WARP_SIZE)
    # Of one thread, or warp, in a step.
    multiply_adds = BM * BN * BK / threads
    depth = multiply_adds / results
    copies = BK / threads * (BM * FLOAT_COPY_CYCLES + BN / VECTOR * VECTOR_COPY_CYCLES)
    slots = multiply_adds * MULTIPLY_ADD_SLOTS + depth * FRAGMENT_CYCLES + copies
    dispatch = max(multiply_adds * fma_pipe_cycles(gpu), slots)
    step = max(
        warps / SCHEDULERS * dispatch,
        warps * depth * fragments / VECTOR * FRAGMENT_WAVEFRONTS,
        FLOAT_BYTES * BK * (BM + BN) / machine.l2_bytes,
    )
    chain = ceil_div(warps, SCHEDULERS) * dispatch + BARRIER_CYCLES
    stages_ahead = max((config.stages or 2) - 1, 1)
    write_bytes = WRITE_EFFICIENCY * gpu.dram_gb_per_s * 1e3 / gpu.clock_mhz / gpu.sm_count
    return Costs(
        step=step,
        latency=max(step, chain, machine.l2_latency / stages_ahead),
        tile=LATENCIES_PER_TILE * machine.dram_latency + FLOAT_BYTES * BM * BN / write_bytes,
        registers=min(
            results + 2 * fragments + OTHER_REGISTERS,
            BOUNDED_REGISTERS if results <= MAX_RESULTS_IN_128 else MOST_REGISTERS,
        ),
    )
