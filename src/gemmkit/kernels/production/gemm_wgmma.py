"""How `gemm_wgmma` is launched, and what it refuses: types of 16 bits on Hopper's tensor cores."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import tensor_cores, warpgroups
from gemmkit.kernels.copying import copying
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.operand_copies import aligned_copies, moved_bytes
from gemmkit.kernels.plan import LAYOUTS, MAP_ARGUMENTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.prepared_copies import with_copies_made
from gemmkit.kernels.production import result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import SIGNATURE
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.warpgroups import line
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem


def operands(problem: GemmProblem) -> LoadedOperands:
    """A and B in place, or copies where TMA cannot load them."""
    return replace(LoadedOperands.in_place(problem, aligned_copies(problem)), fuses=True)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM, after the copies of operands that need them."""
    types, own = (CUDA_TYPES[problem.dtype],), operands(problem)
    shape = wgmma_tiles.launch_shape(
        problem, config, gpu, own, types, entry="gemm_wgmma", signature=SIGNATURE
    )
    return with_copies_made(shape, problem, gpu, copying)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As all kernels of wgmma, with lines of 64 elements along k."""
    return wgmma_tiles.tiles(config, gpu, line(ITEM_BYTES["float16"]))


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results."""
    return result_boxes.room(problem, config, gpu, operands(problem))


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, once operands that TMA cannot load have been copied."""
    own = operands(problem)
    found = wgmma_tiles.work(problem, config, gpu, own)
    return found._replace(copied_bytes=moved_bytes(problem, own.copies))


KERNEL = Kernel(
    name="gemm_wgmma",
    rung=None,
    idea="One warp loads tiles by TMA while warpgroups multiply them by wgmma straight from shared "
    "memory, so that no instruction but these moves or multiplies an operand.",
    default=TileConfig(
        BM=128,
        BN=256,
        BK=64,
        stages=4,
        consumers=2,
        pingpong=1,
        cluster_m=2,
        cluster_n=1,
        cluster_k=1,
    ),
    space={
        "BM": (8, 16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        "BN": (32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        "BK": (64, 128),
        "stages": (3, 4, 5, 6, 7, 8, 12, 16),
        "consumers": (1, 2, 3),
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
    dtypes=tensor_cores.HALVES,
    result_dtypes=(*tensor_cores.RESULTS, *OPERAND_TYPES),
    condition=wgmma_tiles.condition,
    pairing=pairing,
)
