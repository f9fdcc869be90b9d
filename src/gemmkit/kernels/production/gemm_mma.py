"""How `gemm_mma` is launched, and what it refuses: products by mma.sync and cp.async."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, tensor_cores
from gemmkit.kernels.copying import copying
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.operand_copies import OperandCopy, aligned_copies, moved_bytes
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production.arguments import (
    CUDA_LAYOUTS,
    SIGNATURE,
    access,
    launch_shape,
    named,
)
from gemmkit.kernels.production.schedule import raster_rows, schedule_argument
from gemmkit.kernels.production.typed import access_widths
from gemmkit.kernels.production.typed_mma import WIDTH_OF_C
from gemmkit.kernels.work import VECTOR_BYTES, Work
from gemmkit.problem import GemmProblem

# Steps along k of a product of numbers of fp64.
DEPTH_OF_DOUBLE = 4
# Bytes behind each row of a tile whose fragments are read number by number.
PAD_BYTES = 32


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """A tile for each block, in groups of rows where that saves reads."""
    return tile_launch(problem, config, gpu, (CUDA_TYPES[problem.dtype],))


def tile_launch(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, types: tuple[str, ...] = ()
) -> LaunchShape:
    """Column tiles on x, row tiles on y and z; `types` are the first template arguments."""
    BM, BN, threads = config["BM"], config["BN"], tensor_cores.thread_count(config)
    # One block per SM: the stages of most configurations leave no room for another.
    raster = raster_rows(problem, BM, BN, gpu.sm_count)
    copies = copied(problem)
    shape = launch_shape(
        (*types, *tile_arguments(problem, config, raster)),
        tile_grid(problem, BM, BN),
        threads,
        shared_bytes(problem, config),
    )
    copies = copies if problem.flops else ()
    shape = replace(shape, rasterized=raster > 0, copies=copies, in_place=True)
    return with_copies_made(shape, problem, gpu, copying)


def tile_arguments(
    problem: GemmProblem, config: TileConfig, raster: int, **further: int
) -> tuple[str, ...]:
    """The template arguments after types: a tile, with `further` fields, how matrices are read and
    written, their layout, and in which order blocks take tiles."""
    tile = {**config.as_dict(), "threads": tensor_cores.thread_count(config), **further}
    return (
        named("Tile", tile),
        access(vector(problem), vector(problem), access_widths(problem, WIDTH_OF_C)[2]),
        CUDA_LAYOUTS[problem.layout],
        schedule_argument(problem, raster=raster),
    )


def copied(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """The operands that it reads copies of: their rows are then whole vectors in memory, of which
    cp.async takes the part that is inside. compute-sanitizer takes such copies for reads of the
    whole vector."""
    return aligned_copies(problem, whole_vectors=True)


def vector(problem: GemmProblem) -> int:
    """Elements of a copy."""
    return VECTOR_BYTES // problem.item_bytes


def is_double(problem: GemmProblem) -> bool:
    """Whether numbers are of fp64, which come in other products and tiles."""
    return problem.item_bytes == ITEM_BYTES["float64"]


def shared_bytes(problem: GemmProblem, config: TileConfig) -> int:
    """Shared bytes of all stages."""
    total, BK, item = 0, config["BK"], problem.item_bytes
    for side, along_k in (("BM", not problem.transa), ("BN", problem.transb)):
        rows, columns = (config[side], BK) if along_k else (BK, config[side])
        total += rows * (columns * item + PAD_BYTES * by_numbers(problem, along_k=along_k))
    return config["stages"] * total


def by_numbers(problem: GemmProblem, *, along_k: bool) -> bool:
    """Whether fragments of an operand are read number by number, which ldmatrix does not do: of
    fp64, and of fp32 where its neighbors do not lie along k."""
    return is_double(problem) or (problem.item_bytes == ITEM_BYTES["float32"] and not along_k)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, on the tensor cores; rows are aligned once they have been copied."""
    threads, copies = tensor_cores.thread_count(config), copied(problem)
    found = tensor(threads, shared_bytes(problem, config), problem, config, aligned=True)
    return found._replace(copied_bytes=moved_bytes(problem, copies))


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A type that tensor cores multiply, on a board with cp.async."""
    return rules.has_cp_async(gpu) or tensor_cores.condition(problem, gpu)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles of pairs of products, and more than one stage."""
    return rules.first_reason(
        lambda: rules.has_cp_async(gpu),
        lambda: tensor_cores.warp_tiles(config, gpu, tensor_cores.WIDE_COLUMNS),
        lambda: next(
            (
                f"{key} = {config[key]}: tiles have powers of two of rows and columns"
                for key in ("BM", "BN", "BK")
                if config[key] & (config[key] - 1)
            ),
            None,
        ),
        lambda: rules.enough_stages(config),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What depends on the type: room for stages and sums, pairs of products, even shares of what
    is copied."""
    depth = DEPTH_OF_DOUBLE if is_double(problem) else tensor_cores.DEPTH
    return in_pairs(problem, config, gpu, depth)


def in_pairs(problem: GemmProblem, config: TileConfig, gpu: GpuSpec, depth: int) -> str | None:
    """The same for products of `depth` along k."""
    return rules.first_reason(
        lambda: (
            f"BK = {config['BK']}: fragments alternate between two sets of registers, so that it "
            f"must be a multiple of {2 * depth}"
            if config["BK"] % (2 * depth)
            else None
        ),
        lambda: tensor_cores.room_for_sums(problem, config),
        lambda: even_copies(
            config, vector(problem), a_along_k=not problem.transa, b_along_k=problem.transb
        ),
        lambda: rules.dynamic_shared(shared_bytes(problem, config), gpu),
    )


def even_copies(
    config: TileConfig, elements: int, *, a_along_k: bool, b_along_k: bool
) -> str | None:
    """Every thread has as many vectors of so many elements of each tile, in whole rows of
    threads."""
    threads = tensor_cores.thread_count(config)
    for key, along_k in (("BM", a_along_k), ("BN", b_along_k)):
        rows, columns = config[key], config["BK"]
        if not along_k:
            rows, columns = columns, rows
        across = columns // elements
        if rows * across % threads or (across % threads and threads % across):
            return f"{threads} threads cannot share the copies of a tile of {key} × BK evenly"
    return None


KERNEL = Kernel(
    name="gemm_mma",
    rung=None,
    idea="cp.async copies tiles several stages ahead, and warps multiply them by mma.sync while "
    "they read the next fragments, in every layout.",
    default=TileConfig(BM=128, BN=256, BK=32, WM=64, WN=64, stages=4),
    space={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "BK": (8, 16, 32, 64),
        "WM": (16, 32, 64, 128),
        "WN": (16, 32, 64, 128),
        "stages": (2, 3, 4, 5, 6),
    },
    launch=launch,
    work=work,
    loads=tensor_cores.words,
    rule=rule,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    dtypes=(*tensor_cores.HALVES, "float64"),
    result_dtypes=(*tensor_cores.RESULTS, "float64"),
    condition=condition,
    pairing=pairing,
)
