"""SUMMA's schedule: which panels of k travel along the rows and columns of a mesh, and in which
order each rank multiplies them. Pure indices, as in `schedule`.

The formula is that of van de Geijn and Watts (1997), C = Σ A[:, p]·B[p, :] over panels p of k. A's
panels come from the ranks over which A's k is spread, B's from those over which B's is; a panel
ends wherever a share of either ends, so that each has one owner on both sides. Each rank begins
with panels that it has itself, if there are any, and goes on in the order in which panels arrive
where lines of A and of B take as long: an element's sum is taken in an order that depends on the
place of its rank in the mesh alone, and is the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Literal, NamedTuple

from gemmkit.distributed.schedule import Exchange, Piece, Schedule, gather_pieces
from gemmkit.distributed.splits import Span, consecutive, parts_of
from gemmkit.errors import DistributedError

Operand = Literal["a", "b"]


class PanelProduct(NamedTuple):
    """The product of a panel, with the ranks that have it: of A along the dimension of the mesh
    over which A's k is spread, of B along that of B's. A rank that has all of k owns all panels."""

    span: Span
    owner_a: int
    owner_b: int


class PanelExchange(NamedTuple):
    """Transfers of one operand's panels, between the ranks along its dimension of the mesh."""

    operand: Operand
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class PanelSchedule:
    """The steps of one rank: all exchanges, then the products in their order.

    `a` and `b` are the transfers of each operand, None where this rank has all of its k.
    """

    a: Schedule | None
    b: Schedule | None
    exchanges: tuple[PanelExchange, ...]
    products: tuple[PanelProduct, ...]


class Shares(NamedTuple):
    """How k of an operand is spread: each rank's share of it, and the place of this rank."""

    sizes: tuple[int, ...]
    rank: int


@lru_cache(maxsize=1024)
def panel_schedule(
    a: Shares, b: Shares, parts: int = 1, multiple: int = 1, *, whole: bool = False
) -> PanelSchedule:
    """The steps of a rank.

    Args:
        a: how A's k is spread; one share where each rank has all of it.
        b: likewise of B.
        parts: how many parts of a panel travel and are multiplied one by one.
        multiple: of lines that parts have, but for the last of a panel.
        whole: whether the products are one, of all panels in the order of k: then they are listed
            in this order.

    Raises:
        DistributedError: A and B have different k.
    """
    if sum(a.sizes) != sum(b.sizes):
        raise DistributedError(
            f"A has {sum(a.sizes)} columns and B has {sum(b.sizes)} rows on all ranks"
        )
    spans = consecutive(a.sizes), consecutive(b.sizes)
    panels = [part for panel in _panels(*spans) for part in parts_of(panel, parts, multiple)]
    sides = [_transfers(of, shares, panels) for of, shares in zip((a, b), spans, strict=True)]
    products = [
        PanelProduct(span, _owner(span, spans[0]), _owner(span, spans[1])) for span in panels
    ]
    side_a, side_b = sides
    exchanges = _interleaved(side_a, side_b)
    if not whole:
        arrivals = _arrivals(exchanges)

        def order(product: PanelProduct) -> tuple[int, int, int]:
            # Lines until both operands are here, then those until each of them is.
            lines = [arrivals.get((operand, product.span), 0) for operand in _OPERANDS]
            return max(lines), sum(lines), product.span.start

        products.sort(key=order)
    return PanelSchedule(side_a, side_b, exchanges, tuple(products))


def _panels(a: Sequence[Span], b: Sequence[Span]) -> list[Span]:
    """Stretches of k with one owner on both sides."""
    cuts = sorted({each.start for each in (*a, *b)} | {each.stop for each in (*a, *b)})
    return [Span(start, stop) for start, stop in pairwise(cuts)]


def _owner(panel: Span, shares: Sequence[Span]) -> int:
    return next(rank for rank, each in enumerate(shares) if each.start <= panel.start < each.stop)


def _transfers(of: Shares, shares: Sequence[Span], panels: Sequence[Span]) -> Schedule | None:
    if len(shares) == 1:
        return None
    pieces: list[list[Piece]] = [[] for _ in shares]
    for panel in panels:
        owner = _owner(panel, shares)
        pieces[owner].append(Piece(owner, panel))
    return gather_pieces(of.rank, shares, pieces)


def _arrivals(exchanges: Sequence[PanelExchange]) -> dict[tuple[Operand, Span], int]:
    """After how many lines of both operands each panel that travels to this rank is there."""
    found: dict[tuple[Operand, Span], int] = {}
    lines = 0
    for operand, exchange in exchanges:
        for each in exchange.receives:
            lines += each.piece.span.size
            found[operand, each.piece.span] = lines
    return found


def _interleaved(a: Schedule | None, b: Schedule | None) -> tuple[PanelExchange, ...]:
    """The exchanges of both operands in turn: in the same order on all ranks."""
    steps = [each.steps if each is not None else () for each in (a, b)]
    return tuple(
        PanelExchange(operand, step)
        for pair in zip_longest(*steps)
        for operand, step in zip(_OPERANDS, pair, strict=True)
        if isinstance(step, Exchange)
    )


_OPERANDS: tuple[Operand, Operand] = ("a", "b")
