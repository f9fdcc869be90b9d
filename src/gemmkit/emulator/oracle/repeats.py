"""`Repeats`: finds warps of the oracle that poll memory for what nothing changes.

The oracle is deterministic: if all warps are as they were before, and all memory is, they do the
same again. Of the registers those are compared on which depends what the code that has run since
does next. The engine comes to the same verdict: see `machine.stalls`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from gemmkit.emulator.codegen.polls import Polls
from gemmkit.emulator.oracle.chunk import Chunk
from gemmkit.emulator.oracle.control import DONE, RUNNING
from gemmkit.emulator.ptx.module import Register
from gemmkit.errors import DeviceError

# So often a warp asks at one place before states are compared, and so many of them are kept.
_PATIENCE, _MOST_STATES = 64, 4096


class PolledInVain(DeviceError):
    """All warps that run poll, or wait, for what none of them changes."""


class Repeats:
    """Those of one chunk, whose warps run one at a time.

    Args:
        polls: which code polls.
        chunk: the blocks.
        memory: tells what global memory holds.
        more: whether other blocks run once these have ended.

    Attributes:
        alone: whether the warp that runs repeats what it does while the others stand still.
        together: whether all do, so that none will ever do anything else.
    """

    def __init__(
        self, polls: Polls, chunk: Chunk, memory: Callable[[], bytes], *, more: bool
    ) -> None:
        self._polls, self._chunk, self._memory, self._more = polls, chunk, memory, more
        self.alone = self.together = False
        # By warp, the basic block in which it asked last; by warp and block, how often it did.
        self._asks_at: dict[int, int] = {}
        self._asked: Counter[tuple[int, int]] = Counter()
        # The warp that runs, and the number of its turn.
        self._row = self._turn = -1
        # What memory holds, the blocks that have run since it changed, the registers that matter to
        # them, and each state since then with the turn in which it was met first.
        self._held = b""
        self._ran = np.zeros(len(polls.asks), np.bool_)
        self._decisive: frozenset[Register] = frozenset()
        self._states: dict[bytes, int] = {}

    def ran(self, row: int, block: int, turns: Sequence[int]) -> None:
        """A warp has run a basic block; `turns` says which warps are next."""
        self.alone = self.together = False
        self._turn += row != self._row
        self._row = row
        if not self._ran[block]:
            self._ran[block] = True
            self._decisive = self._polls.decides(self._ran)
            self._states.clear()
        if not self._polls.asks[block]:
            return
        self._asks_at[row] = block
        self._asked[row, block] += 1
        if self._asked[row, block] <= _PATIENCE:
            return
        held = self._memory()
        if held != self._held or len(self._states) == _MOST_STATES:
            self._held = held
            self._ran[:] = False
            self._states.clear()
            return
        state = self._state(turns)
        first = self._states.get(state)
        if first is None:
            self._states[state] = self._turn
        elif first == self._turn:
            self.alone = True
            self._turn += 1
        else:
            self.together = not self._polls.heeds_time(self._ran)

    def expired(self) -> None:
        """Waits for mbarriers have expired."""
        self._states.clear()

    def _state(self, turns: Sequence[int]) -> bytes:
        """A digest of what warps do next."""
        chunk, digest = self._chunk, hashlib.blake2b(self._held)
        for space in ("shared", "local"):
            digest.update(chunk.spaces[space].held.data)
        digest.update(repr((self._row, turns, [each.state for each in chunk.barriers])).encode())
        digest.update(chunk.warps.state)
        for register in sorted(self._decisive, key=lambda each: each.name):
            digest.update(chunk.register(register).tobytes())
        return digest.digest()

    def asks(self) -> dict[int, int]:
        """By warp that has not ended, the basic block in which it asked last."""
        status = self._chunk.warps.status
        return {row: block for row, block in self._asks_at.items() if status[row] == RUNNING}

    def might_end(self) -> bool:
        """Whether what does not run meanwhile might change something: lanes that wait for others of
        their warp, or blocks that have not begun."""
        if self._more and (self._ran & self._polls.asks_others).any():
            return True
        warps = self._chunk.warps
        return any(
            not self._polls.waits_at(block)
            for row in np.flatnonzero(warps.status != DONE).tolist()
            for block in warps.left_to_wait(row)
        )
