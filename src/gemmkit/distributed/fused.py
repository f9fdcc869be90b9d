"""Products under whose one launch an operand is gathered: for which shares and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmkit.dispatch.allgather import choose_allgather
from gemmkit.dispatch.choose import Choice
from gemmkit.distributed.placements import Rule
from gemmkit.distributed.schedule import Schedule
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.production.allgather_wgmma import Shares
from gemmkit.ops.placement import OTHER_BIAS
from gemmkit.problem import GemmProblem


def share_of_each(sizes: Sequence[int]) -> int | None:
    """The lines of each rank's share, of which the last one may have fewer; None where others do,
    or one has none."""
    first, last = sizes[0], sizes[-1]
    alike = all(each == first for each in sizes[:-1])
    return first if alike and 0 < last <= first and len(sizes) > 1 else None


def equal_shares(schedule: Schedule) -> Shares | None:
    """The same for a rank's schedule."""
    lines = share_of_each([each.size for each in schedule.spans])
    return None if lines is None else Shares(schedule.rank, schedule.ranks, lines)


def choose_fused(whole: GemmProblem, found: Rule, sizes: Sequence[int], board: GpuSpec) -> Choice:
    """What multiplies all lines of a gathered operand in one launch.

    Args:
        whole: a rank's product, with any number of lines.
        found: how the product is spread.
        sizes: the lines of each rank's share.
        board: the ranks' GPUs.

    Raises:
        UnsupportedProblem: nothing does; the text says why.
    """
    if found.form != "gather":
        raise UnsupportedProblem(
            "one launch waits for shares of an operand, and here something else travels"
        )
    share = share_of_each(sizes)
    if share is None:
        raise UnsupportedProblem(
            f"shares of {', '.join(map(str, sizes))} lines: one launch waits for shares that are "
            "equal, of which the last may be shorter, but not empty"
        )
    lines = sum(sizes)
    if found.transposes:
        # Of the transposes: gathered columns of B are rows of Bᵀ, and A lies as Aᵀ does not.
        epilogue = whole.epilogue
        mirrored = replace(epilogue, bias=OTHER_BIAS[str(epilogue.bias)])
        layout = "nt" if not whole.transa else "nn"
        whole = whole.resized(lines, whole.m, whole.k).laid_out(layout)
        problem = replace(whole, epilogue=mirrored)
    else:
        problem = whole.resized(lines, whole.n, whole.k)
    return choose_allgather(problem, len(sizes), share, board)
