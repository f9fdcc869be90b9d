"""How `gemm_fp64` is launched: float64 on tensor cores, with k shared by slices and by blocks."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import cut, loads, rules, tensor_cores
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import doubles
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.production.arguments import (
    CUDA_LAYOUTS,
    SPLIT_SIGNATURE,
    access,
    launch_shape,
    named,
)
from gemmkit.kernels.production.gemm_split_k import parts_of
from gemmkit.kernels.production.schedule import raster_rows, schedule_argument
from gemmkit.kernels.production.typed import access_widths
from gemmkit.kernels.production.typed_mma import WIDTH_OF_C
from gemmkit.kernels.tensor_cores import COLUMNS, ROWS
from gemmkit.kernels.work import WORD_BYTES, Work
from gemmkit.problem import GemmProblem

DOUBLE_BYTES = ITEM_BYTES["float64"]
# Steps along k of an mma, of which Ampere has the first only; numbers behind each line of a tile.
DEPTHS, PAD = (4, 8, 16), 4
# Pairs of neighboring results that a lane has of an mma.
PAIRS = 2


def thread_count(config: TileConfig) -> int:
    """Threads of a block: a warp for each WM×WN tile of each slice."""
    return tensor_cores.thread_count(config) * config["slice_k"]


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y, the parts of each on z."""
    BM, BN, parts = config["BM"], config["BN"], parts_of(problem, config)
    # One block per SM: of small tiles there are more, but then operands fit the L2 cache.
    raster = raster_rows(problem, BM, BN, gpu.sm_count) if parts == 1 else 0
    tile = {key: value for key, value in config.as_dict().items() if key != "split_k"}
    shape = launch_shape(
        (
            named("DoubleTile", {**tile, "threads": thread_count(config)}),
            access(*access_widths(problem, WIDTH_OF_C)),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem, raster=raster),
        ),
        tile_grid(problem, BM, BN, parts),
        thread_count(config),
        shared_bytes(problem, config),
    )
    left = cut.whole_tiles(problem, config, BM, BN).tiles if parts > 1 else 0
    return replace(
        shape,
        rasterized=raster > 0,
        workspace_bytes=DOUBLE_BYTES * left * parts * BM * BN,
        semaphores=left,
    )


def shared_bytes(problem: GemmProblem, config: TileConfig) -> int:
    """Shared bytes of all stages, and then in their place the sums of the slices."""
    BM, BN, BK = config["BM"], config["BN"], config["BK"]
    numbers = 0
    for side, along_k in ((BM, not problem.transa), (BN, problem.transb)):
        lines, length = (side, BK) if along_k else (BK, side)
        numbers += lines * (length + PAD)
    sums = config["slice_k"] * BM * BN if config["slice_k"] > 1 else 0
    return DOUBLE_BYTES * max(config["stages"] * numbers, sums)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile, or a part of its k, per block."""
    parts = parts_of(problem, config)
    found = cut.whole_tiles(problem, config, config["BM"], config["BN"], parts)
    widths = access_widths(problem, WIDTH_OF_C)
    return doubles(
        thread_count(config), shared_bytes(problem, config), problem, config, found, widths
    )


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words:
    """Fragments of each warp, the slices sharing k, and the partial sums of slices and parts.

    Where blocks share a tile, each thread reads a byte that says whether its block is the last.
    """
    plain, slices = tensor_cores.words(problem, config, gpu), config["slice_k"]
    parts = parts_of(problem, config)
    found = cut.whole_tiles(problem, config, config["BM"], config["BN"], parts)
    sums = found.ctas * config["BM"] * config["BN"] * DOUBLE_BYTES / WORD_BYTES
    shared = sums * slices if slices > 1 else 0.0
    if parts == 1:
        return loads.Words(plain.from_global, plain.from_shared + shared)
    shared += found.ctas * thread_count(config) / WORD_BYTES
    return loads.Words(plain.from_global + sums, plain.from_shared + shared)


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A board with cp.async and tensor cores for fp64."""
    return rules.has_cp_async(gpu) or tensor_cores.condition(problem, gpu)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles of whole products, and slices with equal shares of k and of results."""
    return rules.first_reason(
        lambda: rules.has_cp_async(gpu),
        lambda: rules.positive(config),
        lambda: rules.divides(config, ROWS, "WM"),
        lambda: rules.divides(config, COLUMNS, "WN"),
        lambda: rules.divides(config, "WM", "BM"),
        lambda: rules.divides(config, "WN", "BN"),
        lambda: next(
            (reason for key in ("BM", "BN", "BK") if (reason := rules.power_of_two(config, key))),
            None,
        ),
        lambda: rules.enough_stages(config),
        lambda: _depth(config, gpu),
        lambda: _slices(config),
        lambda: rules.block_fits(thread_count(config), gpu),
    )


def _depth(config: TileConfig, gpu: GpuSpec) -> str | None:
    depth = config["mma_k"]
    if depth not in DEPTHS:
        return f"mma_k = {depth}: tensor cores multiply {', '.join(map(str, DEPTHS))} steps of k"
    if depth > DEPTHS[0] and gpu.capability.major < 9:
        return (
            f"mma_k = {depth}: before compute capability 9.0 an mma of fp64 has {DEPTHS[0]} steps "
            f"of k; {gpu.name} has {gpu.capability}"
        )
    return None


def _slices(config: TileConfig) -> str | None:
    slices, depth = config["slice_k"], config["mma_k"]
    if config["BK"] % (slices * depth):
        return (
            f"BK = {config['BK']} must be a multiple of slice_k·mma_k = {slices * depth}, so that "
            "slices have whole products"
        )
    pairs = PAIRS * (config["WM"] // ROWS) * (config["WN"] // COLUMNS)
    if pairs % slices:
        return f"slice_k = {slices} must divide the {pairs} pairs of results that a lane has"
    return None


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What depends on layouts: room for stages and sums, even shares of what is copied."""
    return rules.first_reason(
        lambda: tensor_cores.room_for_sums(problem, config),
        lambda: _even_copies(problem, config),
        lambda: rules.dynamic_shared(shared_bytes(problem, config), gpu),
    )


def _even_copies(problem: GemmProblem, config: TileConfig) -> str | None:
    """Every thread has as many vectors of each tile, in whole rows of threads."""
    threads = thread_count(config)
    widths = access_widths(problem, WIDTH_OF_C)
    for key, along_k, width in (
        ("BM", not problem.transa, widths[0]),
        ("BN", problem.transb, widths[1]),
    ):
        lines, length = (config[key], config["BK"]) if along_k else (config["BK"], config[key])
        across = length // width
        if lines * across % threads or (across % threads and threads % across):
            return f"{threads} threads cannot share the copies of a tile of {key} × BK evenly"
    return None


KERNEL = Kernel(
    name="gemm_fp64",
    rung=None,
    idea="Tensor cores multiply fp64 tiles that cp.async copies several stages ahead, and slices "
    "of a block, and several blocks, share the k of a tile where there are few.",
    default=TileConfig(BM=64, BN=64, BK=16, WM=32, WN=32, stages=4, split_k=1, slice_k=1, mma_k=4),
    space={
        "BM": (16, 32, 64, 128),
        "BN": (16, 32, 64, 128),
        "BK": (8, 16, 32, 64),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "stages": (2, 3, 4, 5, 6),
        "split_k": (1, 2, 3, 4, 8),
        "slice_k": (1, 2, 4, 8),
        "mma_k": DEPTHS,
    },
    launch=launch,
    work=work,
    loads=words,
    rule=rule,
    signature=SPLIT_SIGNATURE,
    layouts=LAYOUTS,
    dtypes=("float64",),
    condition=condition,
    pairing=pairing,
)
