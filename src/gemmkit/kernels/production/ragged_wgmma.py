"""How `ragged_wgmma` is launched: one A whose rows are divided among groups, by wgmma."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.dependent_launch import dependent
from gemmkit.kernels.mainloops.wgmma import in_turn, visiting
from gemmkit.kernels.plan import MAP_ARGUMENTS, LaunchShape, Signature, TileConfig, ceil_div
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production import gemm_wgmma, grouped, grouped_wgmma, wgmma_tiles
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS
from gemmkit.kernels.production.schedule import RASTER_EXTENT, schedule_argument
from gemmkit.kernels.production.wgmma_tiles import LoadedOperands
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.kernels.warpgroups import WARPGROUP, has_wgmma, unaligned
from gemmkit.kernels.work import Work
from gemmkit.problem import BROADCAST, GemmProblem

# The kernel whose mainloop it has.
SINGLE = gemm_wgmma.KERNEL

# Sums of a thread whose warpgroup has a tile of its own (of 192, ptxas 13 spills some), and stages
# whose barriers leave room for as many places of tiles in the last 1024 bytes of shared memory.
MOST_SUMS_IN_TURN, MOST_STAGES = 160, 24

# Parameters after the maps; each group has a bias of its own of so many elements, or all share one.
OWN_BIAS, SHARED_BIAS = "N", "0"


def signature(bias_stride: str = OWN_BIAS) -> Signature:
    """The parameters of ragged_wgmma.cu; `bias_stride` says how far apart the groups' biases lie,
    in elements."""
    return (
        *MAP_ARGUMENTS,
        *("offsets", "batch", "M", "N", "K", "alpha", "beta", "C", "ldc", "bias", bias_stride),
        *("residual", "ldr", "auxiliary", "ldx", "scale"),
    )


def ragged_problem(rows: int, n: int, k: int, groups: int, **rest: object) -> GemmProblem:
    """The problem of a launch: all groups share A of rows×k, and C of rows×n, of which each
    computes its own rows; B is a batch of k×n."""
    return GemmProblem(rows, n, k, batch=groups, stride_a=BROADCAST, **rest)  # type: ignore[arg-type]


def of_one(problem: GemmProblem) -> GemmProblem:
    """The product of A by one B, whose C is that of all."""
    strides = {"stride_a": 0, "stride_b": 0, "stride_c": 0}
    return replace(problem, batch=1, **strides)  # type: ignore[arg-type]


def operands(problem: GemmProblem) -> LoadedOperands:
    """A and B in place."""
    return LoadedOperands.in_place(problem, ())


def most_tiles(rows: int, n: int, groups: int, config: TileConfig) -> int:
    """The most tiles of a cluster that any division of so many rows among groups has."""
    height, width = config["BM"] * config["cluster_m"], config["BN"] * config["cluster_n"]
    partial = min(groups, rows)
    return (rows // height + partial) * ceil_div(n, width) if rows else 0


def blocks(rows: int, n: int, groups: int, config: TileConfig, gpu: GpuSpec) -> int:
    """Persistent clusters, one block per SM, but no more than there may be tiles."""
    cluster = config["cluster_m"] * config["cluster_n"]
    return min(most_tiles(rows, n, groups, config), gpu.sm_count // cluster) * cluster


def maps(problem: GemmProblem, config: TileConfig) -> tuple[MapRule, ...]:
    """Tensor maps of A and of all B, whose third dimension is the group, and of the one C."""
    found = wgmma_tiles.maps(of_one(problem), config, operands(problem))
    return tuple(
        each if each.operand == "C" else replace(each, box=(*each.box, 1)) for each in found
    )


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As many blocks as `blocks` says."""
    own, one = operands(problem), of_one(problem)
    count = wgmma_tiles.buffers(one, config, gpu, own)
    cluster, rows = config["cluster_m"] * config["cluster_n"], config["BM"] * config["cluster_m"]
    shape = LaunchShape(
        template=(
            CUDA_TYPES[problem.dtype],
            wgmma_tiles.tile_argument(config, own, count),
            CUDA_LAYOUTS[problem.layout],
            f"WriteBack::{wgmma_tiles.write_back(one, config, own)}",
            schedule_argument(one, raster=max(1, RASTER_EXTENT // rows)),
            "int",
        ),
        grid=(blocks(problem.m, problem.n, problem.batch, config, gpu), 1, 1),
        block=(wgmma_tiles.thread_count(config), 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=wgmma_tiles.shared_bytes(one, config, own, count),
        rasterized=True,
        tensor_maps=maps(problem, config),
        signature=signature(),
    )
    return dependent(shape, gpu)


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A Hopper board, something to load, and rows that TMA can load."""
    if problem.stride_a != BROADCAST and problem.batch != 1:
        return "the groups of a ragged product share one A"
    if not (problem.alpha and problem.k):
        return "there is nothing to load where k or alpha is 0"
    return has_wgmma(gpu) or unaligned(problem)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As `grouped_wgmma`, with registers for what decides how each tile is stored, and room for
    places of tiles behind the barriers."""
    if config["pingpong"] > 1 and config["BM"] * config["BN"] // WARPGROUP > MOST_SUMS_IN_TURN:
        return (
            f"BM × BN = {config['BM']}×{config['BN']} with pingpong: a thread has registers for "
            f"{MOST_SUMS_IN_TURN} sums besides the two ways of storing them"
        )
    if config["stages"] > MOST_STAGES:
        return f"stages = {config['stages']}: {MOST_STAGES} are the most"
    return grouped_wgmma.rule(config, gpu)


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results, and as many tiles as a kernel can number."""
    tiles = most_tiles(problem.m, problem.n, problem.batch, config)
    if tiles > grouped.MAX_TILES:
        return f"{tiles} tiles are more than a launch can number ({grouped.MAX_TILES})"
    return wgmma_tiles.room(of_one(problem), config, gpu, operands(problem))


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, if rows are divided evenly."""
    one = of_one(problem)
    rows, columns = config["BM"] * config["cluster_m"], config["BN"] * config["cluster_n"]
    count = problem.batch
    tiles = count * ceil_div(ceil_div(problem.m, count), rows) * ceil_div(problem.n, columns)
    steps = max(1, ceil_div(problem.k * bool(problem.alpha), config["BK"]))
    found = visiting(config, gpu, tiles if problem.m else 0, steps)
    threads = wgmma_tiles.thread_count(config)
    shared = wgmma_tiles.shared_bytes(one, config, operands(problem))
    return in_turn(one, config, found, threads, shared)


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
    # TMA's boxes begin at multiples of 16 bytes along contiguous elements, and groups at any row.
    layouts=("nn", "nt"),
    rule=rule,
    condition=condition,
    pairing=pairing,
)
