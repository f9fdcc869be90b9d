"""`Agreement`: whether the four warps of each warpgroup execute the same instructions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.shadow_layout import EXECUTED
from gemmkit.emulator.isa.warpgroup_forms import WARPS

_IDENTITIES, _COUNT, _ROOM = (EXECUTED[name] // 8 for name in EXECUTED)
_FIRST_ROOM = 64


class Identities:
    """A number for each instruction with its operands."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, Hashable], int] = {}
        self._instructions: list[int] = []

    def of(self, number: int, operands: Hashable) -> int:
        """What tells an instruction with these operands from others."""
        found = self._of.setdefault((number, operands), len(self._instructions))
        if found == len(self._instructions):
            self._instructions.append(number)
        return found

    def instruction(self, identity: int) -> int:
        """The instruction's number."""
        return self._instructions[identity]


class Agreement:
    """What each warp of a block executed of one kind of instruction, in its order.

    Native code adds to `table`, which has a row for each warp (see `shadow_layout.EXECUTED`).
    """

    def __init__(self, warps: int, identities: Identities) -> None:
        self._identities = identities
        self.table = np.zeros((warps, len(EXECUTED)), np.int64)
        self._executed: list[NDArray[np.int64]] = [np.zeros(0, np.int64) for _ in range(warps)]

    def differs(self, warp: int, number: int, operands: Hashable) -> tuple[int, int] | None:
        """A warp executes an instruction: the instruction in its place of another warp of the
        warpgroup, and that warp, if it is another one or has other operands."""
        mine, count = self._identities.of(number, operands), self._count(warp)
        if count == len(self._executed[warp]):
            self._grow(warp)
        self._executed[warp][count] = mine
        self.table[warp, _COUNT] += 1
        first = warp // WARPS * WARPS
        for other in range(first, min(first + WARPS, len(self._executed))):
            if other != warp and self._count(other) > count:
                theirs = int(self._executed[other][count])
                if theirs != mine:
                    return self._identities.instruction(theirs), other
        return None

    def _count(self, warp: int) -> int:
        return int(self.table[warp, _COUNT])

    def _grow(self, warp: int) -> None:
        before = self._executed[warp]
        grown = np.zeros(max(2 * len(before), _FIRST_ROOM), np.int64)
        grown[: len(before)] = before
        self._executed[warp] = grown
        self.table[warp, _IDENTITIES], self.table[warp, _ROOM] = grown.ctypes.data, len(grown)

    def absences(self) -> Iterator[tuple[int, int, int]]:
        """For each warpgroup of which a warp executed fewer, in the end: the first instruction that
        it did not execute, a warp that did, and the one that did not."""
        for first in range(0, len(self._executed), WARPS):
            counts = self.table[first : first + WARPS, _COUNT]
            most, least = int(np.argmax(counts)), int(np.argmin(counts))
            if counts[most] != counts[least]:
                missed = int(self._executed[first + most][counts[least]])
                yield self._identities.instruction(missed), first + most, first + least
