"""Products by wgmma. Where TMA brings the tiles, only the producer spends instructions on them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gemmkit.gpu import WARP_SIZE, GpuSpec, MathPipe
from gemmkit.kernels.cut import Cut, steps_of, whole_tiles
from gemmkit.kernels.mainloops.typed import CONVERTED_COVERS
from gemmkit.kernels.mainloops.write_back import finishing
from gemmkit.kernels.operand_copies import SECTOR
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.warpgroups import LINE_BYTES, ROWS, product_sides
from gemmkit.kernels.work import (
    MOST_REGISTERS,
    OTHER_REGISTERS,
    STAGED_REGISTERS,
    VECTOR_BYTES,
    Copies,
    Demands,
    Work,
)
from gemmkit.problem import GemmProblem

# How much longer L2 takes to deliver a line of a box that begins between its sectors: 5 cycles for
# 128 bytes in place of 2 (H100, bf16 at 1000³, 3000³ and 5000³, with clusters and without); and one
# that begins between the halves of its lines, which has parts of three (H200, 90 problems).
HALF_LINE, SPLIT_SECTORS, SPLIT_HALVES = LINE_BYTES // 2, 2.5, 1.5

# SMs of a TPC; and those that clusters of more leave over: of 132 in an H200, 8 or 12 with clusters
# of 4 or 8 blocks, by `cuOccupancyMaxActiveClusters`.
PAIR, LEFT_OVER = 2, 8

# Bytes along k of one wgmma.
K_BYTES = 32
# Of A and of B.
Sides = tuple[bool, ...]
LineCosts = tuple[float, ...]
NEITHER: Sides = (False, False)
WHOLE_LINES: LineCosts = (1.0, 1.0)


def line_cost(distance: int) -> float:
    """How much longer L2 takes to deliver a line of a box than one of its own, where rows lie so
    many bytes apart."""
    if distance % SECTOR:
        return SPLIT_SECTORS
    return SPLIT_HALVES if distance % HALF_LINE else 1.0


# Latencies of L2 that a step lasts at least: none, since loads are several steps ahead.
COVERS = 0.0


def persistent(
    problem: GemmProblem,
    config: TileConfig,
    gpu: GpuSpec,
    threads: int,
    shared_bytes: int,
    *,
    line_costs: LineCosts = WHOLE_LINES,
    across: Sides = NEITHER,
    swapped: bool | None = None,
) -> Work:
    """Persistent blocks, which go from tile to tile; `line_costs` and `across` as for `in_turn`,
    `swapped` as in `product_sides`."""
    found = clusters(problem, config, gpu)
    return in_turn(
        problem,
        config,
        found,
        threads,
        shared_bytes,
        line_costs=line_costs,
        across=across,
        swapped=swapped,
    )


def in_turn(
    problem: GemmProblem,
    config: TileConfig,
    found: Cut,
    threads: int,
    shared_bytes: int,
    *,
    line_costs: LineCosts = WHOLE_LINES,
    across: Sides = NEITHER,
    swapped: bool | None = None,
) -> Work:
    """Blocks that share a problem, or groups, as `found` says; `line_costs` are those of A and of B
    (see `line_cost`), `across` tells whether they lie across k."""
    demands = _demands(
        config, problem.dtype, problem.item_bytes, threads, line_costs, across, swapped
    )
    whole, teams = Work.of(found, threads, shared_bytes, demands), config.pingpong or 1
    first_tiles = min(teams, found.visits)
    return whole._replace(teams=teams, finishing=finishing(problem, whole, first_tiles))


def one_tile(problem: GemmProblem, config: TileConfig, threads: int, shared_bytes: int) -> Work:
    """A tile for each block, or for each of a cluster."""
    rows, columns = (config["BM"] * config["cluster_m"], config["BN"] * config["cluster_n"])
    size, found = (
        config["cluster_m"] * config["cluster_n"],
        whole_tiles(problem, config, rows, columns),
    )
    found = found._replace(
        rows=config["BM"], columns=config["BN"], tiles=found.tiles * size, ctas=found.ctas * size
    )
    demands = _demands(config, problem.dtype, problem.item_bytes, threads)
    return Work.of(found, threads, shared_bytes, demands)


def copied(problem: GemmProblem, config: TileConfig, threads: int, shared_bytes: int) -> Work:
    """A tile for each block, whose threads copy operands themselves: by cp.async where rows are
    aligned, two stages less ahead than there are."""
    whole = one_tile(problem, config, threads, shared_bytes)
    elements = config["BK"] * (config["BM"] + config["BN"]) / threads
    aligned = problem.is_aligned(VECTOR_BYTES)
    demands = replace(
        whole.demands,
        copies=(
            Copies(vectors=elements * problem.item_bytes / VECTOR_BYTES)
            if aligned
            else Copies(plain=elements)
        ),
        covers=1 / (config["stages"] - 2) if aligned else CONVERTED_COVERS,
        barriers=1,
        other_registers=STAGED_REGISTERS,
        coalesced_stores=False,
        by_tma=False,
    )
    return whole._replace(demands=demands)


def clusters(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Cut:
    """A tile at a time for each block, one block per SM at most; or one tile for each cluster
    whose blocks share its k.

    The blocks of a cluster have a tile each, also where some of these lie outside of C.
    """
    along_m, along_n, parts = (config[key] for key in ("cluster_m", "cluster_n", "cluster_k"))
    BM, BN = config["BM"], config["BN"]
    places = ceil_div(problem.m, BM * along_m) * ceil_div(problem.n, BN * along_n) * problem.batch
    steps = ceil_div(steps_of(problem, config), parts) if places else 0
    if parts > 1 and places:
        return Cut(BM, BN, places, places * parts, steps, 1, parts)
    return visiting(config, gpu, places, steps)


def visiting(config: TileConfig, gpu: GpuSpec, places: int, steps: int) -> Cut:
    """Clusters that visit so many places in turn, each a tile for every block, of so many steps."""
    size = config["cluster_m"] * config["cluster_n"]
    at_once = min(places, most_clusters(gpu, size))
    visits = ceil_div(places, at_once) if places else 1
    tiles, ctas = places * size, at_once * size
    return Cut(config["BM"], config["BN"], tiles, ctas, visits * steps, visits)


def most_clusters(gpu: GpuSpec, size: int) -> int:
    """Clusters of so many blocks, one for each SM, that the board holds at once.

    SMs come in pairs, but a larger cluster has to fit into a GPC, some of which lack SMs.
    """
    return max(1, (gpu.sm_count - (LEFT_OVER if size > PAIR else 0)) // size)


@lru_cache(maxsize=4096)
def _demands(
    config: TileConfig,
    dtype: str,
    item_bytes: int,
    threads: int,
    line_costs: LineCosts = WHOLE_LINES,
    across: Sides = NEITHER,
    swapped: bool | None = None,
) -> Demands:
    BM, BN, BK, consumers = (config[key] for key in ("BM", "BN", "BK", "consumers"))
    # Of a consumer's threads; those of the producer multiply nothing.
    results = BM * BN // (4 * WARP_SIZE * (consumers // (config.pingpong or 1)))
    rows, columns = product_sides(config, swapped=swapped)
    products = rows // ROWS * (BK * item_bytes // K_BYTES)
    read = received = 0.0
    for side, sharing, lies_across, cost in zip(
        (BM, BN), (config["cluster_n"], config["cluster_m"]), across, line_costs, strict=True
    ):
        # Boxes of operands across k are whole lines wide.
        unit = LINE_BYTES // item_bytes if lies_across else 1
        loaded = ceil_div(side, unit) * unit
        # A block of a cluster reads its share of what it has in common with the others.
        read += loaded / sharing * cost
        received += loaded
    return Demands(
        math=MathPipe(dtype, tensor=True),  # type: ignore[arg-type]
        multiply_adds=BM * BN * BK / threads,
        per_instruction=columns * K_BYTES // item_bytes * ROWS / (4 * WARP_SIZE),
        issue=0.0,
        # Each product reads its rows and all columns; a line is a wavefront.
        wavefronts=products * (ROWS + columns) * K_BYTES / LINE_BYTES,
        l2_bytes=item_bytes * BK * read,
        received_bytes=item_bytes * BK * received,
        copies=Copies(),
        waits=0.0,
        covers=COVERS,
        streams=0.0,
        barriers=0,
        results=results,
        registers=results,
        other_registers=OTHER_REGISTERS,
        most_registers=MOST_REGISTERS,
        places=0.0,
        coalesced_stores=True,
        by_tma=True,
        by_wgmma=True,
    )
