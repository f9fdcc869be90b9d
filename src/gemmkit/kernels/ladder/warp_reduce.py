"""Rung 12: skinny products, reduced by warp shuffles."""

from __future__ import annotations

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads, rules
from gemmkit.kernels.cut import Cut, steps_of
from gemmkit.kernels.grids import cuda_bool
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launches import vector_width
from gemmkit.kernels.limits import SKINNY
from gemmkit.kernels.mainloops.short_sides import streamed
from gemmkit.kernels.plan import LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Floats of the large matrix that a thread has in each step, and the most threads that may have 128
# registers.
THREAD_FLOATS, MAX_THREADS = 16, 512

# BN and BK are multiples of a warp's 32 × 16 floats, whichever way round it reads them.
WARP_SIDE = 32


def condition(problem: GemmProblem, _: GpuSpec) -> str | None:
    """Why a problem is not skinny, or None."""
    if min(problem.m, problem.n) <= SKINNY:
        return None
    return f"it takes products of at most {SKINNY} rows or columns"


def shared_bytes(config: TileConfig, small: int) -> int:
    """Stages of a tile and `small` lines along k; in their place, in the end, the warps' sums."""
    BN, BK = config["BN"], config["BK"]
    stage = BN * BK + small * (BK + rules.PAD)
    sums = BK // THREAD_FLOATS * small * BN
    return FLOAT_BYTES * max(config["stages"] * stage, sums)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Whole warps, which find room in registers and shared memory."""
    threads = config["BN"] * config["BK"] // THREAD_FLOATS
    return rules.first_reason(
        lambda: rules.has_cp_async(gpu),
        lambda: rules.positive(config),
        lambda: rules.divides(config, WARP_SIDE, "BN"),
        lambda: rules.divides(config, WARP_SIDE, "BK"),
        lambda: (
            None
            if threads <= MAX_THREADS
            else f"{threads} threads per block are more than {MAX_THREADS}, of 128 registers each"
        ),
        lambda: rules.enough_stages(config),
        lambda: rules.dynamic_shared(shared_bytes(config, SKINNY), gpu),
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """Blocks along the long side, each with all of k."""
    tall = problem.n <= SKINNY
    small, long = (problem.n, problem.m) if tall else (problem.m, problem.n)
    BN, BK = config["BN"], config["BK"]
    return LaunchShape(
        template=(
            *(max(small, 1), cuda_bool(tall), BN, BK, config["stages"]),
            *(rules.PAD, vector_width(problem)),
        ),
        grid=(ceil_div(long, BN) if small else 0, 1, 1),
        block=(BN * BK // THREAD_FLOATS, 1, 1),
        shared_bytes=shared_bytes(config, max(small, 1)),
    )


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """The large matrix is read once, by blocks along the long side."""
    tall, BN = problem.n <= SKINNY, config["BN"]
    small, long = (problem.n, problem.m) if tall else (problem.m, problem.n)
    tiles = ceil_div(long, BN) if small else 0
    rows, columns = (BN, small) if tall else (small, BN)
    found = Cut(rows, columns, tiles, tiles, steps_of(problem, config) if tiles else 0)
    taken = shared_bytes(config, max(small, 1))
    threads = BN * config["BK"] // THREAD_FLOATS
    return streamed(found, config, threads, taken, small, k_major=tall)


KERNEL = Kernel(
    name="warp_reduce",
    rung=12,
    idea="A product of at most 16 rows or columns reads its large matrix once, with k shared by "
    "the lanes of a warp and the warps of a block, whose sums are added up by shuffles.",
    default=TileConfig(BN=32, BK=128, stages=3),
    space={"BN": (32, 64, 128), "BK": (32, 64, 128, 256), "stages": (2, 3, 4)},
    launch=launch,
    work=work,
    loads=loads.no_formula(loads.SHARED_K),
    rule=rule,
    condition=condition,
)
