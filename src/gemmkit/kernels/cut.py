"""`Cut`: how the CTAs of a launch share a problem. A kernel's grid and its `Work` both follow from
it."""

from __future__ import annotations

from typing import NamedTuple

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.problem import GemmProblem

# Parts of a tile that are worth asking for: beyond the most, more is added up than computed.
MOST_PARTS, LEAST_PART_STEPS = 32, 2
# To fill a last wave, few parts of each tile do.
FEW_PARTS = 8


class Cut(NamedTuple):
    """How a launch cuts a problem up.

    `tiles` are those of all products, of `rows` × `columns` each. `ctas` compute them, `parts` of
    them one tile at most, 1 where none share; each makes `steps` steps of BK along k in `visits`
    tiles. For stream-K, `cut_tiles` are the tiles that several CTAs share.
    """

    rows: int
    columns: int
    tiles: int
    ctas: int
    steps: int
    visits: int = 1
    parts: int = 1
    cut_tiles: int = 0


def whole_tiles(
    problem: GemmProblem, config: TileConfig, rows: int, columns: int, parts: int = 1
) -> Cut:
    """A CTA for each tile, or for each of the `parts` of its k."""
    tiles = ceil_div(problem.m, rows) * ceil_div(problem.n, columns) * problem.batch
    steps = ceil_div(steps_of(problem, config), parts)
    return Cut(rows, columns, tiles, tiles * parts, steps if tiles else 0, 1, parts)


def even_shares(whole: Cut, ctas: int, cut_tiles: int) -> Cut:
    """The steps of all tiles in even shares for so many CTAs (stream-K).

    Args:
        whole: a CTA for each tile.
        ctas: how many there are.
        cut_tiles: tiles that several of them share; the others go whole, a wave at a time.
    """
    waves = (whole.tiles - cut_tiles) // ctas if ctas else 0
    if not cut_tiles:
        return whole._replace(ctas=ctas, steps=waves * whole.steps, visits=waves)
    uneven = ctas % cut_tiles > 0
    return whole._replace(
        ctas=ctas,
        steps=ceil_div(whole.tiles * whole.steps, ctas),
        visits=waves + ceil_div(cut_tiles, ctas) + uneven,
        parts=ceil_div(ctas, cut_tiles) + uneven,
        cut_tiles=cut_tiles,
    )


def steps_of(problem: GemmProblem, config: TileConfig) -> int:
    """Steps of BK along the k of one tile; BLAS: α = 0 never reads A or B."""
    return max(ceil_div(problem.k, config.BK or 1) if problem.alpha else 0, 1)


def useful_parts(
    problem: GemmProblem,
    config: TileConfig,
    gpu: GpuSpec,
    resident: int,
    whole: Cut | None = None,
) -> tuple[int, ...]:
    """The values of `split_k` that are worth an estimate; there may be none. `whole` is the cut
    into one part, for kernels whose tiles do not follow from BM and BN.

    They give each SM one CTA, two, or as many as it holds, `resident`; or, where there are more
    tiles than SMs, fill the last wave best.
    """
    sms = gpu.sm_count
    if config.BM is None and whole is not None:
        tiles, steps = whole.tiles, whole.steps
    else:
        tiles = ceil_div(problem.m, config["BM"]) * ceil_div(problem.n, config["BN"])
        tiles, steps = tiles * problem.batch, ceil_div(problem.k, config["BK"])
    most = min(MOST_PARTS, steps // LEAST_PART_STEPS)
    if not tiles or most < 2:
        return ()
    found = {min(sms * ctas // tiles, most) for ctas in (1, 2, resident)}
    # Waves of parts, each 1/parts as long as a tile.
    few = range(2, min(most, FEW_PARTS) + 1)
    found.add(min(few, key=lambda parts: ceil_div(tiles * parts, sms) / parts + parts / sms))
    return tuple(sorted(each for each in found if each > 1))
