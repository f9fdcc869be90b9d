"""What a configuration costs an SM, in cycles: fitted where it was measured, else from its sizes.

Cycles of an SM hold for every board of the same compute capability, whatever its number of SMs,
clock and memory.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
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

# Floats of a vector, and wavefronts in which a warp reads one of each lane's fragments.
VECTOR, FRAGMENT_WAVEFRONTS = 4, 2


@dataclass(frozen=True, slots=True)
class Figures:
    """What derived costs rest on, besides the board's own figures; cycles but for the ratios.

    They and the defaults of `Costs` and `BoardCosts` were fitted together to the times of some 900
    launches of rungs 10, 11 and 13 on an H100, of many configurations at 22 shapes, with a median
    error of 5 % (`benchmarks/dispatch_fit.py --figures` fits them to a file of times).

    `multiply_add` is the issue slots of one in an outer product, with its waits for register
    banks; `fragments` what a thread's reading of its fragments holds up at each k; `float_copy` and
    `vector_copy` what each copy of a thread takes of its scheduler: of a float of A, of a vector of
    B. `barrier` is all warps' meeting in each step. Before the first step and after the last a
    tile takes `latencies` of memory, and its results leave at `writing` of the bandwidth.
    """

    multiply_add: float = 1.08
    fragments: float = 2.5
    float_copy: float = 20.0
    vector_copy: float = 28.0
    barrier: float = 15.0
    latencies: float = 4.5
    writing: float = 0.7


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


def derived_costs(
    config: TileConfig, threads: int, gpu: GpuSpec, figures: Figures = FIGURES
) -> Costs:
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
    copies = BK / threads * (BM * figures.float_copy + BN / VECTOR * figures.vector_copy)
    slots = multiply_adds * figures.multiply_add + depth * figures.fragments + copies
    dispatch = max(multiply_adds * fma_pipe_cycles(gpu), slots)
    step = max(
        warps / SCHEDULERS * dispatch,
        warps * depth * fragments / VECTOR * FRAGMENT_WAVEFRONTS,
        FLOAT_BYTES * BK * (BM + BN) / machine.l2_bytes,
    )
    chain = ceil_div(warps, SCHEDULERS) * dispatch + figures.barrier
    stages_ahead = max((config.stages or 2) - 1, 1)
    write_bytes = figures.writing * gpu.dram_gb_per_s * 1e3 / gpu.clock_mhz / gpu.sm_count
    return Costs(
        step=step,
        latency=max(step, chain, machine.l2_latency / stages_ahead),
        tile=figures.latencies * machine.dram_latency + FLOAT_BYTES * BM * BN / write_bytes,
        registers=min(
            results + 2 * fragments + OTHER_REGISTERS,
            BOUNDED_REGISTERS if results <= MAX_RESULTS_IN_128 else MOST_REGISTERS,
        ),
    )
