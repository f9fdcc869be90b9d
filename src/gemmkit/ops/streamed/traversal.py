"""The order in which tiles of C are computed, who computes them, and which panels stay."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from gemmkit.ops.streamed.sizes import StreamProblem, Tiling

# Which of A's panels or B's: product or group of products, line of tiles, chunk of k.
PanelKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of C: the group of products, and its row and column among the tiles.

    `backwards` says that its chunks of k come last to first. This belongs to the tile, whoever
    computes it, so that the sums are the same in any case.
    """

    group: int
    row: int
    column: int
    backwards: bool

    def chunks(self, count: int) -> range:
        """The chunks of k in the order in which they are added."""
        return range(count - 1, -1, -1) if self.backwards else range(count)

    def panel_a(self, chunk: int, problem: StreamProblem) -> PanelKey:
        """The panel of A that a chunk needs."""
        return 0 if problem.shared_a else self.group, self.row, chunk

    def panel_b(self, chunk: int, problem: StreamProblem) -> PanelKey:
        """The panel of B that a chunk needs."""
        return 0 if problem.shared_b else self.group, self.column, chunk


def tiles_in_order(problem: StreamProblem, tiling: Tiling) -> Iterator[Tile]:
    """All tiles, serpentine in each dimension: each begins with panels that the last one had.

    Those of `squares` are so within each row and column that is added.
    """
    groups, rows, columns = tiling.counts(problem)
    if tiling.squares:
        places = (
            (group, *place) for group in range(groups) for place in _growing_squares(rows, columns)
        )
        for number, (group, row, column) in enumerate(places):
            yield Tile(group, row, column, backwards=bool(number % 2))
        return
    outer, inner = (rows, columns) if tiling.by_rows else (columns, rows)
    number = 0
    outer_forwards = inner_forwards = True
    for group in range(groups):
        for line in range(outer) if outer_forwards else range(outer - 1, -1, -1):
            for place in range(inner) if inner_forwards else range(inner - 1, -1, -1):
                row, column = (line, place) if tiling.by_rows else (place, line)
                yield Tile(group, row, column, backwards=bool(number % 2))
                number += 1
            inner_forwards = not inner_forwards
        outer_forwards = not outer_forwards


def _growing_squares(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Each row and column that a square grows by: from the left along it, and then up."""
    for side in range(max(rows, columns)):
        if side < rows:
            yield from ((side, column) for column in range(min(side + 1, columns)))
        if side < columns:
            above = min(side, rows)
            yield from ((row, side) for row in range(above - 1, -1, -1))


class Slots:
    """Which panel is in which slot of a device's memory; the one longest unused makes room.

    In serpentine order, that is the one whose next use is farthest.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._held: OrderedDict[Hashable, int] = OrderedDict()

    def take(self, key: Hashable) -> tuple[int, bool]:
        """The slot for a panel, and whether it has to be loaded."""
        slot = self._held.get(key)
        if slot is not None:
            self._held.move_to_end(key)
            return slot, False
        slot = self._free.pop() if self._free else self._held.popitem(last=False)[1]
        self._held[key] = slot
        return slot, True


def shares(count: int, devices: int) -> list[range]:
    """Numbers of tiles as even, contiguous shares, one for each device."""
    ends = [count * each // devices for each in range(devices + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


class Deal:
    """Deals tiles to devices: each has a contiguous share, whose panels it keeps."""

    def __init__(self, problem: StreamProblem, tiling: Tiling, devices: int) -> None:
        tiles = list(tiles_in_order(problem, tiling))
        self.count = len(tiles)
        self._lock = threading.Lock()
        self._shares = [
            deque(tiles[each.start : each.stop]) for each in shares(len(tiles), devices)
        ]

    def own(self, device: int) -> Tile | None:
        """The next tile of a device's share, by its place in the list, or None at its end."""
        with self._lock:
            share = self._shares[device]
            return share.popleft() if share else None

    def others(self) -> Tile | None:
        """The last tile of the longest share, or None if all are dealt.

        Tiles are dealt well before they are computed, so a device that asks as soon as its own
        share is dealt, and not when it has almost computed it, may take the last tile of one that
        is as fast, and finish a tile later than the others.
        """
        with self._lock:
            longest = max(self._shares, key=len)
            return longest.pop() if longest else None
