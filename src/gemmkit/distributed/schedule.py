"""What each rank does, in order: which pieces it sends and receives, and what it multiplies when.

Pure indices: no arrays, no communication. All ranks derive the same schedule from the same
arguments, so that each knows where its peers expect what it sends.

With the left operand split by rows, rank r begins with its own rows, which are there, and takes
those of r + 1, r + 2, … as they arrive. With k split, the sums of a block of rows travel from rank
to rank, each of which adds its own product in the write-back; they end at the block's owner, so
that the order of the additions is the same in every run and for every rank that gets the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from gemmkit.distributed.splits import Span, consecutive, parts_of
from gemmkit.errors import UsageError

# "local": nothing is sent; "gather": the split operand is; "scatter": the sums, each rank keeps its
# share; "reduce": the sums, all ranks get all of them.
Form = Literal["local", "gather", "scatter", "reduce"]

# "whole": one product, before or after all transfers; "parts": products of parts, with transfers
# under them; "fused": one product that waits for each share itself, with transfers under it.
Way = Literal["whole", "parts", "fused"]

# What travels: shares of an operand, sums that are not complete, complete results.
Cargo = Literal["operand", "sums", "result"]

# Offsets of pieces in memory that others write to are multiples of this, in elements: of 128 bytes
# at least for 2-byte types.
_ALIGNED = 64


class Piece(NamedTuple):
    """Rows (or columns) of the split side that belong to the share of rank `owner`."""

    owner: int
    span: Span


@dataclass(frozen=True, slots=True)
class Transfer:
    """A piece on its way between this rank and `peer`.

    `number` counts what the receiver gets in a call, from 0; `offset` is the first of the lines
    that it takes in the receiver's memory, each as long as the other side of the matrix.
    """

    piece: Piece
    peer: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """Transfers that are started together; this rank sends the ones and receives the others."""

    cargo: Cargo
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """The product of a piece of the split side.

    It reads its operand from this rank's own share, from what `arrived`, or from all of the
    operand, `gathered` from everyone before or `arriving` meanwhile. It `adds` the sums that
    arrived for this piece; `final` ones are results, with bias, activation and residual, the others
    sums to be sent on.
    """

    span: Span
    owner: int
    reads: Literal["own", "arrived", "gathered", "arriving"]
    adds: bool = False
    final: bool = True


@dataclass(frozen=True, slots=True)
class Sum:
    """The result of a piece: this rank's sums and all that arrived for it, by rank."""

    span: Span


Step = Exchange | Product | Sum


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of one rank, and the lines of memory that others write to."""

    form: Form
    way: Way
    rank: int
    ranks: int
    spans: tuple[Span, ...]
    steps: tuple[Step, ...]
    lines: int

    @property
    def receives(self) -> int:
        """How many transfers this rank receives."""
        return sum(len(each.receives) for each in self.steps if isinstance(each, Exchange))

    @property
    def own(self) -> Span:
        """This rank's share of the split side."""
        return self.spans[self.rank]

    @property
    def in_turn(self) -> list[int]:
        """All ranks in the order in which this one gets their shares, itself first."""
        return [self.rank, *_others(self.rank, self.ranks)]


@lru_cache(maxsize=1024)
def schedule(
    form: Form, way: Way, sizes: tuple[int, ...], rank: int, parts: int = 1, multiple: int = 1
) -> Schedule:
    """The steps of a rank.

    Args:
        form: what is sent.
        way: whether in parts, under products, or as a whole, before, after or under one.
        sizes: of each rank's share of the split side.
        rank: whose steps.
        parts: how many parts of a share travel one by one.
        multiple: of rows that parts have, but for the last of a share.

    Raises:
        UsageError: there is no such rank, form or way.
    """
    if not 0 <= rank < len(sizes):
        raise UsageError(f"rank {rank} of {len(sizes)} ranks: ranks count from 0")
    if form == "local" or len(sizes) == 1:
        spans = consecutive(sizes)
        steps: Iterable[Step] = _local(spans)
        return Schedule("local", "whole", rank, len(sizes), spans, tuple(steps), 0)
    return _numbered(form, way, rank, _of_all_ranks(form, way, sizes, parts, multiple))


# --- the steps of a rank, transfers without places as yet ---------------------------------------

# (cargo, [(piece, to)], [(piece, from)]) in place of an exchange.
_Moves = tuple[Cargo, list[tuple[Piece, int]], list[tuple[Piece, int]]]
_Plain = list["_Moves | Product | Sum"]
_Pieces = Sequence[Sequence[Piece]]
# By cargo, piece and peer.
_Places = dict[tuple[Cargo, Piece, int], tuple[int, int]]


class _AllRanks(NamedTuple):
    """Each rank's steps, and the places of what it receives, with the lines of all."""

    spans: tuple[Span, ...]
    plain: Sequence[_Plain]
    places: Sequence[tuple[_Places, int]]


# Asked for by each rank in turn where all are played through.
@lru_cache(maxsize=8)
def _of_all_ranks(
    form: Form, way: Way, sizes: tuple[int, ...], parts: int, multiple: int
) -> _AllRanks:
    makers = {
        ("gather", "whole"): _gather_whole,
        ("gather", "parts"): _gather_parts,
        ("gather", "fused"): _gather_fused,
        ("scatter", "whole"): _scatter_whole,
        ("scatter", "parts"): _scatter_parts,
        ("reduce", "whole"): _reduce_whole,
        ("reduce", "parts"): _reduce_parts,
    }
    maker = makers.get((form, way))
    if maker is None:
        raise UsageError(f"form '{form}' and way '{way}': there is no such schedule")
    spans = consecutive(sizes)
    pieces = [
        [Piece(owner, part) for part in parts_of(span, parts if way == "parts" else 1, multiple)]
        for owner, span in enumerate(spans)
    ]
    plain = [maker(rank, spans, pieces) for rank in range(len(sizes))]
    return _with_places(form, spans, plain)


def _local(spans: Sequence[Span]) -> list[Product]:
    whole = Span(0, spans[-1].stop)
    return [Product(whole, 0, "own")]


def _others(rank: int, ranks: int) -> list[int]:
    """The other ranks, as rank r receives from them: r + 1 first."""
    return [(rank + step) % ranks for step in range(1, ranks)]


def _moves_to_all(cargo: Cargo, rank: int, ranks: int, pieces: _Pieces) -> list[_Moves]:
    """Each piece of this rank's to all others, and theirs to this one.

    At each step, a rank sends to one peer and receives from another one.
    """
    moves: list[_Moves] = []
    for step in range(1, ranks):
        source, target = (rank + step) % ranks, (rank - step) % ranks
        for place in range(max(len(pieces[source]), len(pieces[rank]))):
            sends = [(each, target) for each in pieces[rank][place : place + 1]]
            receives = [(each, source) for each in pieces[source][place : place + 1]]
            moves.append((cargo, sends, receives))
    return moves


def gather_pieces(rank: int, spans: Sequence[Span], pieces: _Pieces) -> Schedule:
    """The transfers by which each rank gets all others' pieces of an operand, and no products.

    Args:
        rank: whose steps.
        spans: each rank's share of the operand's lines.
        pieces: of each rank's share, in the order in which they travel.
    """
    plain: list[_Plain] = [
        [*_moves_to_all("operand", each, len(spans), pieces)] for each in range(len(spans))
    ]
    return _numbered("gather", "parts", rank, _with_places("gather", tuple(spans), plain))


def _gather_whole(rank: int, spans: Sequence[Span], pieces: _Pieces) -> _Plain:
    moves: _Plain = [*_moves_to_all("operand", rank, len(spans), pieces)]
    return [*moves, Product(Span(0, spans[-1].stop), rank, "gathered")]


def _gather_parts(rank: int, spans: Sequence[Span], pieces: _Pieces) -> _Plain:
    steps: _Plain = [*_moves_to_all("operand", rank, len(spans), pieces)]
    if spans[rank].size:
        steps.append(Product(spans[rank], rank, "own"))
    for owner in _others(rank, len(spans)):
        steps += [Product(each.span, owner, "arrived") for each in pieces[owner]]
    return steps


def _gather_fused(rank: int, spans: Sequence[Span], pieces: _Pieces) -> _Plain:
    moves: _Plain = [*_moves_to_all("operand", rank, len(spans), pieces)]
    return [*moves, Product(Span(0, spans[-1].stop), rank, "arriving")]


def _scatter_whole(rank: int, spans: Sequence[Span], pieces: _Pieces) -> _Plain:
    steps: _Plain = [Product(Span(0, spans[-1].stop), rank, "own", final=False)]
    for step in range(1, len(spans)):
        source, target = (rank + step) % len(spans), (rank - step) % len(spans)
        sends = [(each, target) for each in pieces[target]]
        receives = [(each, source) for each in pieces[rank]]
        steps.append(("sums", sends, receives))
    return [*steps, *([Sum(spans[rank])] if spans[rank].size else [])]


def _scatter_parts(rank: int, spans: Sequence[Span], pieces: _Pieces) -> _Plain:
    """Around the ranks: that of block b begins at rank b + 1 and ends at b."""
    ranks = len(spans)
    steps: _Plain = []
    for step in range(ranks):
        block, coming = (rank - step - 1) % ranks, (rank - step - 2) % ranks
        last = step == ranks - 1
        for place in range(max(len(pieces[block]), len(pieces[coming]))):
            own, next_one = pieces[block][place : place + 1], pieces[coming][place : place + 1]
            steps += [Product(each.span, block, "own", adds=step > 0, final=last) for each in own]
            if not last:
                sends = [(each, (rank + 1) % ranks) for each in own]
                receives = [(each, (rank - 1) % ranks) for each in next_one]
                steps.append(("sums", sends, receives))
    return steps


def _reduce_whole(rank: int, spans: Sequence[Span], _: _Pieces) -> _Plain:
    """Each rank gets all sums of all others, and adds them up itself."""
    ranks, whole = len(spans), Span(0, spans[-1].stop)
    steps: _Plain = [Product(whole, rank, "own", final=False)]
    for step in range(1, ranks):
        source, target = (rank + step) % ranks, (rank - step) % ranks
        piece = Piece(rank, whole)
        steps.append(("sums", [(piece, target)], [(Piece(source, whole), source)]))
    return [*steps, Sum(whole)]


def _reduce_parts(rank: int, spans: Sequence[Span], pieces: _Pieces) -> _Plain:
    """As `_scatter_parts`; each piece goes to all others as soon as it is complete."""
    ranks = len(spans)
    steps = _scatter_parts(rank, spans, pieces)
    made: _Plain = []
    index = 0
    for each in steps:
        made.append(each)
        if isinstance(each, Product) and each.final:
            made += _results(rank, ranks, pieces, index)
            index += 1
    # Owners with more pieces than this rank's share has.
    for index in range(len(pieces[rank]), max(map(len, pieces))):
        made += _results(rank, ranks, pieces, index)
    return made


def _results(rank: int, ranks: int, pieces: _Pieces, index: int) -> list[_Moves]:
    moves: list[_Moves] = []
    for step in range(1, ranks):
        source, target = (rank + step) % ranks, (rank - step) % ranks
        sends = [(each, target) for each in pieces[rank][index : index + 1]]
        receives = [(each, source) for each in pieces[source][index : index + 1]]
        moves.append(("result", sends, receives))
    return moves


# --- places -------------------------------------------------------------------------------------


def _numbered(form: Form, way: Way, rank: int, every: _AllRanks) -> Schedule:
    """The steps of a rank with the places of transfers in the receivers' memory."""
    spans, plain, places = every
    made: list[Step] = []
    for step in plain[rank]:
        if isinstance(step, (Product, Sum)):
            made.append(step)
            continue
        cargo, sends, receives = step
        sent = tuple(
            Transfer(piece, peer, *places[peer][0][cargo, piece, rank]) for piece, peer in sends
        )
        received = tuple(
            Transfer(piece, peer, *places[rank][0][cargo, piece, peer]) for piece, peer in receives
        )
        if sent or received:
            made.append(Exchange(cargo, sent, received))
    # All ranks reserve as much, so that all make room for more in the same call.
    lines = max(each[1] for each in places)
    return Schedule(form, way, rank, len(spans), spans, tuple(made), lines)


def _with_places(form: Form, spans: tuple[Span, ...], plain: Sequence[_Plain]) -> _AllRanks:
    return _AllRanks(spans, plain, [_places(form, spans, steps) for steps in plain])


def _places(form: Form, spans: Sequence[Span], steps: _Plain) -> tuple[_Places, int]:
    """Number and offset of each transfer that a rank receives, and the lines of all."""
    found: _Places = {}
    # A gathered operand is one matrix, this rank's share included.
    end = spans[-1].stop if form == "gather" else 0
    for step in steps:
        if isinstance(step, (Product, Sum)):
            continue
        cargo, _, receives = step
        for piece, peer in receives:
            offset = piece.span.start if form == "gather" else end
            found[cargo, piece, peer] = len(found), offset
            if form != "gather":
                end += -(-piece.span.size // _ALIGNED) * _ALIGNED
    return found, end
