"""What kernels of wgmma and TMA share: boards, alignment, tensor maps, and the rungs' tiles."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import loads, rules, tensor_cores
from gemmkit.kernels.plan import SGEMM_SIGNATURE, Signature, TileConfig, ceil_div
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.kernels.work import WORD_BYTES
from gemmkit.problem import GemmProblem

# The compute capability whose tensor cores have wgmma.
CAPABILITY = (9, 0)
# Rows of a product, and the most columns that one instruction has.
ROWS, MOST_COLUMNS = 64, 256
WARPGROUP = 4 * WARP_SIZE
# Bytes of a line in shared memory, after which the swizzle turns to the next one; what TMA needs
# addresses and distances in memory to be multiples of; and of what swizzled tiles begin at.
LINE_BYTES, TMA_UNIT, TILE_ALIGNMENT = 128, 16, 1024
# Lines after which the swizzle repeats.
SWIZZLED_LINES = TILE_ALIGNMENT // LINE_BYTES
# Bytes of memory that TMA has L2 fetch at once; and where lines of boxes are not those of the
# cache: a product of 3000³ takes 10 % longer there with the larger number (H100).
L2_BYTES, L2_BYTES_ACROSS_LINES = 256, 128

# Of rungs: the step along k, a line; bytes of the two barriers of a stage; registers of a thread
# besides its results.
DEPTH, BARRIER_BYTES, BESIDES = 64, 16, 60
# Those to which TMA brings A and B.
MAPS_SIGNATURE: Signature = (
    *("map_a", "map_b"),
    *(each for each in SGEMM_SIGNATURE if each not in ("A", "lda", "B", "ldb")),
)


def line(item_bytes: int) -> int:
    """Elements of a line in shared memory."""
    return LINE_BYTES // item_bytes


def aligned_bytes(nbytes: int) -> int:
    """Bytes up to where another swizzled tile may begin."""
    return ceil_div(nbytes, TILE_ALIGNMENT) * TILE_ALIGNMENT


def is_swapped(config: TileConfig) -> bool:
    """Whether a tile's rows are no multiple of a wgmma's, so that its transpose is computed."""
    return config["BM"] % ROWS != 0


def product_sides(config: TileConfig, *, swapped: bool | None = None) -> tuple[int, int]:
    """Rows and columns of a block's products by wgmma: those of its tile, or of its transpose if
    that is `swapped`; by default where its sides make it so."""
    sides = config["BM"], config["BN"]
    return sides[::-1] if (is_swapped(config) if swapped is None else swapped) else sides


def has_wgmma(gpu: GpuSpec) -> str | None:
    """The board's tensor cores have wgmma."""
    if (gpu.capability.major, gpu.capability.minor) == CAPABILITY:
        return None
    return f"wgmma is for compute capability 9.0 (--gpu h100); {gpu.name} has {gpu.capability}"


def unaligned(problem: GemmProblem) -> str | None:
    """Addresses and rows of A and B are such as TMA can load."""
    if problem.alignment % TMA_UNIT:
        return f"TMA needs addresses that are multiples of {TMA_UNIT} bytes: copy first"
    for name, ld, stride in (
        ("A", problem.lda, problem.strides[0]),
        ("B", problem.ldb, problem.strides[1]),
    ):
        apart = (ld | (stride if problem.batch != 1 else 0)) * problem.item_bytes
        if apart % TMA_UNIT:
            return (
                f"TMA needs rows that lie a multiple of {TMA_UNIT} bytes apart: those of {name} "
                f"lie {ld * problem.item_bytes}"
            )
    return None


def stores_by_tma(problem: GemmProblem) -> bool:
    """Whether C's rows are aligned, and end where units of a tensor store do."""
    units = problem.extents[2] * problem.out_item_bytes
    return units % TMA_UNIT == 0 and problem.alignment % TMA_UNIT == 0


def words(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, *, swapped: bool | None = None
) -> loads.Words:
    """A tile of each operand per block and step, of which the blocks of a cluster load shares;
    wgmma reads B once for each 64 rows, or if `swapped` (see `product_sides`) A."""
    rows, columns = product_sides(config, swapped=swapped)
    per_step = rows + columns * (rows // ROWS)
    elements = loads.tile_steps(problem, config) * config["BK"] * per_step
    shared = replace(
        config,
        BM=config["BM"] * (config.cluster_m or 1),
        BN=config["BN"] * (config.cluster_n or 1),
    )
    return loads.Words(
        loads.tiles(problem, shared, gpu).from_global, elements * problem.item_bytes / WORD_BYTES
    )


# --- rungs ------------------------------------------------------------------------------------


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """Types of 16 bits, on a board that has wgmma."""
    return has_wgmma(gpu) or tensor_cores.condition(problem, gpu)


def loaded_by_tma(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """The same, with operands that TMA can load; where a size is 0 it loads none."""
    return condition(problem, gpu) or (unaligned(problem) if problem.flops else None)


def thread_count(config: TileConfig, producers: int = 0) -> int:
    """Threads of a block: a warpgroup for each 64 rows, and one that loads."""
    return (config["BM"] // ROWS + producers) * WARPGROUP


def tiles(config: TileConfig, gpu: GpuSpec, stages: int = 2) -> str | None:
    """Whole products in tiles of whole lines, registers for the results, so many stages."""
    BN, threads = config["BN"], thread_count(config)
    results = BN // 2
    return rules.first_reason(
        lambda: has_wgmma(gpu),
        lambda: rules.positive(config),
        lambda: rules.divides(config, ROWS, "BM"),
        lambda: rules.divides(config, line(tensor_cores.HALF_BYTES), "BN"),
        lambda: (
            None
            if config["BK"] == DEPTH
            else f"BK = {config['BK']}: a line of the swizzle has {DEPTH} elements of k"
        ),
        lambda: (
            f"BN = {BN}: wgmma has at most {MOST_COLUMNS} columns" if BN > MOST_COLUMNS else None
        ),
        lambda: (
            None
            if threads <= gpu.capability.max_threads_per_block
            and results + BESIDES <= gpu.capability.registers_per_sm // threads
            else f"{results} results per thread do not fit the registers of {threads} threads"
        ),
        lambda: None if config["stages"] >= stages else f"a pipeline needs {stages} stages or more",
    )


def two_consumers(config: TileConfig) -> str | None:
    """Two warpgroups multiply, for which the registers of a block are."""
    rows = 2 * ROWS
    return None if config["BM"] == rows else f"BM = {config['BM']}: two consumers have {rows} rows"


def stage_bytes(config: TileConfig) -> int:
    """Shared bytes of one pair of tiles."""
    return tensor_cores.HALF_BYTES * config["BK"] * (config["BM"] + config["BN"])


def shared_bytes(config: TileConfig, results: int = 0) -> int:
    """Shared bytes of stages, of buffers for results, and of barriers."""
    total = config["stages"] * (stage_bytes(config) + BARRIER_BYTES) + results
    return aligned_bytes(total)


def maps(problem: GemmProblem, config: TileConfig) -> tuple[MapRule, ...]:
    """Tensor maps of A and B in boxes of whole lines; none where k is 0."""
    if problem.k == 0:
        return ()
    columns = line(tensor_cores.HALF_BYTES)
    return (
        MapRule("map_a", "A", (columns, config["BM"]), swizzle=LINE_BYTES, l2=L2_BYTES),
        MapRule("map_b", "B", (columns, config["BK"]), swizzle=LINE_BYTES, l2=L2_BYTES),
    )


def in_cluster(config: TileConfig, cluster_m: int = 1) -> TileConfig:
    """A rung's configuration with the keys of production kernels."""
    return replace(
        config, consumers=config["BM"] // ROWS, cluster_m=cluster_m, cluster_n=1, cluster_k=1
    )
