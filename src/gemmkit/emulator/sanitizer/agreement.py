"""`Agreement`: whether the four warps of each warpgroup execute the same instructions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from gemmkit.emulator.isa.warpgroup_forms import WARPS


class Agreement:
    """What each warp of a block executed of one kind of instruction, in its order."""

    def __init__(self, warps: int) -> None:
        self._executed: list[list[tuple[int, Hashable]]] = [[] for _ in range(warps)]

    def differs(self, warp: int, number: int, operands: Hashable) -> tuple[int, int] | None:
        """A warp executes an instruction: the instruction in its place of another warp of the
        warpgroup, and that warp, if it is another one or has other operands."""
        mine = self._executed[warp]
        mine.append((number, operands))
        first = warp // WARPS * WARPS
        for other in range(first, min(first + WARPS, len(self._executed))):
            theirs = self._executed[other]
            if other != warp and len(theirs) >= len(mine) and theirs[len(mine) - 1] != mine[-1]:
                return theirs[len(mine) - 1][0], other
        return None

    def absences(self) -> Iterator[tuple[int, int, int]]:
        """For each warpgroup of which a warp executed fewer, in the end: the first instruction that
        it did not execute, a warp that did, and the one that did not."""
        for first in range(0, len(self._executed), WARPS):
            counts = [len(each) for each in self._executed[first : first + WARPS]]
            most, least = int(np.argmax(counts)), int(np.argmin(counts))
            if counts[most] != counts[least]:
                number = self._executed[first + most][counts[least]][0]
                yield number, first + most, first + least
