"""How much of a product a block of a user's kernel computes, in the launch and in its short runs.

The grid is all that is known of such a kernel. One that does not grow with C is that of a
persistent kernel, whose blocks take tile after tile; one that grows with K, or has more blocks
along z than there are tiles, is that of a kernel whose blocks share tiles. In smaller problems
their blocks do less, or more, than in the launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem

# Results per block in the launch over those in a short run from which on blocks are taken to
# compute more tiles, or to share them. Partial tiles at the edges change it by less.
_OTHER = 1.5


@dataclass(frozen=True, slots=True)
class BlockShare:
    """The share of one block.

    Attributes:
        tiles: tiles of C per block, in the launch: less than one if blocks share a tile.
        seen_tiles: the same of the traced block.
        more: the executions of an average block in the launch over those in a short run, both at
            the same depth of a tile.
        depths: the depths of a block in the two short runs, in which `tiles` times K is that of
            the launch.
    """

    tiles: float
    seen_tiles: float
    more: float
    depths: tuple[float, float]


def block_share(
    launch: tuple[GemmProblem, LaunchPlan],
    low: tuple[GemmProblem, LaunchPlan],
    high: tuple[GemmProblem, LaunchPlan],
    seen: tuple[GemmProblem, LaunchPlan],
    area: int,
) -> BlockShare:
    """The share of a block in a launch.

    Args:
        launch: the problem and its plan.
        low: those of the short run with the smaller K.
        high: those of the other short run.
        seen: those of the traced block.
        area: elements of C that the traced block wrote, all of which count as one tile.
    """
    of_low = _results(*low)
    ratio = _results(*launch) / of_low
    k_low, k_high = (float(problem.k) for problem, _ in (low, high))
    if 1 / _OTHER < ratio < _OTHER:
        # Blocks along z that are more than the tiles have parts of k.
        parts = launch[1].grid[2] if _OTHER * _results(*launch) < area else 1
        return BlockShare(1 / parts, 1 / parts, 1.0, (k_low / parts, k_high / parts))
    if ratio < 1:
        depths = k_low, k_high * _results(*high) / of_low
        return BlockShare(ratio, _results(*seen) / of_low, 1.0, depths)
    tiles = max(_results(*launch) / area, 1.0)
    return BlockShare(tiles, 1.0, ratio, (k_low * tiles, k_high * tiles))


def _results(problem: GemmProblem, plan: LaunchPlan) -> float:
    """Elements of C per block."""
    return problem.m * problem.n / max(math.prod(plan.grid), 1)
