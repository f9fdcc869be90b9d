"""Scales of A and B over ranks: those of an operand that is gathered are gathered with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmkit.distributed.agreements import Agreement
from gemmkit.distributed.process_group import gather_collectively, lines_gatherer
from gemmkit.distributed.scale_parts import LineScales, kind_by_line
from gemmkit.distributed.splits import Span, consecutive
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.team import Team
from gemmkit.errors import UnsupportedProblem
from gemmkit.float8_products import CHUNK
from gemmkit.scales import BLOCK, NONE, ScaleKind


def line_scales(
    scale_a: Any, scale_b: Any, kinds: Sequence[ScaleKind]
) -> tuple[LineScales | None, LineScales | None]:
    """Scales of this rank's parts of A and B, two-dimensional or None, in terms of lines."""
    return (
        None if scale_a is None else LineScales(scale_a, kinds[0]),
        None if scale_b is None else LineScales(scale_b.T, kinds[1]),
    )


def check_scales(asked: SpreadProduct, agreement: Agreement) -> None:
    """Refuse scales where something else is redistributed than operands that are gathered.

    Raises:
        UnsupportedProblem: there are some.
    """
    if agreement.kinds == (NONE, NONE):
        return
    for at, (each, team, have) in enumerate(
        zip(agreement.sizes, asked.teams, asked.placements, strict=True)
    ):
        if team.size == 1:
            continue
        in_panels = agreement.panels is not None and at in agreement.panels
        second = each.rule.form == "gather" and at != agreement.main
        if second or (not in_panels and (each.rule.a, each.rule.b) != have):
            raise UnsupportedProblem(
                f"scales of A {have[0]} and B {have[1]}, which are redistributed before the "
                f"product: place them as A {each.rule.a} and B {each.rule.b}"
            )


def gathered_scales(team: Team, own: LineScales, sizes: Sequence[int]) -> LineScales:
    """The scales of all ranks' lines.

    Args:
        team: the ranks.
        own: those of this rank's lines.
        sizes: the lines of each rank.
    """
    return scale_gatherer(team, own.kind, sizes)(own)


def scale_gatherer(
    team: Team, kind: ScaleKind, sizes: Sequence[int]
) -> Callable[[LineScales], LineScales]:
    """`gathered_scales` for scales of a kind and shares of given sizes, prepared."""
    last = max((rank for rank, size in enumerate(sizes) if size), default=0)
    in_blocks = kind.lines == BLOCK and all(size % BLOCK == 0 for size in sizes[:last])
    rows = [-(-size // BLOCK) for size in sizes] if in_blocks else sizes
    made = kind if in_blocks else kind_by_line(kind)
    gather, lines = lines_gatherer(team.communicator, torch.float32, rows), sizes[team.rank]

    def gathered(own: LineScales) -> LineScales:
        if not in_blocks:
            # Each rank may have a scale of its own for all of its lines, and a block ends with
            # them.
            own = own.by_line(lines)
        return LineScales(gather(own.array), made)

    return gathered


class PanelScales:
    """The scales of an operand whose panels of k travel: those of each rank's share of k.

    Args:
        own: those of this rank's lines and its share of k.
        team: the ranks over which k is spread; None where this rank has all of it.
        sizes: their shares of k.
    """

    def __init__(self, own: LineScales, team: Team | None, sizes: Sequence[int]) -> None:
        self._kind, self._shares = own.kind, consecutive(sizes)
        self._all = [own.array]
        if team is None:
            return
        # A line for each chunk of k, whose scales lie next to each other.
        turned = own.array.T
        chunks = [-(-size // CHUNK) if self._kind.of_chunks else 1 for size in sizes]
        made = gather_collectively(team.communicator, turned, chunks).T
        self._all = [made[:, each.start : each.stop] for each in consecutive(chunks)]

    def of(self, panel: Span, owner: int) -> LineScales:
        """Those of a panel.

        Raises:
            UnsupportedProblem: it begins within a chunk of k.
        """
        found, share = self._all[owner], self._shares[owner]
        if self._kind.of_chunks:
            start, stop = panel.start - share.start, panel.stop - share.start
            if start % CHUNK:
                raise UnsupportedProblem(
                    f"a panel of k begins within a chunk of {CHUNK} that has one scale: shares of "
                    f"k of A and B must begin at multiples of {CHUNK} of each other"
                )
            found = found[:, start // CHUNK : -(-stop // CHUNK)]
        return LineScales(found, self._kind)

    def joined(self) -> LineScales:
        """Those of all k, for one product.

        Raises:
            UnsupportedProblem: ranks have scales of their own for all of their share of k, or a
                chunk ends with a share.
        """
        some = [
            (each, share) for each, share in zip(self._all, self._shares, strict=True) if share.size
        ]
        if len(some) < 2:
            return LineScales(some[0][0] if some else self._all[0], self._kind)
        if not self._kind.of_chunks or any(share.size % CHUNK for _, share in some[:-1]):
            raise UnsupportedProblem(
                "ranks have scales of their own for their shares of k, which one product of all k "
                "cannot take: choose a strategy with parts, such as 'group-1'"
            )
        return LineScales(torch.cat([each for each, _ in some], 1).contiguous(), self._kind)


def gathered_panel_scales(
    asked: SpreadProduct, agreement: Agreement, own: Sequence[LineScales | None]
) -> tuple[LineScales | None, LineScales | None]:
    """The scales of A and B where all panels have been gathered.

    Raises:
        UnsupportedProblem: as `PanelScales.joined`.
    """
    made: list[LineScales | None] = []
    for each, at in zip(own, agreement.panels or (None, None), strict=True):
        if each is None or at is None:
            made.append(each)
        else:
            made.append(PanelScales(each, asked.teams[at], agreement.sizes[at].k).joined())
    return made[0], made[1]
