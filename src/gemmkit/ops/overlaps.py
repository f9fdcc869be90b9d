"""Where many arrays lie: in rows or columns, and whether one shares memory with another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gemmkit.ops.operands import Operand
from gemmkit.ops.request import share_memory

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Extents:
    """Where arrays of up to two dimensions lie.

    `places` has a row for each array: its address, the bytes of an element, sizes, and strides in
    bytes. `members` may be left out where only numbers are asked for.
    """

    members: Sequence[Operand]
    places: Numbers

    @classmethod
    def of(cls, members: Sequence[Operand]) -> Extents:
        """Those of arrays, vectors being one row, and numbers one of one element."""
        rows = [
            (
                each.address,
                each.item_bytes,
                *(1,) * (2 - len(each.view.shape)),
                *each.view.shape,
                *(0,) * (2 - len(each.view.shape)),
                *each.byte_strides,
            )
            for each in members
        ]
        return cls(members, np.array(rows, np.int64).reshape(-1, 6))

    @cached_property
    def start(self) -> Numbers:
        """The address of the first byte of each."""
        return self._ends[0]

    @cached_property
    def end(self) -> Numbers:
        """That of the byte after the last: of an array without elements, of the first."""
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[Numbers, Numbers]:
        address, item, lines, length, down, across = self.places.T
        steps = [(lines - 1) * down, (length - 1) * across]
        some = (lines > 0) & (length > 0)
        return (
            address + some * sum(np.minimum(each, 0) for each in steps),
            address + some * (sum(np.maximum(each, 0) for each in steps) + item),
        )

    @cached_property
    def pitch(self) -> Numbers:
        """Bytes from one row to the next, 0 where elements do not lie in rows."""
        _, item, _, length, down, across = self.places.T
        return np.where(((across == item) | (length == 1)) & (down > 0), down, 0)

    @cached_property
    def width(self) -> Numbers:
        """Bytes of a row."""
        found: Numbers = self.places[:, 3] * self.places[:, 1]
        return found

    def some(self, numbers: NDArray[np.intp]) -> Extents:
        """Those of the arrays of these numbers."""
        members = [self.members[each] for each in numbers.tolist()] if self.members else ()
        return Extents(members, self.places[numbers])

    @property
    def in_rows(self) -> NDArray[np.bool_]:
        """Which matrices lie row by row, each row contiguous and none over another."""
        return _in_lines(*self.places.T[1:])

    @property
    def in_columns(self) -> NDArray[np.bool_]:
        """Which lie so column by column."""
        _, item, lines, length, down, across = self.places.T
        return _in_lines(item, length, lines, across, down)

    def leading(self, *, columns: bool = False) -> Numbers:
        """Elements from a row to the next, or from a column, of matrices that lie so."""
        _, item, lines, length, down, across = self.places.T
        if columns:
            lines, length, down = length, lines, across
        least = np.maximum(length, 1)
        found: Numbers = np.where((lines > 1) & (length > 0), down // item, least)
        return found

    def same_as(self, other: Extents) -> NDArray[np.bool_]:
        """Which arrays have their elements where those of the same number have them."""
        same: NDArray[np.bool_] = (self.places == other.places).all(axis=1)
        return same


def _in_lines(
    item: Numbers, lines: Numbers, length: Numbers, down: Numbers, across: Numbers
) -> NDArray[np.bool_]:
    whole = (length <= 1) | (across == item)
    apart = (lines <= 1) | (down >= length * item)
    found: NDArray[np.bool_] = (whole & apart) | (lines == 0) | (length == 0)
    return found


def first_overlap(
    written: Extents, others: Extents, in_place: NDArray[np.bool_] | None = None
) -> tuple[int, int] | None:
    """The numbers of a written array and of another that have an element in common, if any have.

    `others` may be `written` itself: of a pair of different ones then. Where `in_place` is true,
    the two arrays of that number may be one.
    """
    own = others is written
    for number, other in _candidates(written, others, own=own):
        if own and number >= other:
            continue
        if in_place is not None and number == other and in_place[number]:
            continue
        if share_memory(written.members[number], others.members[other]):
            return number, other
    return None


def _candidates(written: Extents, others: Extents, *, own: bool) -> Iterator[tuple[int, int]]:
    """Pairs that lie in the same stretch of memory, but for columns of one matrix side by side."""
    order = np.argsort(others.start, kind="stable")
    starts = others.start[order]
    # Whatever stands before a place in this order ends before that.
    ends = np.maximum.accumulate(others.end[order])
    low = np.searchsorted(ends, written.start, "right")
    high = np.searchsorted(starts, written.end, "left")
    # Each of the written ones finds itself, too.
    for number in np.flatnonzero(high - low > own).tolist():
        near = order[low[number] : high[number]]
        inside = others.end[near] > np.maximum(written.start[number], others.start[near])
        near = near[inside]
        for other in near[~_side_by_side(written, number, others, near)].tolist():
            yield number, other


def _side_by_side(one: Extents, number: int, others: Extents, near: Numbers) -> NDArray[np.bool_]:
    """Which of some matrices have the row pitch of one, and columns that it has not."""
    pitch = one.pitch[number]
    if not pitch:
        return np.zeros(near.size, bool)
    # Bytes from the first column of one to that of the other, in a row of their common pitch.
    apart = (others.start[near] - one.start[number]) % pitch
    outside = (apart >= one.width[number]) & (apart + others.width[near] <= pitch)
    same: NDArray[np.bool_] = outside & (others.pitch[near] == pitch)
    return same
