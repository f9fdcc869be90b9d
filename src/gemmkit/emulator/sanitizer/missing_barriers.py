"""Finds the lines between which a barrier is missing, and whether one is in a later iteration.

Both accesses of a race follow the same barrier, or none. From there the control flow tells which
comes first in a thread, and whether a loop starts another iteration between the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.findings import AccessSite

# Names the source position of an instruction.
Locate = Callable[[int], AccessSite]


@dataclass(frozen=True, slots=True)
class MissingBarrier:
    """The positions of a race's two accesses relative to each other and to barriers.

    `text` names both lines and the nearest barrier. `cause` identifies what would end the race and
    is the same for all races that it would end: `no-barrier/after:FILE:LINE` with the barrier
    before both accesses, or `…/before:FILE:LINE` with the one after both, followed by
    `/next-iteration` and `/syncwarp:FILE:LINE` if `text` says so.
    """

    text: str
    cause: str
    next_iteration: bool


class MissingBarriers:
    """The analysis of one kernel; `locate` names the source position of an instruction."""

    def __init__(self, flow: ControlFlow, locate: Locate) -> None:
        self._flow, self._locate = flow, locate
        # Threads of one block meet at the same instructions again and again.
        self._of_warps = cache(self._between_warps)
        self._of_lanes = cache(self._between_lanes)
        self._reached: dict[int | None, dict[int, int]] = {}
        self._after: dict[int, frozenset[int]] = {}

    def between_warps(self, one: int, other: int, barrier: int | None) -> MissingBarrier | None:
        """The missing barrier between two instructions after a barrier, or None for the start of
        the kernel.

        None if one of them cannot be reached from there without another barrier.
        """
        return self._of_warps(one, other, barrier)

    def _between_warps(self, one: int, other: int, barrier: int | None) -> MissingBarrier | None:
        reached = self._from(barrier)
        turns = {each: reached.get(self._block_of(each)) for each in (one, other)}
        if None in turns.values():
            return None
        first, second = sorted((one, other), key=lambda each: (turns[each], each))
        missing = self._missing(first, second, barrier, anew=turns[first] != turns[second])
        own = self._warps_own(first, second, reached, next_turn=missing.next_iteration)
        if own is None:
            return missing
        site = self._locate(own)
        shown = _short(site, self._locate(first))
        advice = f"; the __syncwarp() at {shown} orders the lanes of one warp only"
        return MissingBarrier(
            missing.text + advice, f"{missing.cause}/syncwarp:{site}", missing.next_iteration
        )

    def between_lanes(self, earlier: int, later: int, barrier: int | None) -> MissingBarrier | None:
        """The missing barrier between two instructions that lanes of one warp ran in this order,
        with no barrier of the block or the warp between."""
        return self._of_lanes(earlier, later, barrier)

    def _between_lanes(
        self, earlier: int, later: int, barrier: int | None
    ) -> MissingBarrier | None:
        anew = self._path(earlier, later)
        return None if anew is None else self._missing(earlier, later, barrier, anew=anew)

    def _missing(
        self, first: int, second: int, barrier: int | None, *, anew: bool
    ) -> MissingBarrier:
        """The missing barrier from one instruction to the next; `anew`: in the next iteration of a
        loop."""
        lines = _lines(self._locate(first), self._locate(second))
        next_turn = anew or _backward(*lines)
        text = f"between {_short(*lines)} and {_short(*reversed(lines))}"
        if str(lines[0]) == str(lines[1]):
            text = f"between the two accesses on {_short(*lines)}"
        if first == second and not next_turn:
            text = f"between threads at {_short(*lines)}"
        if next_turn:
            text += " of the next iteration"
        cause = "no-barrier"
        near = self._next_barrier(second) if barrier is None else barrier
        if near is not None:
            site = self._locate(near)
            order, side = ("before", "after") if barrier is not None else ("after", "before")
            text += f"; the barrier at {_short(site, self._locate(first))} comes {order} both"
            cause += f"/{side}:{site}"
        return MissingBarrier(text, cause + "/next-iteration" * next_turn, next_turn)

    def _from(self, barrier: int | None) -> dict[int, int]:
        """The blocks that can be reached from a barrier without another one, each with the number
        of loop iterations that must start on the way."""
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
                turns = reached[number] + self._begins_anew(number, successor)
                if turns < reached.get(successor, turns + 1):
                    reached[successor] = turns
                    waiting.append(successor)
        return reached

    def _path(self, start: int, end: int) -> bool | None:
        """Whether a loop iteration starts on the way from one instruction to another; None if all
        paths have barriers."""
        blocks, first = self._flow.blocks, self._block_of(start)
        last = self._block_of(end)
        if first == last and start < end and not self._stops(start + 1, end):
            return False
        if self._stops(start + 1, blocks[first].end):
            return None
        waiting = deque(
            [
                (successor, self._begins_anew(first, successor))
                for successor in blocks[first].successors
            ]
        )
        seen = set()
        while waiting:
            number, anew = waiting.popleft()
            if number in seen or number >= len(blocks):
                continue
            seen.add(number)
            block = blocks[number]
            if number == last and not self._stops(block.start, end):
                return anew
            if not self._stops(block.start, block.end):
                # Paths within this iteration are searched before those of the next.
                for successor in block.successors:
                    if self._begins_anew(number, successor):
                        waiting.append((successor, True))
                    else:
                        waiting.appendleft((successor, anew))
        return None

    def _begins_anew(self, block: int, successor: int) -> bool:
        """Whether this edge leads from a loop's end to its beginning. Blocks are in the order of
        the text, which the compiler may have chosen differently outside of loops."""
        return successor <= block and block in self._reachable(successor)

    def leads_to(self, barrier: int, instruction: int) -> bool:
        """Whether control can reach an instruction from a barrier."""
        return self._block_of(instruction) in self._reachable(self._block_of(barrier) + 1)

    def _reachable(self, start: int) -> frozenset[int]:
        if start not in self._after:
            seen, waiting = {start}, [start]
            while waiting:
                number = waiting.pop()
                if number < len(self._flow.blocks):
                    new = set(self._flow.blocks[number].successors) - seen
                    seen |= new
                    waiting += new
            self._after[start] = frozenset(seen)
        return self._after[start]

    def _stops(self, start: int, end: int) -> bool:
        """Whether a barrier, of the block or the warp, is among these instructions."""
        body = self._flow.kernel.body
        return any(
            self._is_barrier(number) or body[number].opcode == "bar.warp.sync"
            for number in range(start, end)
        )

    def _block_of(self, instruction: int) -> int:
        blocks = self._flow.blocks
        return next(
            number for number, each in enumerate(blocks) if each.start <= instruction < each.end
        )

    def _is_barrier(self, instruction: int) -> bool:
        return self._flow.forms[instruction].operation == "barrier"

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
    ) -> int | None:
        """A `__syncwarp()` between the two instructions."""
        for number, instruction in enumerate(self._flow.kernel.body):
            if instruction.opcode != "bar.warp.sync" or self._block_of(number) not in reached:
                continue
            if first < number < second or (next_turn and not second <= number <= first):
                return number
        return None


def _lines(one: AccessSite, other: AccessSite) -> tuple[AccessSite, AccessSite]:
    """The positions in the innermost function that has both."""
    frames = [[*reversed(each.called_from), str(each)] for each in (one, other)]
    for mine, theirs in zip(*frames, strict=False):
        if mine != theirs:
            return _site(mine, one), _site(theirs, other)
    return one, other


def _site(place: str, like: AccessSite) -> AccessSite:
    file, _, line = place.rpartition(":")
    return AccessSite(file=file, line=int(line), instruction=like.instruction, thread=None)


def _backward(one: AccessSite, other: AccessSite) -> bool:
    """Whether the source goes back to an earlier line, as in an unrolled loop."""
    return one.file == other.file and other.line < one.line


def _short(site: AccessSite, like: AccessSite) -> str:
    return f"line {site.line}" if site.file == like.file else str(site)
