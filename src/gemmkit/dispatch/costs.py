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

# Instructions that a thread needs to copy one float or vector: address, test and copy.
COPY_INSTRUCTIONS = 3

# Not hidden where a block is alone: fragments on their way at each k, all warps' meeting a step.
EXPOSED_CYCLES = 8
BARRIER_CYCLES = 70


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
    unaligned: float = 1.1
    sharing: float = 2000.0
    registers: int = 0


class BoardCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What all configurations share on a kind of board, and what each costs, by its instance.

    `launch_us` is from one kernel of a CUDA graph to the next, in microseconds; `dram_efficiency`
    the share of the published bandwidth that copies reach, 0 to 1; `partial_bytes` the bytes of
    partial results that a block reads or writes per cycle; `exponent` says how fast latency fades
    as more blocks share an SM (infinite: the longer of latency and throughput counts alone).
    `fitted` says on what the figures rest, empty where nothing was measured.
    """

    launch_us: float = 2.0
    dram_efficiency: float = 0.9
    partial_bytes: float = 32.0
    exponent: float = 4.0
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

    A step takes as long as the busiest unit needs for it: the fp32 lanes (or the register banks
    that feed them), the schedulers' issue slots, shared memory's wavefronts (two for each 128-bit
    fragment), or the bytes that the L2 delivers.
    """
    machine = machine_of(gpu)
    BM, BN, BK = config.BM or 1, config.BN or 1, config.BK or 1
    results, fragments = (config.TM or 1) * (config.TN or 1), (config.TM or 1) + (config.TN or 1)
    warps = ceil_div(threads, WARP_SIZE)
    # Of one thread, or warp: all that follows is for one step.
    multiply_adds = BM * BN * BK / threads
    quads = multiply_adds / results * fragments / 4
    copied = BK * (BM + BN)
    arithmetic = multiply_adds * max(fma_pipe_cycles(gpu), machine.ffma_issue)
    slots = multiply_adds + quads + COPY_INSTRUCTIONS * copied / threads
    step = max(
        warps / SCHEDULERS * max(arithmetic, slots),
        warps * quads * 2,
        FLOAT_BYTES * copied / machine.l2_bytes,
    )
    exposed = BARRIER_CYCLES + EXPOSED_CYCLES * BK
    chain = ceil_div(warps, SCHEDULERS) * arithmetic + exposed
    stages_ahead = max((config.stages or 2) - 1, 1)
    return Costs(
        step=step,
        latency=max(step, chain, machine.l2_latency / stages_ahead),
        tile=2 * machine.dram_latency,
        registers=min(
            results + 2 * fragments + OTHER_REGISTERS,
            BOUNDED_REGISTERS if results <= MAX_RESULTS_IN_128 else MOST_REGISTERS,
        ),
    )
