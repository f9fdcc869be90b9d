"""What keeps a measured piece of work from being faster, in words, from its rates and a board's."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec

# A unit that is busy for this share of the time or more is what limits the work.
BUSY = 0.5


def busiest_unit(tflops: float, gb_per_s: float, board: GpuSpec) -> str | None:
    """The fp32 units or the memory, with the share of the peak; None where neither is busy."""
    fp32, memory = tflops / board.peak_tflops, gb_per_s / board.dram_gb_per_s
    if max(fp32, memory) < BUSY:
        return None
    if fp32 >= memory:
        return f"fp32 units, {100 * fp32:.0f} % of their peak"
    return f"memory, {100 * memory:.0f} % of its bandwidth"
