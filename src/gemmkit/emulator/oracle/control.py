"""The control state of each warp: active lanes, the stack of diverged lanes, barriers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[np.bool_]
Rows = NDArray[np.intp]

RUNNING, WAITING, DONE, AT_PHASE, AT_PRODUCTS = range(5)


class Warps:
    """The control state of many warps, one row each.

    A row's active lanes (`mask`) are at basic block `block`. They wait for others of their warp at
    block `reconvergence`. The others are entries of the warp's stack: the block where they
    continue, the one where they in turn reconverge with others, and the lanes.
    """

    def __init__(self, existing: Lanes, exit_block: int) -> None:
        count = len(existing)
        self.mask = existing.copy()
        self.block = np.zeros(count, np.intp)
        self.reconvergence = np.full(count, exit_block)
        self.status = np.full(count, RUNNING)
        self._left = ~existing
        self._stacks: list[list[tuple[int, int, Lanes]]] = [[] for _ in range(count)]

    def go(self, rows: Rows, block: int) -> None:
        """The active lanes of these warps continue at a block."""
        self.block[rows] = block
        self._settle(rows[self.reconvergence[rows] == block])

    def diverge(self, row: int, taken: Lanes, target: int, fall: int, reconvergence: int) -> None:
        """Some active lanes go to `target` first, the rest to `fall`, until all reconverge."""
        active, outer = self.mask[row].copy(), int(self.reconvergence[row])
        if reconvergence != outer:
            self._stacks[row].append((reconvergence, outer, active))
        if fall != reconvergence:
            self._stacks[row].append((fall, reconvergence, active & ~taken))
        self.mask[row], self.reconvergence[row] = taken, reconvergence
        self.go(np.array([row]), target)

    def living(self) -> Lanes:
        """The lanes of each warp that have not ended."""
        living: Lanes = ~self._left & (self.status != DONE)[:, None]
        return living

    @property
    def state(self) -> bytes:
        """All that decides where warps go on."""
        arrays = (self.mask, self.block, self.reconvergence, self.status, self._left)
        stacks = [
            (block, outer, lanes.tobytes())
            for stack in self._stacks
            for block, outer, lanes in stack
        ]
        return b"".join(each.tobytes() for each in arrays) + repr(stacks).encode()

    def left_to_wait(self, row: int) -> list[int]:
        """Where lanes of a warp that wait for others of it continue."""
        waiting = ~self.mask[row] & ~self._left[row]
        return [block for block, _, lanes in self._stacks[row] if (lanes & waiting).any()]

    def ready(self, row: int) -> list[tuple[int, Lanes]]:
        """The entries of a warp's stack that can run, the lowest first: place and lanes.

        None of their lanes is among those that run or in an entry above.
        """
        above, found = self.mask[row].copy(), []
        for place, (_, _, lanes) in reversed([*enumerate(self._stacks[row])]):
            left = lanes & ~self._left[row]
            if left.any() and not (left & above).any():
                found.append((place, left))
            above |= left
        return found[::-1]

    def switch(self, row: int, place: int, block: int) -> None:
        """Run the lanes of an entry; those that ran continue at a block, before any others."""
        stack = self._stacks[row]
        ran = block, int(self.reconvergence[row]), self.mask[row].copy()
        self.block[row], self.reconvergence[row], lanes = stack.pop(place)
        self.mask[row] = lanes & ~self._left[row]
        stack.append(ran)
        self._settle(np.array([row]))

    def leave(self, rows: Rows, lanes: Lanes, block: int) -> None:
        """These lanes have ended; the others of their warps continue at a block."""
        self._left[rows] |= lanes
        self.mask[rows] &= ~lanes
        staying = self.mask[rows].any(axis=1)
        self._settle(rows[~staying])
        self.go(rows[staying], block)

    def _settle(self, rows: Rows) -> None:
        """In warps whose active lanes have reconverged or ended, run those next on the stack."""
        for row in rows.tolist():
            stack = self._stacks[row]
            while self.block[row] == self.reconvergence[row] or not self.mask[row].any():
                if not stack:
                    self.status[row] = DONE
                    break
                self.block[row], self.reconvergence[row], lanes = stack.pop()
                self.mask[row] = lanes & ~self._left[row]


@dataclass(slots=True)
class _Barrier:
    arrived: int = 0
    needed: int = 0  # warps; 0 stands for all of the block
    votes: int = 0  # of a reduction, summed over the warps
    waiting: list[int] = field(default_factory=list)


class Barriers:
    """The barriers of one block, by number. A warp that has ended counts as arrived."""

    def __init__(self, warps: int) -> None:
        self._warps = warps
        self._ended = 0
        self._barriers: defaultdict[int, _Barrier] = defaultdict(_Barrier)

    @property
    def state(self) -> str:
        """Who waits where, and for how many."""
        return repr((self._ended, sorted(self._barriers.items())))

    def arrive(
        self, number: int, needed: int, waiting: int | None, votes: int
    ) -> list[tuple[int, int]]:
        """A warp arrives, and waits there if `waiting` is its row.

        Returns the rows that may continue, each with the sum of all votes.
        """
        barrier = self._barriers[number]
        barrier.arrived += 1
        barrier.votes += votes
        barrier.needed = needed
        if waiting is not None:
            barrier.waiting.append(waiting)
        return self._opened(barrier)

    def end(self) -> list[tuple[int, int]]:
        """A warp has ended; returns the rows that may continue, as `arrive` does."""
        self._ended += 1
        return [each for barrier in self._barriers.values() for each in self._opened(barrier)]

    def _opened(self, barrier: _Barrier) -> list[tuple[int, int]]:
        arrived = barrier.arrived if barrier.needed else barrier.arrived + self._ended
        if not barrier.arrived or arrived < (barrier.needed or self._warps):
            return []
        opened = [(row, barrier.votes) for row in barrier.waiting]
        barrier.waiting, barrier.arrived, barrier.votes = [], 0, 0
        return opened
