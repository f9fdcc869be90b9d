"""`Cut`: how the CTAs of a launch share a problem. A kernel's grid and its `Work` both follow from
it."""

from __future__ import annotations

from typing import NamedTuple

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import MAX_GRID_YZ, TileConfig, ceil_div
from gemmkit.kernels.rules import resident_blocks
from gemmkit.kernels.strips import Strips, strips_for
from gemmkit.problem import GemmProblem

# Parts of a tile that are worth asking for: beyond the most, more is added up than computed.
MOST_PARTS, LEAST_PART_STEPS = 32, 2
# To fill a last wave, few parts of each tile do.
FEW_PARTS = 8

# Steps of k below which `stream_k` gives no CTA a share of its own.
LEAST_STEPS = 4


class Cut(NamedTuple):
    """How a launch cuts a problem up.

    `tiles` are those of all products, of `rows` × `columns` each. `ctas` compute them, `parts` of
    them one tile at most, 1 where none share; each makes `steps` steps of BK along k in `visits`
    tiles. `strips` are computed by further CTAs. For stream-K, `cut_tiles` are the tiles that
    several CTAs share.
    """

    rows: int
    columns: int
    tiles: int
    ctas: int
    steps: int
    visits: int = 1
    parts: int = 1
    cut_tiles: int = 0
    strips: Strips = Strips()


def whole_tiles(
    problem: GemmProblem, config: TileConfig, rows: int, columns: int, parts: int = 1
) -> Cut:
    """A CTA for each tile, or for each of the `parts` of its k."""
    tiles = ceil_div(problem.m, rows) * ceil_div(problem.n, columns) * problem.batch
    steps = ceil_div(steps_of(problem, config), parts)
    return Cut(rows, columns, tiles, tiles * parts, steps if tiles else 0, 1, parts)


def with_strips(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, shared_bytes: int, parts: int = 1
) -> Cut:
    """The same, with strips for a few rows and columns past the last whole tiles."""
    rows, columns = config["BM"], config["BN"]
    strips = strips_for(problem, config, gpu, shared_bytes, parts)
    if not strips:
        return whole_tiles(problem, config, rows, columns, parts)
    down, across = strips.tiles(problem, config)
    tiles = down * across
    steps = ceil_div(steps_of(problem, config), parts)
    return Cut(rows, columns, tiles, tiles * parts, steps, 1, parts, strips=strips)


def split_k_parts(problem: GemmProblem, config: TileConfig) -> int:
    """CTAs that share a tile: no more than there are steps of k.

    It is one only where rows of tiles or products take the grid's z.
    """
    rows = ceil_div(problem.m, config["BM"])
    most = MAX_GRID_YZ // max(problem.batch, 1) if rows <= MAX_GRID_YZ else 1
    return max(1, min(config["split_k"], ceil_div(problem.k, config["BK"]), most))


def stream_k(problem: GemmProblem, config: TileConfig, gpu: GpuSpec, shared_bytes: int) -> Cut:
    """As many CTAs as the board holds, but none with less than `LEAST_STEPS` of work.

    What whole waves leave over is cut into even shares.
    """
    whole = with_strips(problem, config, gpu, shared_bytes)
    shares = whole.tiles * max(1, ceil_div(problem.k, config["BK"]) // LEAST_STEPS)
    ctas = min(gpu.sm_count * resident_blocks(config, gpu, shared_bytes), shares)
    cut, steps = cut_tiles(whole.tiles, ctas), steps_of(problem, config)
    waves = (whole.tiles - cut) // ctas if ctas else 0
    if not cut:
        return whole._replace(ctas=ctas, steps=waves * steps, visits=waves)
    uneven = ctas % cut > 0
    return whole._replace(
        ctas=ctas,
        steps=ceil_div(whole.tiles * steps, ctas),
        visits=waves + ceil_div(cut, ctas) + uneven,
        parts=ceil_div(ctas, cut) + uneven,
        cut_tiles=cut,
    )


def cut_tiles(tiles: int, ctas: int) -> int:
    """Tiles that `stream_k` cuts, as `Stream` in stream.cuh does.

    These are what whole waves leave over, and one wave more if they leave anything.
    """
    left = tiles % ctas if ctas else 0
    return left + ctas if left and tiles > ctas else left


def steps_of(problem: GemmProblem, config: TileConfig) -> int:
    """Steps of BK along the k of one tile; BLAS: α = 0 never reads A or B."""
    return max(ceil_div(problem.k, config.BK or 1) if problem.alpha else 0, 1)


def useful_parts(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, resident: int
) -> tuple[int, ...]:
    """The values of `split_k` that are worth an estimate; there may be none.

    They give each SM one CTA, two, or as many as it holds, `resident`; or, where there are more
    tiles than SMs, fill the last wave best.
    """
    sms = gpu.sm_count
    tiles = ceil_div(problem.m, config["BM"]) * ceil_div(problem.n, config["BN"]) * problem.batch
    most = min(MOST_PARTS, ceil_div(problem.k, config["BK"]) // LEAST_PART_STEPS)
    if not tiles or most < 2:
        return ()
    found = {min(sms * ctas // tiles, most) for ctas in (1, 2, resident)}
    # Waves of parts, each 1/parts as long as a tile.
    few = range(2, min(most, FEW_PARTS) + 1)
    found.add(min(few, key=lambda parts: ceil_div(tiles * parts, sms) / parts + parts / sms))
    return tuple(sorted(each for each in found if each > 1))
