"""How `gemm_grouped` is launched: the fp32 mainloop with the tiles of many products."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.fp32 import staged
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.production import cp_async_fma, gemm_tiled, grouped
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, access
from gemmkit.kernels.rules import resident_blocks, thread_count
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# The kernel whose configurations and mainloop it has.
TILED = gemm_tiled.KERNEL


def vector_width(problem: GemmProblem) -> int:
    """Floats per global access: 4 where rows begin and end at 16 bytes in every product, else 1."""
    return 4 if problem.is_aligned(16) else 1


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As `grouped.launch`."""
    width = vector_width(problem)
    shared_bytes = cp_async_fma.pipeline_bytes(problem, config)
    template = (
        cp_async_fma.tile_argument(config),
        access(width, width, width),
        CUDA_LAYOUTS[problem.layout],
    )
    return grouped.launch(
        *(problem, config, gpu, template, thread_count(config), shared_bytes),
        lambda: resident_blocks(config, gpu, shared_bytes),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """As many tiles as a kernel can number, and what the mainloop needs for a layout."""
    return grouped.pairing(problem, config) or cp_async_fma.pairing(problem, config, gpu)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """As `grouped.work`."""
    pipeline = cp_async_fma.pipeline_bytes(problem, config)
    return grouped.work(problem, config, lambda found: staged(found, problem, config, pipeline))


def words(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> loads.Words | str:
    """Those of the tiles of all products."""
    return cp_async_fma.words(problem, config, vector_width(problem))


KERNEL = Kernel(
    name="gemm_grouped",
    rung=None,
    idea="The tiles of many products of different shapes form one sequence, and a table in device "
    "memory says which product each belongs to, so that small products fill the board together.",
    default=TileConfig(
        BM=64, BN=64, BK=16, WM=32, WN=32, TM=8, TN=4, stages=4, interleave=4, order=2
    ),
    space={**TILED.space, "BM": (16, 32, 48, 64, 128, 256), "BN": (32, 64, 128, 192, 256)},
    refinements=cp_async_fma.INNER_LOOPS,
    launch=launch,
    work=work,
    loads=words,
    mainloop=TILED,
    signature=grouped.SIGNATURE,
    rule=cp_async_fma.rule,
    layouts=LAYOUTS,
    condition=grouped.condition,
    pairing=pairing,
)
