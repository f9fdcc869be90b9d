"""Scales of A and B over ranks: those of an operand that is gathered are gathered with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmkit.distributed.agreements import Agreement
from gemmkit.distributed.process_group import LinesGatherer, gather_together
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


class ScaleGatherer:
    """Gathers the scales of all ranks' lines, of a kind and of shares of given sizes.

    Args:
        team: the ranks.
        kind: that of the scales of each rank's lines.
        sizes: the lines of each rank.
    """

    def __init__(self, team: Team, kind: ScaleKind, sizes: Sequence[int]) -> None:
        last = max((rank for rank, size in enumerate(sizes) if size), default=0)
        in_blocks = kind.lines == BLOCK and all(size % BLOCK == 0 for size in sizes[:last])
        rows = [-(-size // BLOCK) for size in sizes] if in_blocks else sizes
        self.kind = kind if in_blocks else kind_by_line(kind)
        # Each rank may have a scale of its own for all of its lines, and a block ends with them.
        self._by_line = kind != self.kind
        self._given, self._own = kind, sizes[team.rank]
        self.lines = LinesGatherer(team.communicator, torch.float32, rows)

    def __call__(self, own: LineScales) -> LineScales:
        """Those of all ranks' lines, from those of this rank's, by an operation of their own."""
        return LineScales(self.lines(self.sent(own.array)), self.kind)

    def sent(self, own: Any) -> Any:
        """This rank's, as they are gathered."""
        return LineScales(own, self._given).by_line(self._own).array if self._by_line else own


def gathered_with_scales(
    team: Team, own: Any, scales: LineScales, sizes: Sequence[int]
) -> tuple[Any, LineScales]:
    """The lines of all ranks and their scales, by one collective operation of the group."""
    lines = LinesGatherer(team.communicator, own.dtype, sizes)
    gatherer = ScaleGatherer(team, scales.kind, sizes)
    made, array = gather_together(
        team.communicator, (lines, gatherer.lines), (own, gatherer.sent(scales.array))
    )
    return made, LineScales(array, gatherer.kind)


class PanelScales:
    """The scales of an operand whose panels of k travel: those of each rank's share of k.

    Args:
        kind: their kind.
        sizes: the ranks' shares of k.
        every: the scales of all ranks, next to each other.
    """

    def __init__(self, kind: ScaleKind, sizes: Sequence[int], every: Any) -> None:
        self._kind, self._shares = kind, consecutive(sizes)
        spans = consecutive(_chunks(kind, sizes))
        self._all = [every[:, each.start : each.stop] for each in spans]

    @classmethod
    def gathered(cls, own: LineScales, team: Team | None, sizes: Sequence[int]) -> PanelScales:
        """Those of all ranks.

        Args:
            own: those of this rank's lines and its share of k.
            team: the ranks over which k is spread; None where this rank has all of it.
            sizes: their shares of k.
        """
        if team is None:
            return cls(own.kind, sizes, own.array)
        # A line for each chunk of k, whose scales lie next to each other.
        gather = LinesGatherer(team.communicator, torch.float32, _chunks(own.kind, sizes))
        return cls(own.kind, sizes, gather(own.array.T).T)

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


def _chunks(kind: ScaleKind, sizes: Sequence[int]) -> list[int]:
    """The scales of a line for each share of k."""
    return [-(-size // CHUNK) if kind.of_chunks else 1 for size in sizes]


def gathered_panels(
    asked: SpreadProduct, agreement: Agreement, own: Sequence[LineScales | None]
) -> tuple[Any, Any, tuple[LineScales | None, LineScales | None]]:
    """A and B with all of k, and their scales, each with its own by one operation of a group.

    Raises:
        UnsupportedProblem: as `PanelScales.joined`.
    """
    operands, scales = [asked.a.T, asked.b], list(own)
    for place, at in enumerate(agreement.panels or (None, None)):
        if at is None:
            continue
        communicator, sizes = asked.teams[at].communicator, agreement.sizes[at].k
        lines = LinesGatherer(communicator, operands[place].dtype, sizes)
        given = own[place]
        if given is None:
            operands[place] = lines(operands[place])
            continue
        chunks = LinesGatherer(communicator, torch.float32, _chunks(given.kind, sizes))
        operands[place], every = gather_together(
            communicator, (lines, chunks), (operands[place], given.array.T)
        )
        scales[place] = PanelScales(given.kind, sizes, every.T).joined()
    return operands[0].T, operands[1], (scales[0], scales[1])
