"""What is known of the fp32 mainloop, `mainloop/cp_async_fma.cuh`: rules, memory and residency.

Every kernel with this mainloop takes the same keys of a configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.cut import Cut, steps_of
from gemmkit.kernels.mainloops.fp32 import staged
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.production.arguments import named
from gemmkit.kernels.production.residue import ResidueTiles
from gemmkit.kernels.rules import (
    MAP_K,
    MAX_RESULTS_IN_128,
    PAD,
    divides,
    dynamic_shared,
    enough_stages,
    even_shares,
    first_reason,
    has_cp_async,
    quads,
    resident_blocks,
    shared_evenly,
    stage_bytes,
    thread_count,
    warps,
)
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# A block with a residue tile takes as long as one with a tile of so many results for each row and
# column that it copies: copies hold it up.
RESIDUE_LINE_RESULTS = 43

# Orders of the multiply-adds that the mainloop knows.
ORDERS = 8

# Threads that an SM is to hold as long as 128 registers are enough for the results of each.
THREADS_PER_SM = 512
MOST_SMALL_BLOCKS = 16

# What is tried when the tiles are settled: it changes no traffic, but what ptxas makes of the loop.
INNER_LOOPS: Mapping[str, tuple[int, ...]] = {
    "interleave": (1, 2, 4, 8, 16),
    "order": tuple(range(1, ORDERS + 1)),
}


def min_blocks(threads: int, results: int) -> int:
    """Blocks that the compiler is to leave registers for on an SM, by a thread's results."""
    if results > MAX_RESULTS_IN_128 or threads > THREADS_PER_SM:
        return 1
    return min(THREADS_PER_SM // threads, MOST_SMALL_BLOCKS)


def tile_argument(config: TileConfig) -> str:
    """The template argument `Tile{…}`; how often k is split over blocks is no part of the code."""
    threads = thread_count(config)
    fields = {key: value for key, value in config.as_dict().items() if key != "split_k"}
    return named(
        "Tile",
        {
            **fields,
            "pad": PAD,
            "map_k": MAP_K,
            "threads": threads,
            "min_blocks": min_blocks(threads, config["TM"] * config["TN"]),
        },
    )


def pipeline_bytes(problem: GemmProblem | None, config: TileConfig) -> int:
    """Shared bytes of all stages; the tile of a transposed B is padded too."""
    pad = FLOAT_BYTES * config["BK"] * PAD if problem is not None and problem.transb else 0
    return config["stages"] * (stage_bytes(config, PAD) + pad)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """A pipeline of stages in dynamic shared memory, filled by cp.async."""
    return first_reason(
        lambda: has_cp_async(gpu),
        lambda: quads(config, gpu),
        lambda: enough_stages(config),
        lambda: warps(config),
        lambda: divides(config, MAP_K, "BK"),
        lambda: even_shares(config, b_vector=4, a_width=MAP_K, narrow_b=True),
        lambda: divides(config, "interleave", "BK"),
        lambda: None if config["order"] <= ORDERS else f"order must be 1 to {ORDERS}",
        lambda: dynamic_shared(pipeline_bytes(None, config), gpu),
    )


def work(
    problem: GemmProblem,
    config: TileConfig,
    gpu: GpuSpec,
    found: tuple[Cut, ResidueTiles],
    shared_bytes: int,
    static_bytes: int = 0,
) -> Work:
    """What a launch asks of a board, with its residue tiles.

    These take places that a last wave leaves empty, or prolong it. Where a block has its SM alone,
    what is left of them in the end takes another wave; else they run beside whole tiles.
    """
    cut, residue = found
    plain = staged(cut, problem, config, shared_bytes, static_bytes)
    if not residue:
        return plain
    lines, count, sms = residue.width + residue.length, residue.count(problem), gpu.sm_count
    whole = steps_of(problem, config)
    steps = RESIDUE_LINE_RESULTS * lines / (cut.rows * cut.columns) * whole
    empty = -cut.ctas % sms
    if resident_blocks(config, gpu, shared_bytes) == 1:
        left = count - empty * int(cut.steps / steps)
        beyond = ceil_div(max(left, 0), sms) * steps / ceil_div(cut.ctas, sms)
    else:
        beyond = max(count * steps - empty * cut.steps, 0) / cut.ctas
    added = min(empty, count, math.ceil(count * steps / cut.steps))
    return plain._replace(
        ctas=cut.ctas + added,
        tiles=cut.tiles + (added if cut.parts == 1 else 0),
        steps=math.ceil(cut.steps + beyond),
    )


def words(
    problem: GemmProblem, config: TileConfig, width: int, residue: ResidueTiles | None = None
) -> loads.Words | str:
    """What is loaded of tiles: past the edge of a matrix too, unless its copies leave that out.

    Args:
        problem: what is computed.
        config: names the tiles.
        width: floats per global access.
        residue: the residue tiles, if there are any.
    """
    if residue:
        return "its residue tiles are of another shape, and have a mainloop of their own"

    def copied(extent: int, side: str, across_k: bool) -> int:
        left_out = across_k and width == 1 and _leaves_out(config, side)
        return extent if left_out else ceil_div(extent, config[side]) * config[side]

    total = sum(
        each.number
        * each.k
        * (
            copied(each.m, "BM", problem.transa) * ceil_div(each.n, config["BN"])
            + copied(each.n, "BN", not problem.transb) * ceil_div(each.m, config["BM"])
        )
        for each in loads.products(problem)
    )
    return loads.Words(total, loads.fragments(problem, config))


def _leaves_out(config: TileConfig, side: str) -> bool:
    """Whether copies of single floats across k end at the edge: `LEAVES_OUT` of copy_walk.cuh."""
    threads, width, depth = thread_count(config), config[side], config["BK"]
    # As `map_width` of cp_async_fma.cuh.
    across = width if width & (width - 1) == 0 else (width & -width) // 4
    for parts in (4, 3, 2):
        each = width // parts
        whole_warps = each and width % parts == each % WARP_SIZE == threads % each == 0
        if whole_warps and depth % (threads // each) == 0:
            across = each
            break
    across = min(across, threads)
    if across * depth < threads:
        across = threads // depth
    return width // across > 1 and across % WARP_SIZE == 0


def even_copies(problem: GemmProblem, config: TileConfig) -> str | None:
    """The tile of a matrix whose transpose lies in memory has the thread map of the other way."""
    if problem.layout == "nn":
        return None
    return first_reason(
        lambda: shared_evenly(
            config,
            *(("A", "BK", "BM", 4, None) if problem.transa else ("A", "BM", "BK", 1, MAP_K)),
        ),
        lambda: shared_evenly(
            config,
            *(("B", "BN", "BK", 1, MAP_K) if problem.transb else ("B", "BK", "BN", 4, None)),
        ),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What a problem's layout asks for besides `rule`."""
    return first_reason(
        lambda: even_copies(problem, config),
        lambda: dynamic_shared(pipeline_bytes(problem, config), gpu),
    )
