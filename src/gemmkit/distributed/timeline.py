"""When each rank's transfers and products would run: a schedule played through with predicted
times, one product at a time per rank, one transfer at a time per rank and direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from gemmkit.distributed.panels import Operand, PanelProduct, PanelSchedule
from gemmkit.distributed.schedule import Cargo, Exchange, Piece, Product, Schedule
from gemmkit.distributed.splits import Span

# Microseconds of a product of so many lines, and of a transfer of so many.
Cost = Callable[[int], float]

# Of a transfer of so much k of an operand.
OperandCost = Callable[[Operand, int], float]


class Interval(NamedTuple):
    """What a rank does from `start` to `stop`, in microseconds from the beginning of the call."""

    rank: int
    lane: Literal["product", "send"]
    start: float
    stop: float
    span: Span
    owner: int
    peer: int


class Timeline(NamedTuple):
    """All intervals, in the order of their starts, and when the last rank is done.

    `waiting` is how long the slowest rank's products stand still for arrivals.
    """

    intervals: tuple[Interval, ...]
    total: float
    waiting: float


class _Ranks:
    """Where each rank stands."""

    def __init__(self, schedules: list[Schedule], product: Cost, transfer: Cost, add: Cost) -> None:
        self.schedules, self.product, self.transfer, self.add = schedules, product, transfer, add
        ranks = len(schedules)
        self.place = [0] * ranks
        self.busy = [0.0] * ranks
        self.waited = [0.0] * ranks
        self.sending, self.receiving = [0.0] * ranks, [0.0] * ranks
        self.arrived: dict[tuple[int, Cargo, Piece, int], float] = {}
        self.intervals: list[Interval] = []

    def advance(self, rank: int) -> bool:
        """Play the next step of a rank, unless it waits for one that others have not played."""
        schedule = self.schedules[rank]
        if self.place[rank] == len(schedule.steps):
            return False
        step = schedule.steps[self.place[rank]]
        if isinstance(step, Exchange):
            self._exchange(rank, step)
        else:
            needed = self._needed(rank, schedule)
            times = [self.arrived.get(each) for each in needed]
            if any(each is None for each in times):
                return False
            if isinstance(step, Product) and step.reads == "arriving":
                self._multiply_arriving(rank, schedule)
                self.place[rank] += 1
                return True
            ready = max([self.busy[rank], *(each for each in times if each is not None)])
            self.waited[rank] += ready - self.busy[rank]
            cost = self.product if isinstance(step, Product) else self.add
            stop = ready + cost(step.span.size)
            owner = step.owner if isinstance(step, Product) else rank
            self.intervals.append(Interval(rank, "product", ready, stop, step.span, owner, rank))
            self.busy[rank] = stop
        self.place[rank] += 1
        return True

    def _multiply_arriving(self, rank: int, schedule: Schedule) -> None:
        """One product, whose tiles of a share wait for that: an interval for each share."""
        arrived = {
            piece.owner: stop for (peer, _, piece, _), stop in self.arrived.items() if peer == rank
        }
        for owner in schedule.in_turn:
            span, before = schedule.spans[owner], self.busy[rank]
            start = max(before, arrived.get(owner, 0.0))
            stop = start + self.product(span.size)
            self.waited[rank] += start - before
            self.busy[rank] = stop
            self.intervals.append(Interval(rank, "product", start, stop, span, owner, rank))

    def _exchange(self, rank: int, step: Exchange) -> None:
        # Operands are there from the beginning, sums and results after their product.
        ready = 0.0 if step.cargo == "operand" else self.busy[rank]
        for transfer in step.sends:
            piece, peer = transfer.piece, transfer.peer
            start = max(ready, self.sending[rank], self.receiving[peer])
            stop = start + self.transfer(piece.span.size)
            self.sending[rank] = self.receiving[peer] = stop
            self.arrived[peer, step.cargo, piece, rank] = stop
            self.intervals.append(
                Interval(rank, "send", start, stop, piece.span, piece.owner, peer)
            )

    def _needed(self, rank: int, schedule: Schedule) -> list[tuple[int, Cargo, Piece, int]]:
        """What must have arrived at a rank before its next step."""
        step = schedule.steps[self.place[rank]]
        received = [
            (rank, each.cargo, transfer.piece, transfer.peer)
            for each in schedule.steps
            if isinstance(each, Exchange)
            for transfer in each.receives
        ]
        if isinstance(step, Product) and step.reads in ("gathered", "arriving"):
            return received
        if isinstance(step, Product):
            cargo = "operand" if step.reads == "arrived" else "sums" if step.adds else None
            return [each for each in received if each[1] == cargo and each[2].span == step.span]
        return [each for each in received if each[1] == "sums"]


def play(schedules: list[Schedule], product: Cost, transfer: Cost, add: Cost) -> Timeline:
    """The timeline of all ranks' schedules.

    Args:
        schedules: of all ranks, by rank.
        product: the time of a product of so many lines.
        transfer: the time of a transfer of so many lines.
        add: the time of adding up the sums of all ranks for so many lines.
    """
    ranks = _Ranks(schedules, product, transfer, add)
    moved = True
    while moved:
        # Each rank in turn, so that none takes a peer's links before it.
        moved = sum(ranks.advance(rank) for rank in range(len(schedules))) > 0
    results = [stop for (_, cargo, *_), stop in ranks.arrived.items() if cargo == "result"]
    total = max([*ranks.busy, *results], default=0.0)
    ordered = sorted(ranks.intervals, key=lambda each: (each.start, each.rank, each.lane))
    return Timeline(tuple(ordered), total, max(ranks.waited, default=0.0))


def play_panels(
    schedules: list[list[PanelSchedule]],
    product: Cost,
    transfer: OperandCost,
    last: float,
    *,
    whole: bool,
) -> Timeline:
    """The timeline of all ranks of a mesh.

    Ranks are counted along the second dimension first. A rank's transfers of both operands share
    its link: one is sent at a time, and one received.

    Args:
        schedules: those of the ranks by their place along the dimension of B's panels, then by that
            along the dimension of A's.
        product: the time of a product of a panel.
        transfer: the time of a transfer of a panel.
        last: the time of what follows the products, or with `whole` comes before the one.
        whole: whether there is one product, of all panels.
    """
    columns = len(schedules[0])
    places = [(row, column) for row in range(len(schedules)) for column in range(columns)]
    sending, receiving = [0.0] * len(places), [0.0] * len(places)
    arrived: dict[tuple[int, Operand, Span], float] = {}
    intervals: list[Interval] = []
    most = max(len(schedules[row][column].exchanges) for row, column in places)
    for number in range(most):
        # Each rank in turn, so that none takes a peer's links before it.
        for rank, (row, column) in enumerate(places):
            for operand, step in schedules[row][column].exchanges[number : number + 1]:
                for sent in step.sends:
                    along_a = operand == "a"
                    peer = row * columns + sent.peer if along_a else sent.peer * columns + column
                    start = max(sending[rank], receiving[peer])
                    span = sent.piece.span
                    stop = start + transfer(operand, span.size)
                    sending[rank] = receiving[peer] = arrived[peer, operand, span] = stop
                    intervals.append(Interval(rank, "send", start, stop, span, rank, peer))
    total = waiting = 0.0
    for rank, (row, column) in enumerate(places):
        schedule = schedules[row][column]
        busy = waited = 0.0
        here = {each: stop for (peer, _, each), stop in arrived.items() if peer == rank}
        for each in schedule.products[:1] if whole else schedule.products:
            ready = max(busy, *(arrived.get((rank, name, each.span), 0.0) for name in _OPERANDS))
            span, owner = each.span, _sender(schedule, each, rank, row, column, columns)
            if whole:
                ready = max(here.values(), default=0.0) + last
                span, owner = Span(0, schedule.products[-1].span.stop), rank
            waited += ready - busy
            busy = ready + product(span.size)
            intervals.append(Interval(rank, "product", ready, busy, span, owner, rank))
        total = max(total, busy if whole else busy + last)
        waiting = max(waiting, waited)
    ordered = sorted(intervals, key=lambda each: (each.start, each.rank, each.lane))
    return Timeline(tuple(ordered), max(total, *sending), waiting)


def _sender(
    schedule: PanelSchedule, product: PanelProduct, rank: int, row: int, column: int, columns: int
) -> int:
    """The rank that sends a panel to this one: A's, or B's where that of A is its own."""
    if schedule.a is not None and product.owner_a != column:
        return row * columns + product.owner_a
    if schedule.b is not None and product.owner_b != row:
        return product.owner_b * columns + column
    return rank


_OPERANDS: tuple[Operand, Operand] = ("a", "b")
