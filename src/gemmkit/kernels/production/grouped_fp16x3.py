"""How `grouped_fp16x3` is launched: groups of fp32 by three products of fp16."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.dependent_launch import dependent
from gemmkit.kernels.mainloops.wgmma import in_turn, most_clusters, visiting
from gemmkit.kernels.plan import (
    MAP_ARGUMENTS,
    TABLE_ARGUMENTS,
    LaunchShape,
    PreparedCopy,
    Signature,
    TileConfig,
)
from gemmkit.kernels.production import gemm_fp16x3, grouped, result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.production.result_boxes import Results
from gemmkit.kernels.production.schedule import RASTER_EXTENT, schedule_argument
from gemmkit.kernels.splitting import PARTS
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.kernels.warpgroups import L2_BYTES, LINE_BYTES, has_wgmma, line
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem
from gemmkit.split_products import LEAST_K

if TYPE_CHECKING:
    from gemmkit.kernels.group_splitting import SplitGroupTable

# Its parameters, but for the addresses of exponents.
SIGNATURE: Signature = (*MAP_ARGUMENTS[:2], *TABLE_ARGUMENTS, "alpha", "beta", "scale")
# The kernel whose configurations and mainloop it has.
SINGLE = gemm_fp16x3.KERNEL


def table_of(problem: GemmProblem, config: TileConfig) -> SplitGroupTable:
    """The table of the problem's products, in tiles of a cluster."""
    from gemmkit.kernels.group_splitting import SplitGroupTable

    rows, columns = config["BM"] * config["cluster_m"], config["BN"] * config["cluster_n"]
    return SplitGroupTable(problem, rows, columns)


# The parts of A and B, along k, as they are loaded.
PARTS_OF_OPERANDS = LoadedOperands(ITEM_BYTES["float16"], True, True, per_k=PARTS, maps_c=False)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM, after the launch that splits all operands."""
    from gemmkit.kernels.group_splitting import OPERANDS, preparing_groups, splitting_groups

    table, results = table_of(problem, config), Results.of(problem)
    fitted = result_boxes.fit(results, config, gpu, PARTS_OF_OPERANDS)
    cluster, rows = config["cluster_m"] * config["cluster_n"], config["BM"] * config["cluster_m"]
    copies = tuple(map(table.copy, OPERANDS)) if table.tiles else ()
    shape = LaunchShape(
        template=(
            wgmma_tiles.tile_argument(fitted, PARTS_OF_OPERANDS),
            CUDA_LAYOUTS[problem.layout],
            f"WriteBack::{result_boxes.write_back(results, config, PARTS_OF_OPERANDS)}",
            schedule_argument(problem.single, raster=max(1, RASTER_EXTENT // rows)),
        ),
        grid=(min(table.tiles, most_clusters(gpu, cluster)) * cluster, 1, 1),
        block=(wgmma_tiles.thread_count(config), 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=fitted.shared_bytes(results, PARTS_OF_OPERANDS),
        rasterized=True,
        table=table,
        tensor_maps=(
            _map("map_a", "A", config["BM"] // config["cluster_n"]),
            _map("map_b", "B", config["BN"] // config["cluster_m"]),
        ),
        copies=copies,
        before=splitting_groups(table) if copies else None,
        prepared=tuple(
            PreparedCopy(each.operand, f"{maker.kernel}: {each.lines} lines", each.end, maker)
            for each in copies
            if each.is_prepared and (maker := preparing_groups(table, each)) is not None
        ),
        signature=(*SIGNATURE, *map(table.address_of_exponents, OPERANDS)),
    )
    return dependent(shape, gpu)


def _map(name: str, operand: str, lines: int) -> MapRule:
    item = PARTS_OF_OPERANDS.item_bytes
    return MapRule(name, operand, (line(item), lines), swizzle=LINE_BYTES, l2=L2_BYTES)


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A Hopper board, indices of 32 bits, and no short k where fp32's bound must hold."""
    from gemmkit.kernels.group_table import products_of

    depths = products_of(problem).k
    shortest = int(depths[depths > 0].min(initial=LEAST_K))
    return (
        has_wgmma(gpu)
        or grouped.condition(problem, gpu)
        or gemm_fp16x3.too_short(problem, shortest)
    )


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `gemm_fp16x3`, but that no blocks share the k of a tile."""
    if config["cluster_k"] != 1:
        return f"cluster_k = {config['cluster_k']}: no blocks share the k of a product of groups"
    return SINGLE.rule(config, gpu)


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results, and as many tiles as a kernel can number."""
    return result_boxes.room(problem, config, gpu, PARTS_OF_OPERANDS) or grouped.pairing(
        problem, config
    )


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, once all operands have been split."""
    from gemmkit.kernels.group_splitting import split_group_bytes

    table = table_of(problem, config)
    mean, _ = grouped.steps_of_tiles(table, config)
    found = visiting(config, gpu, table.tiles, mean)
    threads = wgmma_tiles.thread_count(config)
    shared = result_boxes.fitted_bytes(Results.of(problem), config, gpu, PARTS_OF_OPERANDS)
    moved, share = split_group_bytes(table)
    own = gemm_fp16x3.in_parts(in_turn(problem, config, found, threads, shared))
    return own._replace(copied_bytes=moved, copy_share=share)


KERNEL = replace(
    SINGLE,
    name="grouped_fp16x3",
    idea="Products of different shapes in one launch, such as the experts of a mixture, in fp32 by "
    "three products of fp16: as exact as FFMA, at several times its speed.",
    space={**SINGLE.space, "cluster_k": (1,)},
    launch=launch,
    work=work,
    mainloop=SINGLE,
    rule=rule,
    signature=(*SIGNATURE, "workspace", "workspace"),
    condition=condition,
    pairing=pairing,
)
