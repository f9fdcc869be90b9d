"""How `ragged_wgmma` is launched: one A whose rows are divided among groups, by wgmma."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.dependent_launch import dependent
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.kernels.mainloops.wgmma import in_turn, most_clusters, visiting
from gemmkit.kernels.plan import (
    MAP_ARGUMENTS,
    SCALE_ARGUMENTS,
    LaunchShape,
    Signature,
    TileConfig,
    ceil_div,
)
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production import gemm_wgmma, grouped, grouped_wgmma, result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.production.result_boxes import Results
from gemmkit.kernels.production.schedule import RASTER_EXTENT, schedule_argument
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.kernels.warpgroups import WARPGROUP, has_wgmma, unaligned
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.kernels.offsets_table import OffsetsTable

# The kernel whose mainloop it has.
SINGLE = gemm_wgmma.KERNEL

# Sums of a thread whose warpgroup has a tile of its own (of 192, ptxas 13 spills some), and stages
# whose barriers leave room for as many places of tiles in the last 1024 bytes of shared memory.
MOST_SUMS_IN_TURN, MOST_STAGES = 160, 24

# Parameters after the maps; each group has a bias of its own of so many elements, or all share one.
OWN_BIAS, SHARED_BIAS = "N", "0"


def signature(bias_stride: str = OWN_BIAS, *, scaled: bool = False) -> Signature:
    """The parameters of ragged_wgmma.cu; `bias_stride` says how far apart the groups' biases lie,
    in elements, and `scaled` whether A or B has scales."""
    return (
        *MAP_ARGUMENTS,
        *(SCALE_ARGUMENTS if scaled else ()),
        *("offsets", "batch", "M", "N", "K", "alpha", "beta", "C", "ldc", "bias", bias_stride),
        *("residual", "ldr", "auxiliary", "ldx", "scale"),
    )


def ragged_problem(rows: int, n: int, k: int, groups: int, **rest: Any) -> GemmProblem:
    """The problem of a launch for any division of so many rows: ragged groups, of which the last
    stands for all.

    Leading dimensions, of `rest`, are those of all groups.
    """
    from gemmkit.groups import Groups

    m = [0] * (groups - 1) + [rows] if groups else []
    pitches = (rest.pop(name, 0) for name in ("lda", "ldb", "ldc"))
    return GemmProblem.of_groups(Groups.of(m, n, k, *pitches, ragged=True), **rest)


def rows_of(problem: GemmProblem) -> int:
    """Rows of A and C."""
    return problem.m if problem.groups is None else problem.groups.rows


def of_one(problem: GemmProblem) -> GemmProblem:
    """The product of A by one B, whose C is that of all."""
    if problem.groups is None:
        return problem
    return replace(problem, groups=None, m=rows_of(problem))


def operands(problem: GemmProblem) -> LoadedOperands:
    """A and B in place."""
    return LoadedOperands.in_place(problem, ())


def most_tiles(rows: int, n: int, groups: int, config: TileConfig) -> int:
    """The most tiles of a cluster that any division of so many rows among groups has."""
    height, width = config["BM"] * config["cluster_m"], config["BN"] * config["cluster_n"]
    # A group of one row has a tile; further rows make more where they fill some.
    some = min(groups, rows)
    return (some + (rows - some) // height) * ceil_div(n, width)


def blocks(rows: int, n: int, groups: int, config: TileConfig, gpu: GpuSpec) -> int:
    """Persistent clusters, one block per SM, but no more than there may be tiles."""
    cluster = config["cluster_m"] * config["cluster_n"]
    return min(most_tiles(rows, n, groups, config), most_clusters(gpu, cluster)) * cluster


def maps(problem: GemmProblem, config: TileConfig, box_line: int) -> tuple[MapRule, ...]:
    """Tensor maps of A and of all B, whose third dimension is the group, and of the one C, lines of
    whose boxes have `box_line` bytes at most."""
    found = wgmma_tiles.maps(of_one(problem), config, operands(problem), box_line)
    return tuple(
        each if each.operand == "C" else replace(each, box=(*each.box, 1)) for each in found
    )


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As many blocks as `blocks` says."""
    return launch_shape(problem, config, gpu, (CUDA_TYPES[problem.dtype],))


def launch_shape(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, types: tuple[str, ...]
) -> LaunchShape:
    """The same; `types` are the kernel's first template arguments."""
    own, one = operands(problem), of_one(problem)
    results = Results.of(one)
    fitted = result_boxes.fit(results, config, gpu, own)
    cluster, rows = config["cluster_m"] * config["cluster_n"], config["BM"] * config["cluster_m"]
    shape = LaunchShape(
        template=(
            *types,
            wgmma_tiles.tile_argument(fitted, own),
            CUDA_LAYOUTS[problem.layout],
            f"WriteBack::{result_boxes.write_back(results, config, own)}",
            schedule_argument(one, raster=max(1, RASTER_EXTENT // rows)),
            "int",
        ),
        grid=(blocks(one.m, problem.n, problem.count, config, gpu), 1, 1),
        block=(wgmma_tiles.thread_count(config), 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=fitted.shared_bytes(results, own),
        rasterized=True,
        tensor_maps=maps(problem, config, fitted.line),
        table=table_of(problem, config),
        # A bias for each row is one vector for all groups.
        signature=signature(
            SHARED_BIAS if problem.epilogue.bias == "row" else OWN_BIAS, scaled=bool(problem.scales)
        ),
    )
    return dependent(shape, gpu)


def table_of(problem: GemmProblem, config: TileConfig) -> OffsetsTable:
    """Where groups end, in tiles of a cluster."""
    # NumPy, which other products do without.
    from gemmkit.kernels.offsets_table import OffsetsTable

    return OffsetsTable(
        problem, config["BM"] * config["cluster_m"], config["BN"] * config["cluster_n"]
    )


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A Hopper board, something to load, and rows that TMA can load."""
    if (reason := has_wgmma(gpu)) is not None:
        return reason
    if not (problem.alpha and problem.k):
        return "there is nothing to load where k or alpha is 0"
    return grouped.condition(problem, gpu) or unaligned(of_one(problem))


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `grouped_wgmma`, and what `besides` says."""
    return besides(config) or grouped_wgmma.rule(config, gpu)


def besides(config: TileConfig) -> str | None:
    """Registers for what decides how each tile is stored, and room for places of tiles behind the
    barriers."""
    if (reason := too_many_sums(config)) is not None:
        return reason
    if config["stages"] > MOST_STAGES:
        return f"stages = {config['stages']}: {MOST_STAGES} are the most"
    return None


def too_many_sums(config: TileConfig) -> str | None:
    """Registers for sums, of consumers with a tile each."""
    if config["pingpong"] == 1 or config["BM"] * config["BN"] // WARPGROUP <= MOST_SUMS_IN_TURN:
        return None
    return (
        f"BM × BN = {config['BM']}×{config['BN']} with pingpong: a thread has registers for "
        f"{MOST_SUMS_IN_TURN} sums besides the two ways of storing them"
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results, as many rows and tiles as a kernel can number."""
    rows = rows_of(problem)
    if rows > MAX_EXTENT:
        return f"A has {rows} rows: indices are 32-bit, {MAX_EXTENT} is the most"
    tiles = most_tiles(rows, problem.n, problem.count, config)
    if tiles > grouped.MAX_TILES:
        return f"{tiles} tiles are more than a launch can number ({grouped.MAX_TILES})"
    return result_boxes.room(of_one(problem), config, gpu, operands(problem))


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block."""
    one, tiles = of_one(problem), table_of(problem, config).tiles
    steps = max(1, ceil_div(problem.k * bool(problem.alpha), config["BK"])) if tiles else 0
    found = visiting(config, gpu, tiles, steps)
    threads = wgmma_tiles.thread_count(config)
    shared = result_boxes.fitted_bytes(Results.of(one), config, gpu, operands(problem))
    # Blocks look for the next tile's group as those of `grouped_wgmma` do for its row of the table.
    products = min(found.visits, problem.count) if tiles else 0
    return in_turn(problem, config, found, threads, shared)._replace(products=products)


KERNEL = replace(
    SINGLE,
    name="ragged_wgmma",
    idea="Groups that share one A and one C, such as the experts of a mixture, whose rows lie one "
    "after the other: one tensor map of each matrix serves all, and blocks find their tiles from "
    "the groups' offsets in memory, which the host need not know.",
    default=grouped_wgmma.KERNEL.default,
    space=grouped_wgmma.KERNEL.space,
    launch=launch,
    work=work,
    mainloop=SINGLE,
    signature=signature(),
    # TMA's boxes begin at multiples of 16 bytes along contiguous elements, and groups at any row.
    layouts=("nn", "nt"),
    rule=rule,
    condition=condition,
    pairing=pairing,
)
