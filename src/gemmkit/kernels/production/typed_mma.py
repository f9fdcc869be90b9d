"""How `typed_mma` is launched, and what it refuses: products on the tensor cores by mma.sync."""

from __future__ import annotations

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production import typed
from gemmkit.kernels.production.arguments import (
    CUDA_LAYOUTS,
    SIGNATURE,
    access,
    launch_shape,
    named,
)
from gemmkit.kernels.production.schedule import schedule_argument
from gemmkit.kernels.tensor_cores import condition, room_for_sums, thread_count, warp_tiles, words
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Results side by side that a lane has.
WIDTH_OF_C = 2


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """As `typed`, but that the type of the sums follows from that of the elements."""
    return launch_shape(
        (*template(problem, config), schedule_argument(problem)),
        tile_grid(problem, config["BM"], config["BN"]),
        thread_count(config),
        shared_bytes(problem, config),
    )


def template(problem: GemmProblem, config: TileConfig) -> tuple[str, ...]:
    """The mainloop's template arguments: type, tile, access widths and layout."""
    tile = {**config.as_dict(), "pad": pad(problem), "threads": thread_count(config)}
    return (
        CUDA_TYPES[problem.dtype],
        named("Tile", tile),
        access(*typed.access_widths(problem, WIDTH_OF_C)),
        CUDA_LAYOUTS[problem.layout],
    )


def pad(problem: GemmProblem) -> int:
    """Elements behind each line of a tile, so that those of a fragment are in different banks."""
    return 4 if problem.item_bytes == ITEM_BYTES["float64"] else 8


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec, found: Cut | None = None) -> Work:
    """A tile per block, on the tensor cores; with `found`, blocks that share the problem as that
    says."""
    threads = thread_count(config)
    return tensor(threads, shared_bytes(problem, config), problem, config, found)


def shared_bytes(problem: GemmProblem, config: TileConfig) -> int:
    """Shared bytes of two stages, padded."""
    total = 0
    for side, along_k in (("BM", not problem.transa), ("BN", problem.transb)):
        extent, BK = config[side], config["BK"]
        if problem.item_bytes == ITEM_BYTES["float64"]:
            total += problem.item_bytes * BK * (extent + pad(problem))
        else:
            numbers = extent * (BK + pad(problem)) if along_k else BK * (extent + pad(problem))
            total += problem.item_bytes * numbers
    return 2 * total


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What depends on the types: room for sums and tiles, and even shares of what is copied."""
    threads, in_pairs = thread_count(config), problem.item_bytes == ITEM_BYTES["float16"]
    return rules.first_reason(
        lambda: room_for_sums(problem, config),
        lambda: typed.even_shares(problem, config, threads, in_pairs=in_pairs),
        lambda: rules.dynamic_shared(shared_bytes(problem, config), gpu, "tiles"),
    )


KERNEL = Kernel(
    name="typed_mma",
    rung=None,
    idea="Warps multiply float16, bfloat16 or float64 tiles by mma.sync, on the tensor cores, "
    "whose peak is many times that of single multiply-adds.",
    default=TileConfig(BM=64, BN=64, BK=32, WM=32, WN=32),
    space={
        "BM": (32, 64, 128),
        "BN": (32, 64, 128, 256),
        "BK": (16, 32, 64),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
    },
    launch=launch,
    work=work,
    loads=words,
    rule=warp_tiles,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    dtypes=("float16", "bfloat16", "float64"),
    result_dtypes=("float16", "bfloat16", "float64", "float32"),
    condition=condition,
    pairing=pairing,
)
