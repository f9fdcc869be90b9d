"""How `gemm_grouped.cu` is launched: which tiles there are, and how many blocks share them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.kernels.mainloops.fp32 import staged
from gemmkit.kernels.plan import LAYOUTS, TABLE_ARGUMENTS, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.production import cp_async_fma, gemm_tiled
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, access, launch_shape
from gemmkit.kernels.production.schedule import RASTER_ROWS, schedule_argument
from gemmkit.kernels.rules import resident_blocks, thread_count
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.kernels.group_table import GroupTable

# The kernel whose configurations and mainloop it has.
TILED = gemm_tiled.KERNEL

# A tile's number is 32-bit in the kernel, which adds half a tile and the grid's blocks to it.
MAX_TILES = 2**31 - 2**17

# Multiply-adds of a tile that are worth a block of its own: on an H100 its start takes less time
# than blocks that share tiles lose from one to the next.
OWN_BLOCK = 2**15


def vector_width(problem: GemmProblem) -> int:
    """Floats per global access: 4 where rows begin and end at 16 bytes in every product, else 1."""
    return 4 if problem.is_aligned(16) else 1


def table_of(problem: GemmProblem, config: TileConfig) -> GroupTable:
    """The table of the problem's products, cut into the configuration's tiles."""
    # NumPy, which other products do without.
    from gemmkit.kernels.group_table import GroupTable

    return GroupTable(problem, config["BM"], config["BN"])


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Tiles of little work, where all products have the same k, are shared evenly by as many blocks
    as the board holds. Otherwise each tile has a block of its own, which the board starts as soon
    as another has ended, those with the longest k first.
    """
    table, width = table_of(problem, config), vector_width(problem)
    shared_bytes = cp_async_fma.pipeline_bytes(problem, config)
    blocks = table.tiles
    if blocks:
        rows, columns = table.tile_counts
        depths = table.groups.k[(rows > 0) & (columns > 0)]
        small = config["BM"] * config["BN"] * int(depths[0]) < OWN_BLOCK
        if small and (depths == depths[0]).all():
            resident = resident_blocks(config, gpu, shared_bytes)
            blocks = min(blocks, gpu.sm_count * resident)
    shape = launch_shape(
        (
            cp_async_fma.tile_argument(config),
            access(width, width, width),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem.single, raster=RASTER_ROWS),
        ),
        (blocks, 1, 1),
        thread_count(config),
        shared_bytes,
    )
    return replace(shape, rasterized=True, table=table)


def condition(problem: GemmProblem, _: GpuSpec) -> str | None:
    """Sizes and leading dimensions are 32-bit."""
    if problem.groups is None:
        return None
    for name in ("m", "n", "k", "lda", "ldb", "ldc"):
        sizes = getattr(problem.groups, name)
        if sizes.max(initial=0) > MAX_EXTENT:
            number = int(sizes.argmax())
            return (
                f"product {number} has {name} = {sizes[number]}: indices are 32-bit, {MAX_EXTENT} "
                "is the most"
            )
    return None


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What the mainloop needs for a layout, and as many tiles as a kernel can number."""
    tiles = table_of(problem, config).tiles
    if tiles > MAX_TILES:
        return f"{tiles} tiles are more than a launch can number ({MAX_TILES}): use several"
    return cp_async_fma.pairing(problem, config, gpu)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile for each CTA, with the mean of all steps along k, and the most steps of one."""
    table = table_of(problem, config)
    mean = longest = 0
    if table.tiles:
        rows, columns = table.tile_counts
        tiles = rows * columns
        # BLAS: α = 0 never reads A or B.
        depths = table.groups.k * bool(problem.alpha)
        steps = (-(-depths // config["BK"])).clip(min=1)
        mean = ceil_div(int((tiles * steps).sum()), table.tiles)
        longest = int(steps[tiles > 0].max())
    cut = Cut(config["BM"], config["BN"], table.tiles, table.tiles, mean)
    pipeline = cp_async_fma.pipeline_bytes(problem, config)
    return staged(cut, problem, config, pipeline)._replace(longest=longest)


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
    signature=(*TABLE_ARGUMENTS, "alpha", "beta", "scale"),
    rule=cp_async_fma.rule,
    layouts=LAYOUTS,
    condition=condition,
    pairing=pairing,
)
