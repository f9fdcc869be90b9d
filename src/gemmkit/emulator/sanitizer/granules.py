"""`Granules`: the last accesses to each granule of shared memory, with their times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.sanitizer.clocks import Clock

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_THREAD_BITS = 16


def party(number: int, thread: int) -> int:
    """An instruction and the thread that executed it, as one number."""
    return number << _THREAD_BITS | thread


def instruction_of(who: int) -> int:
    """The instruction of a party."""
    return who >> _THREAD_BITS


def thread_of(who: int) -> int:
    """The thread of a party."""
    return who & (1 << _THREAD_BITS) - 1


@dataclass(slots=True)
class _Reads:
    """The last read of each granule by one actor."""

    time: NDArray[np.int32]
    who: Numbers


@dataclass(frozen=True, slots=True)
class Conflict:
    """An access that is not ordered after an earlier one: its index, and the earlier party.

    `wrote` says what the earlier one did, `actor` who it was.
    """

    index: int
    other: int
    actor: int
    wrote: bool


class Granules:
    """The last write of each granule, and the last read by each actor since then."""

    def __init__(self, count: int, strong: Numbers, actors: int) -> None:
        """`strong` are the instructions whose accesses do not race with each other."""
        self._count, self._strong = count, strong
        # Native code finds the arrays of an actor's reads by these, and the actors that have some.
        self.read_times = np.zeros(actors, np.int64)
        self.read_whos = np.zeros(actors, np.int64)
        self.readers = np.zeros(actors, np.int64)
        self.writer = np.zeros(count, np.int16)
        self.time = np.zeros(count, np.int32)
        self.who = np.zeros(count, np.int64)
        self._reads: dict[int, _Reads] = {}

    def read(
        self, actor: int, time: int, where: Numbers, who: Numbers, known: Clock
    ) -> Conflict | None:
        """An actor reads; `known` has, by actor, the latest time that is ordered before.

        Returns the first write that is not.
        """
        reads = self.reads_of(actor)
        part = _part_of(where)
        reads.time[part], reads.who[part] = time, who
        return self._unordered_write(actor, part, who, known)

    def reads_of(self, actor: int) -> _Reads:
        """The last reads of an actor."""
        reads = self._reads.get(actor)
        if reads is None:
            reads = _Reads(np.zeros(self._count, np.int32), np.zeros(self._count, np.int64))
            self.readers[len(self._reads)] = actor
            self._reads[actor] = reads
            self.read_times[actor] = reads.time.ctypes.data
            self.read_whos[actor] = reads.who.ctypes.data
        return reads

    def written(self, where: Numbers) -> tuple[NDArray[np.int16], Clock, Numbers]:
        """The last write of some granules: the actor, its time, and the party."""
        part = _part_of(where)
        return self.writer[part].copy(), self.time[part].copy(), self.who[part].copy()

    def is_unread(self, granule: int, actor: int, time: int) -> bool:
        """Whether an actor wrote a granule before a time of its own, and nobody has read it since;
        False for one that does not exist."""
        if not 0 <= granule < self._count or self.writer[granule] != actor:
            return False
        if not 0 < self.time[granule] < time:
            return False
        return not any(reads.time[granule] for reads in self._reads.values())

    def any_unread(self, granules: Numbers, actor: int, time: int) -> bool:
        """The same for any of some granules, which exist."""
        unread = self.writer[granules] == actor
        if not unread.any():
            return False
        times = self.time[granules]
        unread &= (times > 0) & (times < time)
        for reads in self._reads.values():
            unread &= reads.time[granules] == 0
        return bool(unread.any())

    @property
    def reading(self) -> int:
        """How many actors have read."""
        return len(self._reads)

    def write(
        self, actor: int, time: int, where: Numbers, who: Numbers, known: Clock
    ) -> Conflict | None:
        """An actor writes; returns the first access that is not ordered before."""
        part = _part_of(where)
        found = self._unordered_write(actor, part, who, known)
        others = [(other, reads) for other, reads in self._reads.items() if other != actor]
        for other, reads in others:
            if found is None:
                found = self._unordered_read(other, reads, part, who, known)
        self._enter_write(actor, time, part, who, [reads for _, reads in others])
        return found

    def read_in_order(
        self, actor: int, time: int, where: Numbers, who: Numbers, known: Clock
    ) -> bool:
        """An actor reads, if all writes are ordered before; else nothing is recorded."""
        part = _part_of(where)
        if self._unordered_write(actor, part, who, known) is not None:
            return False
        reads = self.reads_of(actor)
        reads.time[part], reads.who[part] = time, who
        return True

    def write_in_order(
        self, actor: int, time: int, where: Numbers | slice, who: Numbers, known: Clock
    ) -> bool:
        """An actor writes, if all accesses are ordered before; else nothing is recorded."""
        part = where if isinstance(where, slice) else _part_of(where)
        if self._unordered_write(actor, part, who, known) is not None:
            return False
        read = []
        for other, reads in self._reads.items():
            last = int(reads.time[part].max()) if other != actor else 0
            late = last > known[other]
            if late and self._unordered_read(other, reads, part, who, known) is not None:
                return False
            if last:
                read.append(reads)
        self._enter_write(actor, time, part, who, read)
        return True

    def _enter_write(
        self,
        actor: int,
        time: int,
        part: Numbers | slice,
        who: Numbers,
        read: Iterable[_Reads],
    ) -> None:
        for reads in read:
            reads.time[part] = 0
        self.writer[part], self.time[part], self.who[part] = actor, time, who

    def _unordered_read(
        self, other: int, reads: _Reads, part: Numbers | slice, who: Numbers, known: Clock
    ) -> Conflict | None:
        """The first read by another actor that is not ordered before a write."""
        late = reads.time[part] > known[other]
        index = self._first(late, who, reads.who[part])
        return None if index is None else Conflict(index, int(reads.who[part][index]), other, False)

    def _first(self, late: Flags, who: Numbers, others: Numbers) -> int | None:
        """The first of some accesses, apart from those that do not race with the other one."""
        if not late.any():
            return None
        index = int(late.argmax())
        if not self._both_strong(int(who[index]), int(others[index])):
            return index
        here, there = (np.isin(each >> _THREAD_BITS, self._strong) for each in (who, others))
        racing = late & ~(here & there)
        index = int(racing.argmax())
        return index if racing[index] else None

    def _both_strong(self, one: int, other: int) -> bool:
        return instruction_of(one) in self._strong and instruction_of(other) in self._strong

    def between(
        self, where: Numbers, who: Numbers, known: Clock, learned: Clock, *, writes: bool
    ) -> Conflict | None:
        """The first access in conflict with one, a write or not, that is ordered before by the
        second of two clocks, and not by the first."""
        writers, times = self.writer[where], self.time[where]
        late = (known[writers] < times) & (times <= learned[writers])
        index = self._first(late, who, self.who[where])
        if index is not None:
            return Conflict(index, int(self.who[where][index]), int(writers[index]), True)
        for other, reads in self._reads.items() if writes else ():
            times = reads.time[where]
            late = (known[other] < times) & (times <= learned[other])
            index = self._first(late, who, reads.who[where])
            if index is not None:
                return Conflict(index, int(reads.who[where][index]), other, False)
        return None

    def _unordered_write(
        self, actor: int, part: Numbers | slice, who: Numbers, known: Clock
    ) -> Conflict | None:
        writers = self.writer[part]
        late = (self.time[part] > known[writers]) & (writers != actor)
        index = self._first(late, who, self.who[part])
        if index is None:
            return None
        return Conflict(index, int(self.who[part][index]), int(writers[index]), True)


def _part_of(where: Numbers) -> Numbers | slice:
    """The same granules as a slice if they follow each other, which is much faster."""
    count = len(where)
    if count > 1 and where[-1] - where[0] == count - 1 and (where[1:] > where[:-1]).all():
        return slice(int(where[0]), int(where[-1]) + 1)
    return where
