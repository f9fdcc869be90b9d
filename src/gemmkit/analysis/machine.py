"""Latencies of an SM and of its L2, per architecture; `GpuSpec.pipes` has the rates.

Sources: fp32 and shared-memory figures were measured on an H100 with micro kernels of one warp;
latencies are rounded from published micro-benchmarks of each generation. Boards of one generation
share them, since no better figures are published for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.gpu import FP32, WARP_SIZE, GpuSpec, MathPipe

# Cycles of a multiply-add in the 8×8 outer products of a compiled kernel, which reach 88 % of the
# peak; used for kernels whose machine code cannot be read.
MEASURED_FFMA_ISSUE = 1 / 0.88
# Microseconds that a launch before another, which copies operands, takes besides its launch and its
# bytes: the median at 129 unaligned problems on an H100.
COPY_US = 1.8


@dataclass(frozen=True, slots=True)
class Machine:
    """Latencies in cycles at the boost clock, rates in bytes per cycle and SM.

    `ffma_issue` is the issue cycles of a multiply-add, more than one where the banks of the
    register file hold it up.

    Three parameters are fitted, on the H100's times at K = 1024, M = N = 128, 1024 and 4096
    (`benchmarks/predict.py --fit`), and used for every board. `tile_spread` is the latency of a
    tile relative to that of one load: a barrier waits for the last of hundreds of sectors, from as
    many pages of DRAM, or from the farthest slice of the L2. `latency_exponent` says how fast
    latency is hidden as more warps fill the gaps, `unit_exponent` how little concurrent units
    interfere. With infinite exponents the longer of two times would count alone.

    Two more are fitted for bulk copies, on `examples/hopper.cu` with other numbers of stages on an
    H200 (`docs/predicted-speed.md`). `tma_latency`, on its times with two and three, is what a copy
    takes from the release of its stage besides the latency of its lines, its transfer and the waits
    for mbarriers. `load_exponent`, on the time with four over that with five, is `unit_exponent`
    for the loads of a stage and its products.
    """

    alu_latency: float = 4.0
    shared_latency: float = 29.0
    l1_latency: float = 38.0
    l2_latency: float = 270.0
    dram_latency: float = 650.0
    barrier_latency: float = 30.0
    tma_latency: float = 600.0
    tensor_latency: float = 33.0
    ffma_issue: float = MEASURED_FFMA_ISSUE
    l1_fill_bytes: float = 64.0
    l1_bytes: int = 128 * 1024
    dram_efficiency: float = 0.90
    tile_spread: float = 1.4
    latency_exponent: float = 2.0
    unit_exponent: float = 4.0
    load_exponent: float = 16.0

    def delivered(self, rate: float, spec: GpuSpec, blocks: int) -> float:
        """Bytes per cycle that the L2 delivers to an SM at work on some of so many blocks: more
        than its even share `rate` where others are idle, but no more than its port takes."""
        busy_sms = max(min(spec.sm_count, blocks), 1)
        return min(rate * spec.sm_count / busy_sms, self.l1_fill_bytes)

    def joined(self, *times: float, power: float | None = None) -> float:
        """Time of concurrent units: the longest, plus an overhead if others are nearly as long.

        `power` is by default `unit_exponent`.
        """
        longest, power = max(times), power or self.unit_exponent
        if longest == 0:
            return 0.0
        shares = sum((each / longest) ** power for each in times)
        return float(longest * shares ** (1 / power))

    def faded(self, alone: float, one: float, many: float) -> float:
        """Time of many equal tasks, each `alone` by itself; the units take `one` and `many`.

        It is `alone` for one, and approaches `many` if that is much longer. A chain of dependent
        instructions counts the latency of each, but a narrow pipe, such as that of fp64 on most
        boards, is busy for longer with one of them: no task takes less than its units.
        """
        power, alone = self.latency_exponent, max(alone, one)
        total = alone**power + max(many**power - one**power, 0.0)
        return float(total ** (1 / power))


_DEFAULT = Machine()
_MACHINES = {
    (7, 5): Machine(l1_latency=32.0, l2_latency=190.0, dram_latency=430.0),
    (8, 0): Machine(l2_latency=200.0, dram_latency=470.0),
    (8, 6): Machine(l2_latency=240.0, dram_latency=480.0),
    (8, 7): Machine(l2_latency=240.0, dram_latency=480.0),
    (8, 9): Machine(l2_latency=270.0, dram_latency=600.0),
    (12, 0): Machine(l2_latency=300.0, dram_latency=700.0),
    (12, 1): Machine(l2_latency=300.0, dram_latency=700.0),
}


def machine_of(spec: GpuSpec) -> Machine:
    """The constants of a board's generation; those of the H100 if there are none."""
    capability = spec.capability
    return _MACHINES.get((capability.major, capability.minor), _DEFAULT)


def pipe_cycles(
    spec: GpuSpec,
    multiply_adds: float = WARP_SIZE,
    pipe: MathPipe = FP32,
    *,
    by_wgmma: bool = False,
) -> float:
    """Cycles for which that many multiply-adds of one warp hold the pipe of its scheduler."""
    return multiply_adds * spec.pipes.issue / spec.pipes.sustained(pipe, by_wgmma=by_wgmma)
