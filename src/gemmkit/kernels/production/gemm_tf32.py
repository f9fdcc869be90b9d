"""How `gemm_tf32` is launched: fp32 on Hopper's tensor cores, rounded to TF32."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec, MathPipe
from gemmkit.kernels import warpgroups
from gemmkit.kernels.copying import copying
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.operand_copies import moved_bytes
from gemmkit.kernels.plan import LAYOUTS, MAP_ARGUMENTS, LaunchShape, TileConfig
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production import result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import SIGNATURE
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.warpgroups import line
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem


def operands(problem: GemmProblem) -> LoadedOperands:
    """A and B along k: in place, or copies."""
    return LoadedOperands.along_k(problem, element="tfloat32")


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM, after the copies of operands that need them."""
    shape = wgmma_tiles.launch_shape(problem, config, gpu, operands(problem))
    return with_copies_made(shape, problem, gpu, copying)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As all kernels of wgmma, with lines of 32 elements along k."""
    return wgmma_tiles.tiles(config, gpu, line(ITEM_BYTES["float32"]))


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results."""
    return result_boxes.room(problem, config, gpu, operands(problem))


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, once operands have been copied."""
    own = operands(problem)
    found = wgmma_tiles.work(problem, config, gpu, own)
    demands = replace(found.demands, math=MathPipe("tfloat32", tensor=True))
    return found._replace(demands=demands, copied_bytes=moved_bytes(problem, own.copies))


KERNEL = Kernel(
    name="gemm_tf32",
    rung=None,
    idea="TMA rounds fp32 operands to TF32 on their way to shared memory, where wgmma reads them: "
    "half the rate of bf16, with three more bits.",
    default=TileConfig(
        BM=128,
        BN=256,
        BK=32,
        stages=4,
        consumers=2,
        pingpong=1,
        cluster_m=2,
        cluster_n=1,
        cluster_k=1,
    ),
    space={
        "BM": (8, 16, 32, 64, 80, 96, 128, 144, 160, 176, 192, 256),
        "BN": (32, 64, 96, 128, 144, 160, 192, 224, 240, 256),
        "BK": (32, 64),
        "stages": (3, 4, 5, 6, 7, 8, 12, 16),
        "consumers": (1, 2),
        "pingpong": (1, 2),
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
    result_dtypes=("float32", "float16", "bfloat16"),
    precision="tf32",
    compute_dtype="tf32",
    condition=wgmma_tiles.condition,
    pairing=pairing,
)
