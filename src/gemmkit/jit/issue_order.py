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


@dataclass(slots=True)
class _Issue:
    """One warp's time, and when each scoreboard is free."""

    latencies: Latencies
    time: float = 0.0
    ready: list[float] = field(default_factory=lambda: [0.0] * _SCOREBOARDS)

    def run(self, words: Sequence[int]) -> None:
        """Issue these instructions."""
        for word in words:
            opcode, awaited = word & _OPCODE_MASK, word >> 116 & 0x3F
            for scoreboard in range(_SCOREBOARDS):
                if awaited >> scoreboard & 1:
                    self.time = max(self.time, self.ready[scoreboard])
            results = _result(opcode, self.latencies)
            for shift, cycles in ((110, results), (113, _OPERANDS_READ)):
                held = word >> shift & 7
                if held != _NO_SCOREBOARD and held < _SCOREBOARDS:
                    self.ready[held] = max(self.ready[held], self.time + cycles)
            self.time += max(word >> 105 & 0xF, 1)
            if opcode == _BARRIER:
                self.time += self.latencies.barrier


def turn_cycles(words: Sequence[int], latencies: Latencies) -> float:
    """Cycles of one turn of a loop, 128-bit instructions, in the steady state."""
    issue, start = _Issue(latencies), 0.0
    for turn in range(_FIRST_TURNS + _TURNS):
        start = issue.time if turn == _FIRST_TURNS else start
        issue.run(words)
    return (issue.time - start) / _TURNS


def barriers(words: Sequence[int]) -> int:
    """Barriers of a block among these instructions."""
    return sum(word & _OPCODE_MASK == _BARRIER for word in words)


def _result(opcode: int, latencies: Latencies) -> float:
    if opcode in _SHARED_LOADS:
        return latencies.shared
    return latencies.memory if opcode in _GLOBAL_LOADS else _OTHER_RESULT
