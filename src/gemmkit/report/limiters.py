"""What keeps a measured piece of work from being faster, in words, from its rates and a board's."""

from __future__ import annotations

from gemmkit.gpu import FP32, GpuSpec, MathPipe

# A unit that is busy for this share of the time or more is what limits the work.
BUSY = 0.5


def busiest_unit(
    tflops: float, gb_per_s: float, board: GpuSpec, pipe: MathPipe = FP32
) -> str | None:
    """What multiplies or the memory, with the share of the peak; None where neither is busy.

    `tflops` counts each multiply-add of `pipe`: where a product takes several, all of these.
    """
    math, memory = tflops / board.peak(pipe), gb_per_s / board.dram_gb_per_s
    if max(math, memory) < BUSY:
        return None
    if math >= memory:
        units = "tensor cores" if pipe.tensor else f"{pipe} units"
        return f"{units}, {100 * math:.0f} % of their peak"
    return f"memory, {100 * memory:.0f} % of its bandwidth"
