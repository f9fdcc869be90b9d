"""What keeps a piece of work from being faster, in words, from its rates and a board's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmkit.gpu import FP32, GpuSpec, MathPipe
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.work import VECTOR_BYTES
from gemmkit.problem import GemmProblem
from gemmkit.split_products import PRODUCTS, SPLIT_PRODUCTS

if TYPE_CHECKING:
    from gemmkit.groups import Groups

# A unit that is busy for this share of the time or more is what limits the work.
BUSY = 0.5
# Tiles that are fuller than this cost little.
_FULL = 0.75


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


def filled(groups: Groups, config: TileConfig) -> float | None:
    """The share, 0 to 1, of the multiply-adds of a launch's tiles that belong to products.

    None where the configuration has no tiles, or there are none.
    """
    sizes = (config.BM, config.BN, config.BK)
    if None in sizes:
        return None
    m, n, k = (
        -(-side // (size or 1)) * (size or 1)
        for side, size in zip(groups.table, sizes, strict=False)
    )
    counted = int((m * n * k).sum())
    return groups.multiply_adds / counted if counted else None


def limiter_of_groups(
    problem: GemmProblem, kernel: Kernel, config: TileConfig, microseconds: float, board: GpuSpec
) -> str:
    """The unit that is busy for half of the time at least in a launch of groups that takes so long;
    and what else costs time."""
    pipe = kernel.work(problem, config, board).demands.math
    products = PRODUCTS if kernel.compute_dtype == SPLIT_PRODUCTS else 1
    tflops = products * problem.flops / microseconds / 1e6
    unit = busiest_unit(tflops, problem.minimal_bytes / microseconds / 1e3, board, pipe)
    found = [unit] if unit else []
    share = None if problem.groups is None else filled(problem.groups, config)
    if share is not None and share < _FULL:
        found.append(f"tiles {100 * share:.0f} % full")
    if not problem.is_aligned(VECTOR_BYTES):
        single = "floats" if problem.dtype == "float32" else "elements"
        found.append(f"copies of single {single}")
    return "; ".join(found) or "latency of short products"
