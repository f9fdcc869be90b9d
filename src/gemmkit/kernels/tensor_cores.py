"""What kernels for tensor cores share: types, warp tiles, launches and loads."""

from __future__ import annotations

from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES, Dtype
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.work import VECTOR_BYTES, WORD_BYTES
from gemmkit.problem import GemmProblem

# The first compute capability whose tensor cores multiply a type.
SINCE: dict[Dtype, tuple[int, int]] = {
    "float16": (7, 5),
    "bfloat16": (8, 0),
    "float64": (8, 0),
    **dict.fromkeys(OPERAND_TYPES, (8, 9)),
}

# Rows, columns and depth of a product of 16-bit elements by mma.sync, and columns of one by wmma.
ROWS, COLUMNS, DEPTH = 16, 8, 16
WIDE_COLUMNS = 16

# The types of A and B of the rungs, and of C.
HALVES: tuple[Dtype, ...] = ("bfloat16", "float16")
RESULTS: tuple[Dtype, ...] = (*HALVES, "float32")
HALF_BYTES = 2

# Elements behind each row of a padded tile, so that eight rows lie in different banks.
PAD = VECTOR_BYTES // HALF_BYTES


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A type that the board's tensor cores multiply."""
    return multiplied(problem.dtype, gpu) or rules.whole_elements(problem)


def multiplied(dtype: Dtype, gpu: GpuSpec) -> str | None:
    """Tensor cores of the board multiply the type by mma.sync."""
    since = SINCE[dtype]
    if (gpu.capability.major, gpu.capability.minor) >= since:
        return None
    return (
        f"tensor cores multiply {dtype} from compute capability {since[0]}.{since[1]} on; "
        f"{gpu.name} has {gpu.capability}"
    )


def thread_count(config: TileConfig) -> int:
    """Threads of a block: a warp for each WM×WN tile."""
    return WARP_SIZE * (config["BM"] // config["WM"]) * (config["BN"] // config["WN"])


def warp_tiles(config: TileConfig, gpu: GpuSpec, columns: int = COLUMNS) -> str | None:
    """Warp tiles of whole products, `columns` wide, and registers for their results."""
    results = config["WM"] * config["WN"] // WARP_SIZE
    return rules.first_reason(
        lambda: rules.positive(config),
        lambda: rules.divides(config, ROWS, "WM"),
        lambda: rules.divides(config, columns, "WN"),
        lambda: rules.divides(config, DEPTH, "BK"),
        lambda: rules.divides(config, "WM", "BM"),
        lambda: rules.divides(config, "WN", "BN"),
        lambda: (
            None
            if results <= rules.RESULT_REGISTERS
            else f"{results} results per lane do not fit its registers"
        ),
        lambda: (
            None
            if thread_count(config) <= gpu.capability.max_threads_per_block
            else f"{thread_count(config)} threads per block are more than a GPU allows"
        ),
    )


def room_for_sums(problem: GemmProblem, config: TileConfig) -> str | None:
    """A lane's registers hold the sums of its part of WM×WN results."""
    registers = (
        config["WM"] * config["WN"] // WARP_SIZE * ITEM_BYTES[problem.sum_dtype] // WORD_BYTES
    )
    if registers <= rules.RESULT_REGISTERS:
        return None
    return (
        f"WM*WN {problem.sum_dtype} sums take {registers} registers of each lane: it has "
        f"{rules.RESULT_REGISTERS} for them"
    )


def even_shares(config: TileConfig) -> str | None:
    """Every thread copies equally many elements of each tile, in vectors and one by one, as
    `TypedWalk` in typed_tile.cuh needs."""
    threads = thread_count(config)
    for tile, rows, columns in (("A", "BM", "BK"), ("B", "BK", "BN")):
        for width in (1, VECTOR_BYTES // HALF_BYTES):
            vectors = config[columns] // width
            across = max(min(vectors, threads), threads // config[rows])
            if threads % across or vectors % across or config[rows] % (threads // across):
                return (
                    f"{threads} threads cannot share the {tile} tile evenly "
                    f"({rows} x {columns} = {config[rows]} x {config[columns]} elements)"
                )
    return None


def stage_bytes(config: TileConfig, pad: int = 0) -> int:
    """Shared bytes of one pair of tiles, A's k by k and B's row by row."""
    BM, BN, BK = config["BM"], config["BN"], config["BK"]
    return HALF_BYTES * (BM * (BK + pad) + BK * (BN + pad))


def launch(
    problem: GemmProblem, config: TileConfig, names: tuple[str, ...], shared_bytes: int = 0
) -> LaunchShape:
    """A block per tile; `names` are the template's parameters after the type of A and B."""
    values = {**config.as_dict(), "STAGES": config.stages or 0, "PAD": PAD}
    values["VEC"] = launches.vector_width(problem)
    return LaunchShape(
        template=(CUDA_TYPES[problem.dtype], *(values[name] for name in names)),
        grid=tile_grid(problem, config["BM"], config["BN"]),
        block=(thread_count(config), 1, 1),
        shared_bytes=shared_bytes,
    )


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words:
    """Each warp loads the fragments of its WM×WN results once a step, in the elements' type."""
    warps, lines = thread_count(config) // WARP_SIZE, config["WM"] + config["WN"]
    elements = loads.tile_steps(problem, config) * config["BK"] * warps * lines
    return loads.Words(
        loads.tiles(problem, config, gpu).from_global, elements * problem.item_bytes / WORD_BYTES
    )
