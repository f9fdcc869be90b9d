"""How `typed_mma` is launched, and what it refuses: products on the tensor cores by mma.sync."""

from __future__ import annotations

from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import loads, rules
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
from gemmkit.kernels.work import WORD_BYTES, Work
from gemmkit.problem import GemmProblem

# Rows and columns of a product of mma.sync, and the deepest of them.
ROWS, COLUMNS, DEPTH = 16, 8, 16

# Results side by side that a lane has.
WIDTH_OF_C = 2

# The first compute capability whose tensor cores multiply a type.
SINCE: dict[Dtype, tuple[int, int]] = {"float16": (7, 5), "bfloat16": (8, 0), "float64": (8, 0)}


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """As `typed`, but that the type of the sums follows from that of the elements."""
    threads = thread_count(config)
    return launch_shape(
        (
            CUDA_TYPES[problem.dtype],
            named("Tile", {**config.as_dict(), "pad": pad(problem), "threads": threads}),
            access(*typed.access_widths(problem, WIDTH_OF_C)),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem),
        ),
        tile_grid(problem, config["BM"], config["BN"]),
        threads,
        shared_bytes(problem, config),
    )


def pad(problem: GemmProblem) -> int:
    """Elements behind each line of a tile, so that those of a fragment are in different banks."""
    return 4 if problem.item_bytes == ITEM_BYTES["float64"] else 8


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, on the tensor cores."""
    return tensor(thread_count(config), shared_bytes(problem, config), problem, config)


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words:
    """Each warp loads the fragments of its WM×WN results once a step, in the elements' type."""
    warps, lines = thread_count(config) // WARP_SIZE, config["WM"] + config["WN"]
    elements = loads.tile_steps(problem, config) * config["BK"] * warps * lines
    return loads.Words(
        loads.tiles(problem, config, gpu).from_global, elements * problem.item_bytes / WORD_BYTES
    )


def thread_count(config: TileConfig) -> int:
    """Threads of a block."""
    return WARP_SIZE * (config["BM"] // config["WM"]) * (config["BN"] // config["WN"])


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


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """Types that the board's tensor cores multiply."""
    since = SINCE.get(problem.dtype)
    if since is None:
        return f"tensor cores would cut {problem.dtype} to fewer bits"
    if (gpu.capability.major, gpu.capability.minor) < since:
        return (
            f"tensor cores multiply {problem.dtype} from compute capability {since[0]}.{since[1]} "
            f"on; {gpu.name} has {gpu.capability}"
        )
    return typed.condition(problem, gpu)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles of whole products, and registers for their results."""
    results = config["WM"] * config["WN"] // WARP_SIZE
    return rules.first_reason(
        lambda: rules.positive(config),
        lambda: rules.divides(config, ROWS, "WM"),
        lambda: rules.divides(config, COLUMNS, "WN"),
        lambda: rules.divides(config, DEPTH, "BK"),
        lambda: rules.divides(config, "WM", "BM"),
        lambda: rules.divides(config, "WN", "BN"),
        lambda: (
            None
            if results <= typed.RESULT_REGISTERS
            else f"{results} results per lane do not fit its registers"
        ),
        lambda: (
            None
            if thread_count(config) <= gpu.capability.max_threads_per_block
            else f"{thread_count(config)} threads per block are more than a GPU allows"
        ),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What depends on the types: room for sums and tiles, and even shares of what is copied."""
    registers = config["WM"] * config["WN"] // WARP_SIZE * ITEM_BYTES[problem.sum_dtype] // 4
    if registers > typed.RESULT_REGISTERS:
        return (
            f"WM*WN {problem.sum_dtype} sums take {registers} registers of each lane: it has "
            f"{typed.RESULT_REGISTERS} for them"
        )
    threads, in_pairs = thread_count(config), problem.item_bytes == ITEM_BYTES["float16"]
    return rules.first_reason(
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
    rule=rule,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    # Of float32 it makes results alone.
    dtypes=("float16", "bfloat16", "float64", "float32"),
    condition=condition,
    pairing=pairing,
)
