"""How `grouped_wgmma` is launched: groups of 16 bits on Hopper's tensor cores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.dependent_launch import dependent
from gemmkit.kernels.mainloops.wgmma import in_turn, most_clusters, visiting
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production import gemm_wgmma, grouped, result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.production.result_boxes import Results
from gemmkit.kernels.production.schedule import RASTER_EXTENT, schedule_argument
from gemmkit.kernels.warpgroups import LINE_BYTES, TMA_UNIT, has_wgmma, unaligned
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.kernels.group_maps import MappedGroupTable

# The kernel whose configurations and mainloop it has.
SINGLE = gemm_wgmma.KERNEL


def table_of(
    problem: GemmProblem, config: TileConfig, box_line: int = LINE_BYTES
) -> MappedGroupTable:
    """The table of the problem's products, in tiles of a cluster, with their tensor maps; lines of
    results' boxes have `box_line` bytes at most."""
    import numpy as np

    from gemmkit.kernels.group_maps import MappedGroupTable
    from gemmkit.kernels.group_table import products_of

    # Bits of all leading dimensions: what divides these divides each.
    lda, ldb = (int(np.bitwise_or.reduce(each)) for each in products_of(problem).table[3:5])
    like, own = problem.single, operands(problem)
    maps = wgmma_tiles.maps(
        replace(like, lda=max(lda, like.lda), ldb=max(ldb, like.ldb)),
        config,
        own,
        box_line,
        # That of the largest extents may differ: these may be those of an empty product.
        way=result_boxes.write_back(Results.of(problem), config, own),
    )
    return MappedGroupTable(
        problem,
        config["BM"] * config["cluster_m"],
        config["BN"] * config["cluster_n"],
        tuple(each.planned(problem) for each in maps),
    )


def operands(problem: GemmProblem) -> LoadedOperands:
    """A and B in place."""
    return LoadedOperands.in_place(problem)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM."""
    return launch_shape(problem, config, gpu, (CUDA_TYPES[problem.dtype],))


def launch_shape(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, types: tuple[str, ...]
) -> LaunchShape:
    """The same; `types` are the kernel's first template arguments."""
    own, results = operands(problem), Results.of(problem)
    fitted = result_boxes.fit(results, config, gpu, own)
    table = table_of(problem, config, fitted.line)
    cluster, rows = config["cluster_m"] * config["cluster_n"], config["BM"] * config["cluster_m"]
    table = replace(table, most=most_clusters(gpu, cluster), cluster=cluster)
    shape = LaunchShape(
        template=(
            *types,
            wgmma_tiles.tile_argument(fitted, own),
            CUDA_LAYOUTS[problem.layout],
            f"WriteBack::{result_boxes.write_back(results, config, own)}",
            schedule_argument(problem.single, raster=max(1, RASTER_EXTENT // rows)),
        ),
        grid=(table.blocks(table.tiles), 1, 1),
        block=(wgmma_tiles.thread_count(config), 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=fitted.shared_bytes(results, own),
        rasterized=True,
        table=table,
    )
    return dependent(shape, gpu)


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A Hopper board, indices of 32 bits, and rows that TMA can load."""
    return has_wgmma(gpu) or grouped.condition(problem, gpu) or _unaligned(problem)


def _unaligned(problem: GemmProblem) -> str | None:
    """As `warpgroups.unaligned`, in all products that are read."""
    groups = problem.groups
    if not problem.alpha or groups is None:
        return unaligned(problem) if problem.flops and problem.alpha else None
    if problem.flops and problem.alignment % TMA_UNIT:
        return unaligned(problem)
    read = (groups.m > 0) & (groups.n > 0) & (groups.k > 0)
    for name, transposed, sides, pitches in (
        ("A", problem.transa, (groups.m, groups.k), groups.lda),
        ("B", problem.transb, (groups.k, groups.n), groups.ldb),
    ):
        # The pitch of a single row does not matter.
        apart = pitches * problem.item_bytes * (read & (sides[transposed] > 1))
        number = int((apart % TMA_UNIT).argmax()) if apart.size else 0
        if apart.size and apart[number] % TMA_UNIT:
            return (
                f"product {number}: TMA needs rows that lie a multiple of {TMA_UNIT} bytes apart: "
                f"those of {name} lie {apart[number]}"
            )
    return None


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `gemm_wgmma`, but that no blocks share the k of a tile."""
    return no_shared_k(config) or SINGLE.rule(config, gpu)


def no_shared_k(config: TileConfig) -> str | None:
    """No blocks share the k of a tile."""
    if config["cluster_k"] == 1:
        return None
    return f"cluster_k = {config['cluster_k']}: no blocks share the k of a product of groups"


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results, and as many tiles as a kernel can number."""
    return result_boxes.room(problem, config, gpu, operands(problem)) or grouped.pairing(
        problem, config
    )


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block."""
    from gemmkit.kernels.group_table import GroupTable

    rows, columns = config["BM"] * config["cluster_m"], config["BN"] * config["cluster_n"]
    table = GroupTable(problem, rows, columns)
    mean, longest = grouped.steps_of_tiles(table, config)
    found = visiting(config, gpu, table.tiles, mean)
    threads = wgmma_tiles.thread_count(config)
    shared = result_boxes.fitted_bytes(Results.of(problem), config, gpu, operands(problem))
    own = in_turn(problem, config, found, threads, shared)
    # Blocks take tiles that lie a grid apart, so that the next is of another product as a rule.
    products = min(found.visits, table.nonempty) if table.tiles else 0
    return own._replace(longest=longest, products=products)


KERNEL = replace(
    SINGLE,
    name="grouped_wgmma",
    idea="Products of different shapes in one launch, such as the experts of a mixture: the tensor "
    "maps of each stand in the table beside its sizes, and blocks go from tile to tile, those of "
    "the next arriving while wgmma multiplies.",
    default=replace(SINGLE.default, cluster_m=1),
    space={**SINGLE.space, "cluster_k": (1,)},
    launch=launch,
    work=work,
    mainloop=SINGLE,
    rule=rule,
    signature=grouped.SIGNATURE,
    condition=condition,
    pairing=pairing,
)
