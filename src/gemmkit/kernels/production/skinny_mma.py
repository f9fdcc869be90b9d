"""How `skinny_mma` is launched: at most 16 rows or columns of 16 bits, whatever their alignment."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import loads, rules, tensor_cores
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.grids import batch_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.short_sides import MMA_STEP, streamed_to_mma
from gemmkit.kernels.operand_copies import rounded_up
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production.arguments import SPLIT_SIGNATURE, launch_shape, named
from gemmkit.kernels.production.gemm_skinny import accepts, is_tall, padded_side
from gemmkit.kernels.production.schedule import schedule_argument
from gemmkit.kernels.work import VECTOR_BYTES, Work
from gemmkit.problem import GemmProblem

# Elements of a vector, and classes of rows that begin at the same place of one: a warp for each.
VECTOR, CLASSES = 8, 8
THREADS = WARP_SIZE * CLASSES
# Lines of a fragment that lie along k, of all classes, and columns of one that lies across k.
ALONG_K, ACROSS_K = 16 * CLASSES, 8 * VECTOR
# Elements behind each line of the small matrix, and sums of a line between gaps of one.
PAD, GAP = 2, 8
# Blocks of which an SM may hold parts of k.
BLOCKS_PER_SM = 4
# Sums of a lane that leave room for its vectors.
MOST_SUMS = 64
# Vectors of a lane of each.
VECTORS_ALONG_K, VECTORS_ACROSS_K = 8, 4


def is_k_major(problem: GemmProblem) -> bool:
    """Whether the streamed matrix is contiguous along k."""
    return not problem.transa if is_tall(problem) else problem.transb


def lines_inside(problem: GemmProblem, config: TileConfig) -> int:
    """Results along the long side that a block finishes: columns begin up to seven before them."""
    return config["BN"] - (0 if is_k_major(problem) else VECTOR)


def fragments(problem: GemmProblem, config: TileConfig) -> int:
    """Fragments of the streamed matrix that a warp has of a step."""
    return config["BN"] // (ALONG_K if is_k_major(problem) else ACROSS_K)


def cut(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Cut:
    """At most `split_k` parts of k, and no more than SMs hold at once."""
    tall, lines = is_tall(problem), lines_inside(problem, config)
    long = problem.m if tall else problem.n
    tiles = ceil_div(long, lines) * problem.batch if min(problem.m, problem.n) else 0
    reach = problem.k + (VECTOR - 1 if is_k_major(problem) else 0)
    depth = ceil_div(reach, MMA_STEP) if problem.k and problem.alpha else 0
    most = BLOCKS_PER_SM * gpu.sm_count // max(tiles, 1)
    parts = max(1, min(config["split_k"], depth, most))
    rows, columns = (lines, problem.n) if tall else (problem.m, lines)
    steps = max(1, ceil_div(depth, parts)) if tiles else 0
    return Cut(rows, columns, tiles, tiles * parts, steps, 1, parts)


def shared_bytes(problem: GemmProblem, config: TileConfig) -> int:
    """Shared bytes of vectors on their way and of the small matrix's lines, and then in their place
    of the warps' sums."""
    side = padded_side(problem)
    each = VECTORS_ALONG_K if is_k_major(problem) else VECTORS_ACROSS_K
    ring = VECTOR_BYTES * THREADS * each * fragments(problem, config) * config["stages"]
    lines = tensor_cores.HALF_BYTES * side * (VECTOR + config["BK"] + PAD)
    arrays = 1 if is_k_major(problem) else CLASSES
    sums = FLOAT_BYTES * arrays * side * (config["BN"] + config["BN"] // GAP + 1)
    return max(ring + rounded_up(lines, VECTOR_BYTES), sums)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Tiles along the long side on x, the parts of k on y."""
    found, side = cut(problem, config, gpu), padded_side(problem)
    tiles, parts = found.tiles // max(problem.batch, 1), found.parts
    left = found.tiles if parts > 1 else 0
    tall = is_tall(problem)
    tile = {
        "side": side,
        "tall": tall,
        "k_major": is_k_major(problem),
        "small_k_major": problem.transb if tall else not problem.transa,
        **{key: config[key] for key in ("BN", "BK", "stages")},
    }
    shape = launch_shape(
        (
            CUDA_TYPES[problem.dtype],
            named("SkinnyMmaTile", tile),
            schedule_argument(problem),
        ),
        batch_grid(tiles, parts, problem.batch),
        THREADS,
        shared_bytes(problem, config),
    )
    return replace(
        shape,
        workspace_bytes=FLOAT_BYTES * left * parts * side * config["BN"],
        semaphores=left,
    )


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """What its blocks ask of an SM: the large matrix, once."""
    found = cut(problem, config, gpu)
    taken, k_major = shared_bytes(problem, config), is_k_major(problem)
    return streamed_to_mma(found, problem, config, THREADS, taken, k_major=k_major)


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """Few rows or columns of a type that tensor cores multiply, on a board with cp.async."""
    return rules.first_reason(
        lambda: accepts(problem, gpu),
        lambda: rules.has_cp_async(gpu),
        lambda: tensor_cores.condition(problem, gpu),
    )


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Whole fragments and steps."""
    return rules.first_reason(
        lambda: rules.has_cp_async(gpu),
        lambda: rules.positive(config),
        lambda: rules.power_of_two(config, "BN"),
        lambda: (
            None if config["BN"] >= ALONG_K else f"BN = {config['BN']} must be {ALONG_K} or more"
        ),
        lambda: rules.divides(config, MMA_STEP, "BK"),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for sums in registers, and for them and vectors in shared memory."""
    sums = config["BN"] * 8 * ceil_div(padded_side(problem), 8) // THREADS
    sums *= 1 if is_k_major(problem) else CLASSES
    if sums > MOST_SUMS:
        return f"{sums} sums of a lane leave no registers for the rest: {MOST_SUMS} do"
    return rules.dynamic_shared(shared_bytes(problem, config), gpu)


KERNEL = Kernel(
    name="skinny_mma",
    rung=None,
    idea="A product of at most 16 rows or columns of 16 bits reads its large matrix once, in "
    "aligned vectors though rows begin anywhere: each warp has rows that begin alike.",
    default=TileConfig(BN=128, BK=256, stages=2, split_k=8),
    space={
        "BN": (128, 256),
        "BK": (128, 256, 512, 1024),
        "stages": (1, 2, 3),
        "split_k": (1, 2, 4, 6, 8, 12, 16, 32),
    },
    launch=launch,
    work=work,
    loads=loads.no_formula(loads.SHARED_K),
    rule=rule,
    signature=SPLIT_SIGNATURE,
    layouts=LAYOUTS,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=condition,
    pairing=pairing,
)
