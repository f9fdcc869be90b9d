"""`Expiries`: which waits for mbarriers expire in vain, and which get somewhere."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

# If all warps of a block wait, the time limit of every `try_wait` expires. After so many times in
# which each came back to the same instruction for the same phases, the block is deadlocked.
PATIENCE = 20


class Expiries:
    """Those of one block, or cluster.

    The same waits count where they come back at once, and where they come back after others while
    shared memory stays as it is: a loop may ask for several mbarriers in turn.
    """

    def __init__(self) -> None:
        self._last: object = None
        self._in_a_row = 0
        self._shared = b""
        self._met: Counter[str] = Counter()

    def in_vain(self, waits: object, shared: Iterable[NDArray[np.uint8]]) -> bool:
        """Whether it is of no use to let waits expire once more.

        Args:
            waits: who waits, at which instructions, for what.
            shared: the shared memory of all blocks concerned.
        """
        self._in_a_row = self._in_a_row + 1 if waits == self._last else 0
        self._last = waits
        content = hashlib.blake2b()
        for each in shared:
            content.update(each.data)
        if (digest := content.digest()) != self._shared:
            self._shared = digest
            self._met.clear()
        told = repr(waits)
        self._met[told] += 1
        return self._in_a_row >= PATIENCE or self._met[told] > PATIENCE
