"""What the demands of a step cost an SM, in cycles.

Cycles of an SM hold for every board of the same compute capability, whatever its number of SMs,
clock and memory. Nothing here knows a kernel: `kernels.work` tells what each asks of the pipes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from gemmkit.analysis.machine import COPY_US, machine_of
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.plan import ceil_div
from gemmkit.kernels.work import Demands

# Registers come in steps of so many.
REGISTER_STEP = 8
# Bytes of a result: those of float32 in the figures below.
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """What derived costs rest on, besides the board's own figures; cycles but for the ratios.

    `multiply_add` is the issue slots of one in an outer product, with its waits for register
    banks. Each copy of a thread takes of its scheduler `float_copy` for an element by cp.async,
    `vector_copy` for a vector, `transposed_copy` for each element of a vector that is turned around
    on its way, and `plain_copy` for an element through a register. `barrier` is that of all
    warps in each step, and `unit_exponent` says how little the pipes of an SM hold each other up
    (infinite: the busiest counts alone). A kernel that streams a matrix through registers waits for
    `streaming` latencies of memory in a step. Before the first step and after the last a tile takes
    `latencies` of memory, and its results leave at `writing` of the bandwidth, or at
    `coalesced_writing` where each store of a warp covers neighbors.

    A step takes `crowding` longer for each register that a thread would like and has not: its
    results, its fragments twice, `under_way` for each copy that begins at one place of the loop,
    and `address` for each of a step.

    They and the defaults of `BoardCosts` but for `streaming` were fitted together by
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
    coalesced_writing: float = 0.8
    crowding: float = 0.008
    under_way: float = 2.7
    address: float = 0.8


FIGURES = Figures()


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles of one CTA of a configuration, and the registers of a thread.

    `step` is what one step of BK along k takes of the SM's throughput, `latency` (no less) how long
    it takes where the CTA has the SM for itself. `tile` is what comes before the first step
    and after the last. Where rows are not aligned, a step takes `unaligned` times as long, and for
    operands of another layout than NN as many times as long as `nt`, `tn` and `tt` say.
    `sharing` is what a CTA spends where others work on its tile too: to announce itself, and to
    find out whether it came last.
    """

    step: float
    latency: float
    tile: float
    unaligned: float
    sharing: float
    registers: int
    nt: float = 1.0
    tn: float = 1.0
    tt: float = 1.0

    def of_layout(self, layout: str) -> float:
        """Times as long as for NN a step takes, beyond what its demands say."""
        return {"nt": self.nt, "tn": self.tn, "tt": self.tt}.get(layout[:2], 1.0)


class Correction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured of a configuration's costs over what follows from its demands.

    `registers` are those of the compiled kernel, 0 where that is not known. `launch` is the time of
    whole launches over their estimate, where only that was measured.
    """

    step: float = 1.0
    latency: float = 1.0
    tile: float = 1.0
    unaligned: float = 1.0
    sharing: float = 1.0
    nt: float = 1.0
    tn: float = 1.0
    tt: float = 1.0
    registers: int = 0
    launch: float = 1.0


class BoardCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What all configurations share on a kind of board, and corrections of some, by instance.

    `launch_us` is from one kernel of a CUDA graph to the next, in microseconds; `dram_efficiency`
    the share of the published bandwidth that reads reach, 0 to 1, and stores of which each covers
    neighbors; `store_efficiency` that of other stores; `partial_bytes` the bytes of partial results
    that a CTA reads or writes per cycle; `exponent` says how fast latency fades as more CTAs share
    an SM (infinite: the longer of latency and throughput counts alone); `unaligned`, `nt`, `tn`,
    `tt` and `sharing` are those of `Costs`. Where rows are not aligned, results leave one by one,
    and a tile takes `unaligned_tile` times as long before its first step and after its last.
    `copy_us` is as `COPY_US`. `fitted` says on what the figures rest, empty where nothing was
    measured on such a board.
    """

    launch_us: float = 1.95
    dram_efficiency: float = 0.9
    store_efficiency: float = 0.45
    partial_bytes: float = 150.0
    exponent: float = 2.2
    unaligned: float = 1.08
    nt: float = 1.0
    tn: float = 1.0
    tt: float = 1.0
    unaligned_tile: float = 1.0
    sharing: float = 2550.0
    copy_us: float = COPY_US
    corrections: dict[str, Correction] = {}
    fitted: str = ""


GENERAL = BoardCosts()
UNCORRECTED = Correction()


def derived_costs(
    demands: Demands,
    threads: int,
    results: int,
    gpu: GpuSpec,
    *,
    board: BoardCosts = GENERAL,
    correction: Correction = UNCORRECTED,
    figures: Figures = FIGURES,
) -> Costs:
    """Costs by the demands of a step.

    A step takes little more than the busiest pipe needs for it: what multiplies or the scheduler,
    shared memory's wavefronts, or the L2's delivery.

    Args:
        demands: of one CTA.
        threads: of the CTA.
        results: of its tile, in words of 32 bits.
        gpu: the board.
        board: what all configurations share there.
        correction: what was measured of this one.
        figures: what the costs rest on.
    """
    machine, pipes = machine_of(gpu), gpu.pipes
    warps = ceil_div(threads, WARP_SIZE)
    copies = demands.copies
    copying = (
        copies.elements * figures.float_copy
        + (copies.vectors + copies.through) * figures.vector_copy
        + copies.transposed * figures.transposed_copy
        + copies.plain * figures.plain_copy
    )
    issued = demands.multiply_adds / demands.per_instruction
    slots = issued * figures.multiply_add + demands.issue + copying
    rate = pipes.sustained(demands.math, by_wgmma=demands.by_wgmma)
    multiplying = demands.multiply_adds * WARP_SIZE * pipes.issue / rate
    dispatch = multiplying + slots if demands.in_turn else max(multiplying, slots)
    # Copies by TMA and products by wgmma do not hold each other up.
    step = _joined(
        math.inf if demands.by_tma else figures.unit_exponent,
        warps / pipes.issue * dispatch,
        demands.wavefronts,
        demands.l2_bytes / (pipes.tma_bytes if demands.by_tma else pipes.l2_bytes),
        demands.received_bytes / pipes.received_bytes,
    )
    latency = max(step, ceil_div(warps, pipes.issue) * dispatch)
    if demands.waits:
        latency += demands.waits * machine.l2_latency + demands.barriers * figures.barrier
    else:
        latency = max(
            step,
            ceil_div(warps, pipes.issue) * dispatch + demands.barriers * figures.barrier,
            demands.covers * machine.l2_latency,
            figures.streaming * machine.dram_latency if demands.streams else 0.0,
        )
    latency += demands.exposed
    most = min(most_registers(gpu, threads), demands.most_registers)
    crowding = 1.0
    if demands.places:
        held = copies.number * (figures.under_way / demands.places + figures.address)
        crowding += figures.crowding * max(demands.registers + held - most, 0.0)
    writing = figures.coalesced_writing if demands.coalesced_stores else figures.writing
    write_bytes = writing * gpu.dram_gb_per_s * 1e3 / gpu.clock_mhz / gpu.sm_count
    if demands.by_tma:
        # What results wait for is L2 alone: they leave it while the next tiles are computed.
        write_bytes = pipes.tma_bytes
    tile = figures.latencies * machine.dram_latency + WORD_BYTES * results / write_bytes
    # No step is faster than the pipe that multiplies.
    step = max(step * crowding * correction.step, warps / pipes.issue * multiplying)
    return Costs(
        step=step,
        latency=max(latency * crowding * correction.latency, step),
        tile=tile * correction.tile,
        unaligned=board.unaligned * correction.unaligned,
        sharing=board.sharing * correction.sharing,
        registers=correction.registers or min(demands.registers + demands.other_registers, most),
        nt=board.nt * correction.nt,
        tn=board.tn * correction.tn,
        tt=board.tt * correction.tt,
    )


def most_registers(gpu: GpuSpec, threads: int) -> int:
    """Registers that a thread can have where one CTA is to fit, in the compiler's steps of 8."""
    limits = gpu.capability
    each = limits.registers_per_block // threads // REGISTER_STEP * REGISTER_STEP
    return min(each, limits.max_registers_per_thread)


def _joined(exponent: float, *times: float) -> float:
    longest = max(times)
    if exponent == math.inf:
        return longest
    total = sum((each / longest) ** exponent for each in times)
    return float(longest * total ** (1 / exponent))
