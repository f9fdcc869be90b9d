"""How `gemm_fp8_mma` is launched: operands of 8 bits on tensor cores, by mma.sync."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.float8_products import CHUNK
from gemmkit.gpu import WARP_SIZE, GpuSpec, MathPipe
from gemmkit.kernels import rules, tensor_cores
from gemmkit.kernels.copying import copying
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.operand_copies import OperandCopy, aligned_copies, moved_bytes
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production import gemm_mma
from gemmkit.kernels.production.arguments import (
    SCALED_SIGNATURE,
    SIGNATURE,
    access,
    launch_shape,
    named,
    scales_argument,
)
from gemmkit.kernels.production.gemm_fp8 import compute_dtype, is_fast
from gemmkit.kernels.production.schedule import raster_rows, schedule_argument
from gemmkit.kernels.production.typed import access_widths
from gemmkit.kernels.production.typed_mma import WIDTH_OF_C
from gemmkit.kernels.work import VECTOR_BYTES, Work
from gemmkit.problem import GemmProblem
from gemmkit.scales import NONE

# Steps along k of a product, and multiply-adds of one over the lanes of its warp.
DEPTH = 32
OF_LANE = tensor_cores.ROWS * tensor_cores.COLUMNS * DEPTH / WARP_SIZE


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """A tile for each block, in groups of rows where that saves reads, after the copies of operands
    that need them."""
    BM, BN, threads = config["BM"], config["BN"], tensor_cores.thread_count(config)
    sums = "OF_TENSOR_CORES" if is_fast(problem) else "PROMOTED"
    raster = raster_rows(problem, BM, BN, gpu.sm_count)
    vector, of_c = VECTOR_BYTES // problem.item_bytes, access_widths(problem, WIDTH_OF_C)[2]
    scales = (scales_argument(problem.scales),) if problem.scales else ()
    shape = launch_shape(
        (
            CUDA_TYPES[problem.dtype],
            named("Tile", {**config.as_dict(), "threads": threads}),
            access(vector, vector, of_c),
            f"Sums::{sums}",
            schedule_argument(problem, raster=raster),
            *scales,
        ),
        tile_grid(problem, BM, BN),
        threads,
        shared_bytes(config),
    )
    copies = copied(problem) if problem.flops else ()
    shape = replace(shape, rasterized=raster > 0, copies=copies, in_place=True)
    shape = with_copies_made(shape, problem, gpu, copying)
    if not problem.scales:
        return shape
    return replace(shape, entry="gemm_fp8_mma_scaled", signature=SCALED_SIGNATURE)


def copied(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """The operands that it reads copies of: those that do not lie along k, and those that
    `gemm_mma` copies."""
    return aligned_copies(problem, whole_vectors=True, along_k="AB")


def shared_bytes(config: TileConfig) -> int:
    """Shared bytes of all stages."""
    return config["stages"] * (config["BM"] + config["BN"]) * config["BK"]


def registers_of_sums(problem: GemmProblem, config: TileConfig) -> int:
    """Registers of a lane for sums: two for each result where those of chunks are promoted, and a
    factor if these have scales of each column."""
    results = config["WM"] * config["WN"] // WARP_SIZE
    if is_fast(problem):
        return results
    of_columns = problem.scales.b != NONE and problem.scales.b.lines <= 1
    return results * (3 if problem.scales.of_chunks and of_columns else 2)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, on the tensor cores, once operands have been copied."""
    threads = tensor_cores.thread_count(config)
    found = tensor(threads, shared_bytes(config), problem, config, aligned=True)
    WM, WN, own = config["WM"], config["WN"], found.demands
    promoting = 0 if is_fast(problem) else WM * WN * config["BK"] // CHUNK // WARP_SIZE
    fragments = (WM + WN) * DEPTH * problem.item_bytes // WARP_SIZE // 4
    demands = replace(
        own,
        math=MathPipe("float8", tensor=True),
        per_instruction=OF_LANE,
        issue=own.issue + promoting,
        registers=registers_of_sums(problem, config) + 2 * fragments,
    )
    return found._replace(demands=demands, copied_bytes=moved_bytes(problem, copied(problem)))


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A board whose tensor cores multiply such types."""
    return tensor_cores.condition(problem, gpu)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `gemm_mma`, with steps that chunks of k consist of."""
    return rules.first_reason(
        lambda: tensor_cores.multiplied(OPERAND_TYPES[0], gpu),
        lambda: gemm_mma.rule(config, gpu),
        lambda: (
            None
            if config["BK"] in (CHUNK // 2, CHUNK)
            else f"BK = {config['BK']}: use {CHUNK // 2} or {CHUNK}, as sums are promoted every "
            f"{CHUNK} of k, and fragments alternate between two sets of registers"
        ),
        lambda: gemm_mma.even_copies(config, VECTOR_BYTES, a_along_k=True, b_along_k=True),
        lambda: rules.dynamic_shared(shared_bytes(config), gpu),
    )


def pairing(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> str | None:
    """Room for the sums of chunks besides those of all k, where these are promoted."""
    registers = registers_of_sums(problem, config)
    if registers <= rules.RESULT_REGISTERS:
        return None
    return (
        f"sums of WM*WN results and of chunks of k, with their scales, take {registers} registers "
        f"of each lane: it has {rules.RESULT_REGISTERS} for them; use a smaller WM or WN"
    )


KERNEL = Kernel(
    name="gemm_fp8_mma",
    rung=None,
    idea="From compute capability 8.9 on, mma.sync multiplies elements of 8 bits too, and ldmatrix "
    "reads pairs of them; fp32 registers take the sums every 128 of k.",
    default=TileConfig(BM=128, BN=128, BK=64, WM=64, WN=32, stages=4),
    space={
        "BM": (16, 32, 64, 128, 256),
        "BN": (16, 32, 64, 128, 256),
        "BK": (64, 128),
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
    dtypes=OPERAND_TYPES,
    compute_dtype=compute_dtype,
    takes_scales=True,
    result_dtypes=("float32", "float16", "bfloat16", *OPERAND_TYPES),
    condition=condition,
    pairing=pairing,
)
