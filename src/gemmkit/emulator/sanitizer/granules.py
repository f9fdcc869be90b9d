"""`Granules`: the last accesses to each granule of shared memory, with their times."""

from __future__ import annotations

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

    def __init__(self, count: int, strong: Numbers) -> None:
        """`strong` are the instructions whose accesses do not race with each other."""
        self._count, self._strong = count, strong
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
        reads = self._reads.get(actor)
        if reads is None:
            reads = _Reads(np.zeros(self._count, np.int32), np.zeros(self._count, np.int64))
            self._reads[actor] = reads
        reads.time[where], reads.who[where] = time, who
        return self._unordered_write(actor, where, who, known)

    def write(
        self, actor: int, time: int, where: Numbers, who: Numbers, known: Clock
    ) -> Conflict | None:
        """An actor writes; returns the first access that is not ordered before."""
        found = self._unordered_write(actor, where, who, known)
        for other, reads in self._reads.items():
            if other == actor:
                continue
            late = reads.time[where] > known[other]
            if found is None and late.any():
                late = self._count_out(late, who, reads.who[where])
                index = int(late.argmax())
                if late[index]:
                    found = Conflict(index, int(reads.who[where[index]]), other, False)
            reads.time[where] = 0
        self.writer[where], self.time[where], self.who[where] = actor, time, who
        return found

    def _count_out(self, late: Flags, who: Numbers, others: Numbers) -> Flags:
        """Without pairs of accesses that do not race with each other."""
        if not len(self._strong):
            return late
        here, there = (np.isin(each >> _THREAD_BITS, self._strong) for each in (who, others))
        return late & ~(here & there)

    def _unordered_write(
        self, actor: int, where: Numbers, who: Numbers, known: Clock
    ) -> Conflict | None:
        writers = self.writer[where]
        late = (self.time[where] > known[writers]) & (writers != actor)
        if not late.any():
            return None
        late = self._count_out(late, who, self.who[where])
        if not late.any():
            return None
        index = int(late.argmax())
        return Conflict(index, int(self.who[where[index]]), int(writers[index]), True)
