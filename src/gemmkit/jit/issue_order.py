"""How long one warp alone takes for machine code, whose instructions issue in order.

ptxas writes into each instruction how many cycles the next one waits, which of six scoreboards it
waits for, and which it holds until its result is there or its operands are read. The encoding is
that of compute capability 7.0 and later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_OPCODE_MASK = 0xFFF
_SHARED_LOADS = frozenset([0x984, 0x83B])
_GLOBAL_LOADS = frozenset([0x381, 0x981])
_BARRIER = 0xB1D
_SCOREBOARDS = 6
_NO_SCOREBOARD = 7
# Cycles until operands of an access are read, and until another unit's result is there.
_OPERANDS_READ, _OTHER_RESULT = 12, 20
# Turns until the loop is in its steady state, and turns that are measured then.
_FIRST_TURNS, _TURNS = 2, 4


@dataclass(frozen=True, slots=True)
class Latencies:
    """Cycles of a load from shared and from global memory, and of a barrier."""

    shared: float
    memory: float
    barrier: float


@dataclass(frozen=True, slots=True)
class LoadStall:
    """Cycles per turn in which a warp waits for global loads, and cycles from the first of these
    loads to the end of the wait."""

    cycles: float
    lead: float


@dataclass(slots=True)
class _Issue:
    """One warp's time, when each scoreboard is free, and waits for global loads.

    `fetching` says which scoreboards were last held by a global load; `first_load` is the issue
    of the first load since the last such wait, which ended at `stall_end` and began `lead` after
    its own first load.
    """

    latencies: Latencies
    time: float = 0.0
    ready: list[float] = field(default_factory=lambda: [0.0] * _SCOREBOARDS)
    fetching: list[bool] = field(default_factory=lambda: [False] * _SCOREBOARDS)
    stalled: float = 0.0
    first_load: float | None = None
    awaited_load: float = 0.0
    stall_end: float = 0.0

    def run(self, words: Sequence[int]) -> None:
        """Issue these instructions."""
        for word in words:
            opcode, awaited = word & _OPCODE_MASK, word >> 116 & 0x3F
            for scoreboard in range(_SCOREBOARDS):
                if awaited >> scoreboard & 1 and self.ready[scoreboard] > self.time:
                    if self.fetching[scoreboard]:
                        self._stall(self.ready[scoreboard])
                    self.time = self.ready[scoreboard]
            if opcode in _GLOBAL_LOADS and self.first_load is None:
                self.first_load = self.time
            results = _result(opcode, self.latencies)
            for shift, cycles in ((110, results), (113, _OPERANDS_READ)):
                held = word >> shift & 7
                if held != _NO_SCOREBOARD and held < _SCOREBOARDS:
                    if self.time + cycles >= self.ready[held]:
                        self.fetching[held] = shift == 110 and opcode in _GLOBAL_LOADS
                    self.ready[held] = max(self.ready[held], self.time + cycles)
            self.time += max(word >> 105 & 0xF, 1)
            if opcode == _BARRIER:
                self.time += self.latencies.barrier

    def _stall(self, end: float) -> None:
        self.stalled += end - self.time
        self.stall_end = end
        if self.first_load is not None:
            self.awaited_load, self.first_load = self.first_load, None


def turn_cycles(words: Sequence[int], latencies: Latencies) -> float:
    """Cycles of one turn of a loop, 128-bit instructions, in the steady state."""
    issue, start, _ = _steady(words, latencies)
    return (issue.time - start) / _TURNS


def load_stall(words: Sequence[int], latencies: Latencies) -> LoadStall:
    """How long one turn of a loop waits for global loads, in the steady state."""
    issue, _, stalled = _steady(words, latencies)
    return LoadStall((issue.stalled - stalled) / _TURNS, issue.stall_end - issue.awaited_load)


def _steady(words: Sequence[int], latencies: Latencies) -> tuple[_Issue, float, float]:
    """A loop after several turns; time and cycles stalled when the first ones had passed."""
    issue, start, stalled = _Issue(latencies), 0.0, 0.0
    for turn in range(_FIRST_TURNS + _TURNS):
        if turn == _FIRST_TURNS:
            start, stalled = issue.time, issue.stalled
        issue.run(words)
    return issue, start, stalled


def barriers(words: Sequence[int]) -> int:
    """Barriers of a block among these instructions."""
    return sum(word & _OPCODE_MASK == _BARRIER for word in words)


def _result(opcode: int, latencies: Latencies) -> float:
    if opcode in _SHARED_LOADS:
        return latencies.shared
    return latencies.memory if opcode in _GLOBAL_LOADS else _OTHER_RESULT
