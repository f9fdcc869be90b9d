"""How `gemm_fp8` is launched: operands of 8 bits on Hopper's tensor cores."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.float8_products import CHUNK, FAST_SUMS, PROMOTED_SUMS
from gemmkit.gpu import GpuSpec, MathPipe
from gemmkit.kernels import warpgroups
from gemmkit.kernels.copying import copying
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.operand_copies import moved_bytes
from gemmkit.kernels.plan import LAYOUTS, MAP_ARGUMENTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production import result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import (
    SCALED_SIGNATURE,
    SIGNATURE,
    scales_argument,
)
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.warpgroups import WARPGROUP, is_swapped, product_sides
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem
from gemmkit.scales import BLOCK

# What a step takes longer by where a consumer's products wait for its promotion: 1.08 to 1.19 on an
# H100, at 2048³ to 8192³, by tiles of 128×128 with one set of accumulators and with two.
PROMOTION = 1.18
# Registers of a thread that scales may take besides those that sums may.
SCALE_REGISTERS = 8


def operands(problem: GemmProblem) -> LoadedOperands:
    """A and B along k: in place, or copies."""
    return replace(LoadedOperands.along_k(problem), fuses=True)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM, after the copies of operands that need them."""
    # Of the tile it is no part.
    tile, types = replace(config, accumulators=None), types_argument(problem, config)
    entry, signature = "gemm_fp8", SIGNATURE
    if problem.scales:
        entry, signature = "gemm_fp8_scaled", SCALED_SIGNATURE
    shape = wgmma_tiles.launch_shape(
        problem, tile, gpu, operands(problem), types, entry=entry, signature=signature
    )
    return with_copies_made(shape, problem, gpu, copying)


def types_argument(problem: GemmProblem, config: TileConfig) -> tuple[str, ...]:
    """The template arguments up to the tile: type, sums, and scales where there are any."""
    fast = is_fast(problem)
    sums = "OF_TENSOR_CORES" if fast else "PROMOTED" if accumulators(config) == 1 else "OVERLAPPED"
    scales = (scales_argument(problem.scales),) if problem.scales else ()
    return (CUDA_TYPES[problem.dtype], f"Sums::{sums}", *scales)


def compute_dtype(problem: GemmProblem) -> str:
    """Sums of tensor cores, or promoted ones."""
    return FAST_SUMS if is_fast(problem) else PROMOTED_SUMS


def is_fast(problem: GemmProblem) -> bool:
    """Whether sums are left to the tensor cores; those of chunks that have scales are not."""
    return problem.precision == "fast" and not problem.scales.of_chunks


def accumulators(config: TileConfig) -> int:
    """Sets of registers for the sums of chunks."""
    return config.accumulators or 1


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As all kernels of wgmma, with steps of a line along k, after which sums are promoted."""
    if config["BK"] != CHUNK:
        return f"BK = {config['BK']}: use {CHUNK}, the elements of k after which sums are promoted"
    if accumulators(config) > 2:
        return (
            f"{config.accumulators} sets of accumulators: use 2, one for the chunk that is promoted"
        )
    return wgmma_tiles.tiles(config, gpu, CHUNK)


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What `registers` says, and room for the stages and for results."""
    return registers(problem, config, gpu) or result_boxes.room(
        problem, config, gpu, operands(problem)
    )


def registers(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, per_scale: int = 1
) -> str | None:
    """Two sums for each result where they are promoted, or three, and scales of a chunk, which take
    `per_scale` registers each."""
    sums = 1 + accumulators(config)
    if is_fast(problem) and sums > 2:
        return "there are no chunks of k where tensor cores keep all sums: accumulators=1 serves"
    if not is_fast(problem) and (reason := wgmma_tiles.tiles(config, gpu, CHUNK, sums=sums)):
        return reason
    return _room_for_scales(problem, config, per_scale) if problem.scales.of_chunks else None


def _room_for_scales(problem: GemmProblem, config: TileConfig, per_scale: int) -> str | None:
    """Registers for the scales that a thread has of the columns of its tile beside its sums."""
    rows, columns = product_sides(config)
    of_columns = problem.scales.a if is_swapped(config) else problem.scales.b
    own = config["consumers"] // config["pingpong"]
    sums = (1 + accumulators(config)) * rows * columns // (own * WARPGROUP)
    scales = columns // 4 if of_columns.lines == 1 else columns // gcd(columns, BLOCK)
    scales *= accumulators(config)
    if sums + per_scale * scales <= wgmma_tiles.SUM_REGISTERS + SCALE_REGISTERS:
        return None
    return f"{sums} sums and {scales} scales per thread do not fit its registers"


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, once operands have been copied."""
    own = operands(problem)
    found = promoted(wgmma_tiles.work(problem, config, gpu, own), problem, config)
    return found._replace(copied_bytes=moved_bytes(problem, own.copies))


def promoted(found: Work, problem: GemmProblem, config: TileConfig) -> Work:
    """The work of a kernel of wgmma with elements of 8 bits, whose sums are promoted."""
    fast = is_fast(problem)
    waits = not fast and accumulators(config) == 1
    demands = replace(
        found.demands,
        math=MathPipe("float8", tensor=True),
        multiply_adds=found.demands.multiply_adds * (PROMOTION if waits else 1.0),
        registers=(1 if fast else 1 + accumulators(config)) * found.demands.registers,
    )
    return found._replace(demands=demands)


KERNEL = Kernel(
    name="gemm_fp8",
    rung=None,
    idea="wgmma multiplies elements of 8 bits at twice the rate of 16; fp32 registers take its "
    "sums every 128 of k, because tensor cores keep only 14 bits of them.",
    default=TileConfig(
        BM=128,
        BN=128,
        BK=128,
        stages=4,
        consumers=2,
        pingpong=1,
        accumulators=1,
        cluster_m=2,
        cluster_n=1,
        cluster_k=1,
    ),
    space={
        "BM": (8, 16, 32, 64, 80, 96, 128, 144, 160, 176, 192, 256),
        "BN": (32, 64, 96, 128, 144, 160, 192, 256),
        "BK": (128,),
        "stages": (2, 3, 4, 5, 6, 8, 12),
        "consumers": (1, 2),
        "pingpong": (1, 2),
        "accumulators": (1, 2),
        "cluster_m": (1, 2, 4),
        "cluster_n": (1, 2, 4),
        "cluster_k": (1, 2, 4),
    },
    launch=launch,
    work=work,
    loads=warpgroups.words,
    rule=rule,
    signature=(*MAP_ARGUMENTS, *SIGNATURE),
    layouts=LAYOUTS,
    dtypes=OPERAND_TYPES,
    compute_dtype=compute_dtype,
    takes_scales=True,
    result_dtypes=("float32", "float16", "bfloat16", *OPERAND_TYPES),
    condition=wgmma_tiles.condition,
    pairing=pairing,
)
