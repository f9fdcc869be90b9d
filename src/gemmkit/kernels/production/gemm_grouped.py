"""How `gemm_grouped.cu` is launched: which tiles there are, and how many blocks share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, work
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launches import CUDA_LAYOUTS
from gemmkit.kernels.plan import (
    LAYOUTS,
    MAX_EXTENT,
    TABLE_ARGUMENTS,
    LaunchShape,
    TileConfig,
    ceil_div,
)
from gemmkit.kernels.production import gemm_tiled
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
    table = table_of(problem, config)
    shared_bytes = rules.ring_bytes(problem, config)
    blocks = table.tiles
    if blocks:
        rows, columns = table.tile_counts
        depths = table.groups.k[(rows > 0) & (columns > 0)]
        small = config["BM"] * config["BN"] * int(depths[0]) < OWN_BLOCK
        if small and (depths == depths[0]).all():
            blocks = min(blocks, gpu.sm_count * rules.resident_blocks(config, gpu, shared_bytes))
    return LaunchShape(
        template=(
            *config.as_dict().values(),
            vector_width(problem),
            CUDA_LAYOUTS[problem.layout],
        ),
        grid=(blocks, 1, 1),
        block=(rules.thread_count(config), 1, 1),
        shared_bytes=shared_bytes,
        banded=True,
        table=table,
    )


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
    """What the rung needs for a layout, and tiles that a kernel can number."""
    tiles = table_of(problem, config).tiles
    if tiles > MAX_TILES:
        return f"{tiles} tiles are more than a launch can number ({MAX_TILES}): take several"
    return rules.pairing(problem, config, gpu)


def work_of(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> work.Work:
    """A tile for each CTA, of the mean of all steps along k, and the most steps of one."""
    table = table_of(problem, config)
    if not table.tiles:
        return work.tiles(problem, config, 0, 0)
    rows, columns = table.tile_counts
    tiles = rows * columns
    # BLAS: α = 0 never reads A or B.
    depths = table.groups.k * bool(problem.alpha)
    steps = (-(-depths // config["BK"])).clip(min=1)
    mean = ceil_div(int((tiles * steps).sum()), table.tiles)
    return work.tiles(problem, config, table.tiles, mean, int(steps[tiles > 0].max()))


KERNEL = Kernel(
    name="gemm_grouped",
    rung=None,
    idea="The tiles of many products of different shapes make one line, and a table in device "
    "memory says whose each is, so that small products fill the board together.",
    default=TileConfig(BM=64, BN=64, BK=16, WM=32, WN=32, TM=8, TN=4, stages=4, bursts=4, order=2),
    space={**TILED.space, "BM": (16, 32, 48, 64, 128, 256), "BN": (32, 64, 128, 192, 256)},
    refinements=TILED.refinements,
    launch=launch,
    work=work_of,
    rule=TILED.rule,
    signature=(*TABLE_ARGUMENTS, "alpha", "beta", "scale"),
    layouts=LAYOUTS,
    condition=condition,
    pairing=pairing,
)
