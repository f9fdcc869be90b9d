"""How one side of a matrix is split over ranks, and a rank's share into parts.

The shares are those of `torch.chunk` and of DTensor's `Shard`: all as long as the first, the last
ones shorter, or empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemmkit.errors import UsageError


class Span(NamedTuple):
    """Rows or columns from `start` to below `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many there are."""
        return self.stop - self.start


def shares(size: int, ranks: int) -> tuple[Span, ...]:
    """What each rank has of a side of `size` elements.

    Raises:
        UsageError: there is no rank.
    """
    if ranks < 1:
        raise UsageError(f"ranks = {ranks}: a side is split over 1 rank or more")
    each = -(-size // ranks)
    return tuple(
        Span(min(rank * each, size), min((rank + 1) * each, size)) for rank in range(ranks)
    )


def consecutive(sizes: Sequence[int]) -> tuple[Span, ...]:
    """Spans of these sizes, one after the other."""
    found, start = [], 0
    for size in sizes:
        found.append(Span(start, start + size))
        start += size
    return tuple(found)


def parts_of(span: Span, count: int, multiple: int = 1) -> tuple[Span, ...]:
    """A span in at most `count` parts, none of them empty, all but the last whole multiples.

    A part of a multiple of the tile's rows leaves no partial tiles inside the span.
    """
    each = -(-span.size // max(count, 1))
    each = max(-(-each // multiple) * multiple, 1)
    return tuple(
        Span(start, min(start + each, span.stop)) for start in range(span.start, span.stop, each)
    )
