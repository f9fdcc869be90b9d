"""Says between which lines a barrier is missing, and whether one of them is of a later iteration.

Both accesses of a race lie behind the same barrier, or behind none. From there the control flow
tells which comes first in a thread, and whether a loop begins anew between the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.record import AccessSite

# Names the place of an instruction.
Locate = Callable[[int], AccessSite]


@dataclass(frozen=True, slots=True)
class Gap:
    """Where two accesses of a race stand to each other.

    `text` names both lines and the barriers around; `cause` is the same for all races that one
    barrier between would end. `later` is the instruction that comes in the next iteration, if one
    does.
    """

    text: str
    cause: str
    later: int | None = None


class Gaps:
    """Of one kernel; `locate` names the place of an instruction."""

    def __init__(self, flow: ControlFlow, locate: Locate) -> None:
        self._flow, self._locate = flow, locate
        self._reached: dict[int | None, dict[int, int]] = {}

    def between(
        self, one: int, other: int, barrier: int | None, *, within_warp: bool = False
    ) -> Gap | None:
        """The gap between two instructions after a barrier, or None for the start of the kernel.

        Nothing is said where one of them cannot be reached from there without another barrier.
        """
        reached = self._from(barrier)
        turns = {each: reached.get(self._block_of(each)) for each in (one, other)}
        if None in turns.values():
            return None
        first, second = sorted((one, other), key=lambda each: (turns[each], each))
        lines = _lines(self._locate(first), self._locate(second))
        next_turn = turns[first] != turns[second] or _backward(*lines)
        text = f"between {_short(*lines)} and {_short(*reversed(lines))}"
        if first == second and not next_turn:
            text = f"between threads at {_short(*lines)}"
        if next_turn:
            text += " of the next iteration"
        around = self._around(barrier, first, second)
        own = self._warps_own(first, second, reached, next_turn=next_turn)
        if own and not within_warp:
            around += f"; the __syncwarp() at {own} orders the lanes of one warp only"
        cause = f"{self._line(barrier)}{around}{next_turn}"
        return Gap(text + around, cause, second if next_turn else None)

    def _from(self, barrier: int | None) -> dict[int, int]:
        """The blocks that can be reached from a barrier without another one, each with how often a
        loop must begin anew on the way."""
        if barrier not in self._reached:
            self._reached[barrier] = self._search(barrier)
        return self._reached[barrier]

    def _search(self, barrier: int | None) -> dict[int, int]:
        blocks = self._flow.blocks
        start = 0 if barrier is None else self._block_of(barrier) + 1
        reached = {start: 0}
        waiting = deque([start])
        while waiting:
            number = waiting.popleft()
            if number >= len(blocks) or self._is_barrier(blocks[number].end - 1):
                continue
            for successor in blocks[number].successors:
                turns = reached[number] + (successor <= number)
                if turns < reached.get(successor, turns + 1):
                    reached[successor] = turns
                    waiting.append(successor)
        return reached

    def _block_of(self, instruction: int) -> int:
        blocks = self._flow.blocks
        return next(
            number
            for number, each in enumerate(blocks)
            if each.start <= instruction < each.end
        )

    def _is_barrier(self, instruction: int) -> bool:
        return self._flow.forms[instruction].operation == "barrier"

    def _line(self, instruction: int | None) -> str:
        return str(self._locate(instruction)) if instruction is not None else ""

    def _around(self, barrier: int | None, first: int, second: int) -> str:
        """The barrier before both, or the one behind both."""
        site = self._locate(first)
        if barrier is not None:
            return f"; the barrier at {_short(self._locate(barrier), site)} comes before both"
        behind = self._next_barrier(second)
        if behind is None:
            return ""
        return f"; the barrier at {_short(self._locate(behind), site)} comes after both"

    def _next_barrier(self, instruction: int) -> int | None:
        blocks = self._flow.blocks
        seen, waiting = set(), deque([self._block_of(instruction)])
        while waiting:
            number = waiting.popleft()
            if number in seen or number >= len(blocks):
                continue
            seen.add(number)
            if self._is_barrier(blocks[number].end - 1):
                return blocks[number].end - 1
            waiting += blocks[number].successors
        return None

    def _warps_own(
        self, first: int, second: int, reached: dict[int, int], *, next_turn: bool
    ) -> str:
        """The place of a `__syncwarp()` that stands between."""
        for number, instruction in enumerate(self._flow.kernel.body):
            if instruction.opcode != "bar.warp.sync" or self._block_of(number) not in reached:
                continue
            if first < number < second or (next_turn and not second <= number <= first):
                return _short(self._locate(number), self._locate(first))
        return ""


def _lines(one: AccessSite, other: AccessSite) -> tuple[AccessSite, AccessSite]:
    """The places as the innermost function shows them that has both."""
    frames = [[*reversed(each.called_from), str(each)] for each in (one, other)]
    for mine, theirs in zip(*frames, strict=False):
        if mine != theirs:
            return _site(mine, one), _site(theirs, other)
    return one, other


def _site(place: str, like: AccessSite) -> AccessSite:
    file, _, line = place.rpartition(":")
    return AccessSite(file=file, line=int(line), instruction=like.instruction, thread=None)


def _backward(one: AccessSite, other: AccessSite) -> bool:
    """Whether the source comes back to an earlier line, as an unrolled loop does."""
    return one.file == other.file and other.line < one.line


def _short(site: AccessSite, like: AccessSite) -> str:
    return f"line {site.line}" if site.file == like.file else str(site)
