"""`LADDER`: the only list of rungs; for each its idea, configurations, launch and rule."""

from __future__ import annotations

import difflib

from gemmkit.errors import UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, skinny
from gemmkit.kernels.grids import batched, spread_over_yz, tile_grid
from gemmkit.kernels.kernel import (
    BATCH_ARGUMENTS,
    MAX_GRID_YZ,
    SCRATCH_SIGNATURE,
    SGEMM_SIGNATURE,
    Kernel,
    LaunchShape,
    TileConfig,
    ceil_div,
)
from gemmkit.kernels.rules import (
    COARSENING_STRIDES,
    PAD,
    resident_blocks,
    split_k_shared_bytes,
    stage_bytes,
    thread_count,
)
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# Steps of k below which `stream_k` gives no block a share of its own.
LEAST_STEPS = 4

# Of a long k, `stream_k` adds up so many runs apart where shared memory has room for their sums.
LONG, RUNS = 1025, 4

# Of shared memory, where blocks tell each other that they are done: who came last.
ARRIVAL_BYTES = 16


def vector_width(problem: GemmProblem) -> int:
    """Floats per global access: 4 where rows start at multiples of 16 bytes and end there, else 1.

    Matrices of a batch must do so too. With whole vectors only, no kernel has to take one apart at
    an edge.
    """
    extents = problem.n | problem.k | problem.lda | problem.ldb | problem.ldc
    stride_a, stride_b, stride_c = problem.strides
    return 4 if (extents | stride_a | stride_b | stride_c) % 4 == 0 else 1


# --- launch shapes ----------------------------------------------------------------------------


def _launch_naive_uncoalesced(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    BM, BN = config["BM"], config["BN"]
    grid = (ceil_div(problem.m, BM), *spread_over_yz(ceil_div(problem.n, BN)))
    return LaunchShape(template=(BM, BN), grid=grid, block=(BM, BN, 1))


def _launch_thread_per_result(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    BM, BN = config["BM"], config["BN"]
    return LaunchShape(
        template=tuple(config.as_dict().values()),
        grid=tile_grid(problem, BM, BN),
        block=(BN, BM, 1),
    )


def _launch_coarsened(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    return LaunchShape(
        template=tuple(config.as_dict().values()),
        grid=tile_grid(problem, config["BM"], config["BN"]),
        block=(thread_count(config), 1, 1),
    )


def _launch_vectorized(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    shape = _launch_coarsened(problem, config, gpu)
    return LaunchShape((*shape.template, vector_width(problem)), shape.grid, shape.block)


def _launch_async_copy(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    shape = _launch_vectorized(problem, config, gpu)
    return LaunchShape(
        template=(*shape.template, batched(problem)),
        grid=shape.grid,
        block=shape.block,
        shared_bytes=config["stages"] * stage_bytes(config, PAD),
    )


def _launch_split_k(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """No more parts than steps of k; one only where rows of tiles or products take the grid's z."""
    rows, columns = ceil_div(problem.m, config["BM"]), ceil_div(problem.n, config["BN"])
    most = MAX_GRID_YZ // max(problem.batch, 1) if rows <= MAX_GRID_YZ else 1
    parts = max(1, min(config["split_k"], ceil_div(problem.k, config["BK"]), most))
    tiles = columns * rows * problem.batch if parts > 1 else 0
    return LaunchShape(
        template=(*_without_split(config), vector_width(problem), batched(problem)),
        grid=tile_grid(problem, config["BM"], config["BN"], parts),
        block=(thread_count(config), 1, 1),
        shared_bytes=split_k_shared_bytes(config),
        workspace_bytes=FLOAT_BYTES * tiles * parts * config["BM"] * config["BN"],
        arrivals=tiles,
    )


def _without_split(config: TileConfig) -> tuple[int, ...]:
    """Values of the configuration but for `split_k`, which kernels learn from their grid."""
    return tuple(value for key, value in config.as_dict().items() if key != "split_k")


def _launch_stream_k(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As many blocks as the board holds, but none with less than `LEAST_STEPS` of work.

    How many tiles are cut is what `Stream` in stream.cuh reckons. A block leaves at most the last
    part of one tile and the first of another in the workspace.
    """
    shape = _launch_vectorized(problem, config, gpu)
    shared_bytes = config["stages"] * stage_bytes(config, PAD)
    columns, rows = ceil_div(problem.n, config["BN"]), ceil_div(problem.m, config["BM"])
    tiles = columns * rows * problem.batch
    shares = tiles * max(1, ceil_div(problem.k, config["BK"]) // LEAST_STEPS)
    blocks = min(gpu.sm_count * resident_blocks(config, gpu, shared_bytes), shares)
    apart = FLOAT_BYTES * config["BM"] * config["BN"]
    runs = RUNS if problem.k >= LONG and _fits(shared_bytes + apart, config, gpu) else 1
    left = tiles % blocks if blocks else 0
    cut = left + blocks if left and tiles > blocks else left
    slots = 2 * blocks if cut else 0
    return LaunchShape(
        template=(*shape.template, runs, batched(problem)),
        grid=(blocks, 1, 1),
        block=shape.block,
        shared_bytes=shared_bytes + (apart if runs > 1 else 0),
        workspace_bytes=FLOAT_BYTES * slots * config["BM"] * config["BN"],
        arrivals=cut,
    )


def _fits(shared_bytes: int, config: TileConfig, gpu: GpuSpec) -> bool:
    """Whether a block may have so much, and an SM as many blocks as without."""
    limits = gpu.capability
    blocks = resident_blocks(config, gpu, shared_bytes)
    return (
        shared_bytes + ARRIVAL_BYTES <= limits.max_shared_per_block
        and blocks == resident_blocks(config, gpu, config["stages"] * stage_bytes(config, PAD))
    )


# --- rungs ------------------------------------------------------------------------------------

_REGISTER_TILES = {
    "BM": (32, 64, 128),
    "BN": (32, 64, 128),
    "BK": (8, 16),
    "TM": (4, 8),
    "TN": (4, 8),
}

_INNER_LOOPS = {"bursts": (1, 2, 4, 8, 16), "order": tuple(range(1, rules.ORDERS + 1))}

LADDER: tuple[Kernel, ...] = (
    Kernel(
        name="naive_uncoalesced",
        rung=1,
        idea="One thread computes one result, but neighbouring threads take neighbouring rows, so "
        "each warp touches 32 sectors of A to fetch 32 floats.",
        default=TileConfig(BM=32, BN=32),
        space={"BM": (8, 16, 32), "BN": (8, 16, 32)},
        launch=_launch_naive_uncoalesced,
        rule=rules.naive,
        fuses=False,
    ),
    Kernel(
        name="naive",
        rung=2,
        idea="Neighbouring threads take neighbouring columns, so a warp reads B and writes C in "
        "whole 128-byte lines and needs a single sector of A.",
        default=TileConfig(BM=32, BN=32),
        space={"BM": (4, 8, 16, 32), "BN": (16, 32, 64)},
        launch=_launch_thread_per_result,
        rule=rules.naive,
    ),
    Kernel(
        name="shared_tiling",
        rung=3,
        idea="A block copies tiles of A and B to shared memory once and reads them there many "
        "times, which divides global traffic by the tile size.",
        default=TileConfig(BM=32, BN=32, BK=32),
        space={"BM": (8, 16, 32), "BN": (8, 16, 32), "BK": (8, 16, 32)},
        launch=_launch_thread_per_result,
        rule=rules.shared_tiling,
    ),
    Kernel(
        name="coarsening_1d",
        rung=4,
        idea="A thread computes TM results of a column and uses each float of B for all of them, "
        "which saves shared-memory reads and gives it independent work.",
        default=TileConfig(BM=16, BN=16, BK=16, TM=8),
        space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (8, 16, 32), "TM": COARSENING_STRIDES},
        launch=_launch_coarsened,
        rule=rules.coarsening_1d,
        aliases={"stride": "TM"},
    ),
    Kernel(
        name="coarsening_2d",
        rung=5,
        idea="A thread computes TM×TN results as outer products in registers: its reads grow as "
        "TM+TN while its arithmetic grows as TM·TN.",
        default=TileConfig(BM=64, BN=64, BK=8, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_coarsened,
        rule=rules.coarsening_2d,
    ),
    Kernel(
        name="vectorized",
        rung=6,
        idea="Global and shared memory are read four floats at a time, with A transposed on the "
        "way in, so a quarter of the load instructions move the same data.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_vectorized,
        rule=rules.vectorized,
    ),
    Kernel(
        name="conflict_free",
        rung=7,
        idea="Padding, and columns dealt to threads in quads, keep the accesses of a warp in "
        "different banks, so shared memory serves each in as few cycles as its bytes need.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_vectorized,
        rule=rules.conflict_free,
    ),
    Kernel(
        name="double_buffered",
        rung=8,
        idea="The next tiles are fetched while the current ones are multiplied, so the latency of "
        "global memory hides behind arithmetic and one barrier a step suffices.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_vectorized,
        rule=rules.double_buffered,
    ),
    Kernel(
        name="warp_tiled",
        rung=9,
        idea="Each warp owns a compact piece of the block's tile, with its lanes placed so that "
        "neighbours read the same floats, which shared memory serves in fewer wavefronts.",
        default=TileConfig(BM=128, BN=128, BK=16, WM=32, WN=64, TM=8, TN=8),
        space={
            "BM": (32, 64, 128),
            "BN": (32, 64, 128),
            "BK": (8, 16),
            "WM": (16, 32, 64),
            "WN": (16, 32, 64),
            "TM": (4, 8),
            "TN": (4, 8),
        },
        launch=_launch_vectorized,
        rule=rules.warp_tiled,
    ),
    Kernel(
        name="async_copy",
        rung=10,
        idea="cp.async copies tiles to shared memory several stages ahead without passing through "
        "registers, which leaves room for 16×8 results a thread.",
        default=TileConfig(
            BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, bursts=4, order=1
        ),
        space={
            "BM": (32, 64, 128, 192, 256),
            "BN": (32, 64, 128, 192, 256),
            "BK": (8, 16, 32),
            "WM": (16, 32, 48, 64, 96, 128),
            "WN": (16, 32, 64, 128),
            "TM": (4, 8, 12, 16),
            "TN": (4, 8, 16),
            "stages": (2, 3, 4),
        },
        refinements=_INNER_LOOPS,
        launch=_launch_async_copy,
        signature=(*SGEMM_SIGNATURE, *BATCH_ARGUMENTS),
        rule=rules.async_copy,
    ),
    Kernel(
        name="split_k",
        rung=11,
        idea="Several blocks, and several warps of each, share the k of one tile, so that small "
        "products keep the whole board busy too.",
        default=TileConfig(
            BM=64,
            BN=128,
            BK=32,
            WM=32,
            WN=64,
            TM=8,
            TN=8,
            stages=3,
            split_k=2,
            slice_k=2,
            bursts=4,
            order=5,
        ),
        space={
            "BM": (16, 32, 48, 64, 96, 128, 192),
            "BN": (32, 48, 64, 96, 128),
            "BK": (16, 32, 64),
            "WM": (16, 32, 48, 64, 96),
            "WN": (32, 48, 64, 96),
            "TM": (4, 8, 12, 16),
            "TN": (4, 8, 12),
            "stages": (2, 3, 4),
            "split_k": (1, 2, 3, 4, 7, 8),
            "slice_k": (1, 2, 4, 8),
        },
        refinements=_INNER_LOOPS,
        launch=_launch_split_k,
        rule=rules.split_k,
        signature=(*SCRATCH_SIGNATURE, *BATCH_ARGUMENTS),
    ),
    Kernel(
        name="warp_reduce",
        rung=12,
        idea="A product of at most 16 rows or columns reads its large matrix once, copies always "
        "under way, with k shared by lanes, warps and blocks whose sums meet by shuffles.",
        default=TileConfig(BN=32, BK=256, WN=32, stages=2, split_k=128),
        space={
            "BN": (16, 32, 64, 128),
            "BK": (32, 64, 128, 256, 512),
            "WN": (16, 32, 64, 128),
            "stages": (1, 2, 3),
            "split_k": (1, 2, 4, 8, 16, 32, 128),
        },
        launch=skinny.launch,
        rule=skinny.rule,
        signature=(*SCRATCH_SIGNATURE, *BATCH_ARGUMENTS),
        condition=skinny.accepts,
    ),
    Kernel(
        name="stream_k",
        rung=13,
        idea="There are as many blocks as the board holds and each gets an even share of all "
        "steps of k, tiles being cut where a share ends, so that no SM waits for a last wave.",
        default=TileConfig(
            BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, bursts=4, order=1
        ),
        space={
            "BM": (64, 128, 192, 256),
            "BN": (64, 128, 192, 256),
            "BK": (8, 16, 32),
            "WM": (16, 32, 48, 64),
            "WN": (16, 32, 64, 96, 128),
            "TM": (8, 12, 16),
            "TN": (4, 8, 12, 16),
            "stages": (2, 3, 4),
        },
        refinements=_INNER_LOOPS,
        launch=_launch_stream_k,
        rule=rules.async_copy,
        signature=(*SCRATCH_SIGNATURE, *BATCH_ARGUMENTS),
    ),
)


def find_kernel(name: str) -> Kernel:
    """The rung of that name; case and dashes do not matter.

    Raises:
        UsageError: no such kernel; the text lists the nearest names.
    """
    wanted = name.strip().lower().replace("-", "_")
    by_name = {kernel.name: kernel for kernel in LADDER}
    kernel = by_name.get(wanted)
    if kernel is None:
        near = difflib.get_close_matches(wanted, by_name, n=3) or list(by_name)
        raise UsageError(f"unknown kernel '{name}': did you mean {', '.join(near)}?")
    return kernel
