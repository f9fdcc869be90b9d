"""`Schedule`: an order of the warps and copies of one block, or of those of one cluster, that a run
must follow, as a line of text.

The grammar, with commas between the parts and no spaces:

    schedule  = [block ","] step {"," step} | block
    block     = "b" X "." Y "." Z                            the block, or any of its cluster;
                                                             b0.0.0 if it is left out
    step      = "w" range ["r" range] "@" (place | "end")    these warps run until there, in turn
              | "c" COPY "t" THREAD ["r" RANK]               a bulk copy takes effect
    range     = NUMBER ["-" NUMBER]
    place     = FILE ":" LINE ["x" TIMES] ["+"]

What follows `r` is the block's rank in its cluster, 0 if it is left out. A place is the warp's
first synchronizing or asynchronous instruction at a line, or the one executed there for the
TIMES-th time; the warp stops before it or, with `+`, after it or waiting in it. COPY counts the
bulk copies that a thread issues, from 1. In FILE all but letters, digits and `/._-` is
percent-encoded. The text needs no quotes in a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from gemmkit.emulator.clusters import Dim3, cluster_of
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.errors import DeviceError, UsageError

_NUMBER = r"(0|[1-9][0-9]{0,8})"
_COUNT = r"([1-9][0-9]{0,8})"
_BLOCK = re.compile(rf"b{_NUMBER}\.{_NUMBER}\.{_NUMBER}")
# More than a block has warps, or a cluster blocks.
_LONGEST = 64
_RANGE = rf"{_NUMBER}(?:-{_NUMBER})?"
_WARP = re.compile(
    rf"w{_RANGE}(?:r{_RANGE})?@(?:(end)|([A-Za-z0-9/._%~-]+):{_COUNT}(?:x{_COUNT})?(\+)?)"
)
_COPY = re.compile(rf"c{_COUNT}t{_NUMBER}(?:r{_NUMBER})?")


@dataclass(frozen=True, slots=True)
class Place:
    """A synchronizing or asynchronous instruction in the course of a warp: the `times`-th that it
    executes at a source line. `through`: up to where it has been executed, or waits."""

    file: str
    line: int
    times: int = 1
    through: bool = False

    def __str__(self) -> str:
        times = f"x{self.times}" if self.times > 1 else ""
        return f"{quote(self.file, safe='/')}:{self.line}{times}{'+' * self.through}"


@dataclass(frozen=True, slots=True)
class Run:
    """A warp runs up to a place, or to its end if that is None."""

    warp: int
    until: Place | None
    rank: int = 0

    def __str__(self) -> str:
        return f"w{self.warp}{_rank(self.rank)}@{'end' if self.until is None else self.until}"


@dataclass(frozen=True, slots=True)
class Landing:
    """The `copy`-th bulk copy that a thread issues, counted from 1, takes effect."""

    copy: int
    thread: int
    rank: int = 0

    def __str__(self) -> str:
        return f"c{self.copy}t{self.thread}{_rank(self.rank)}"


Step = Run | Landing


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps of one block, or of its cluster, in order; what they leave out runs afterwards in the
    default order.

    A copy that no step names takes effect when it is issued.
    """

    block: Dim3
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        x, y, z = self.block
        return ",".join([f"b{x}.{y}.{z}", *_parts(self.steps)])

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read the text form.

        Raises:
            UsageError: it does not follow the grammar.
        """
        parts = text.split(",")
        block, first = (0, 0, 0), _BLOCK.fullmatch(parts[0])
        if first is not None:
            x, y, z = map(int, first.groups())
            block, parts = (x, y, z), parts[1:]
        steps = tuple(step for part in parts for step in _steps(part, text))
        copies = [each for each in steps if isinstance(each, Landing)]
        for number, copy in enumerate(copies):
            if copy in copies[:number]:
                raise UsageError(f"schedule: copy '{copy}' takes effect twice")
        return cls(block, steps)


@dataclass(slots=True)
class _Ranges:
    """Warps of some ranks that run up to the same place, one after the other."""

    until: Place | None
    warps: range
    ranks: range

    def __str__(self) -> str:
        ranks = "" if self.ranks == range(1) else f"r{_numbers(self.ranks)}"
        until = "end" if self.until is None else self.until
        return f"w{_numbers(self.warps)}{ranks}@{until}"

    def joins(self, other: _Ranges) -> bool:
        """Take over the following warps of the same rank, or the same warps of the next ranks."""
        if self.until != other.until:
            return False
        if self.ranks == other.ranks and len(self.ranks) == 1:
            if self.warps.stop == other.warps.start:
                self.warps = range(self.warps.start, other.warps.stop)
                return True
        elif self.warps == other.warps and self.ranks.stop == other.ranks.start:
            self.ranks = range(self.ranks.start, other.ranks.stop)
            return True
        return False


def _numbers(numbers: range) -> str:
    return f"{numbers[0]}" + (f"-{numbers[-1]}" if len(numbers) > 1 else "")


def _parts(steps: Iterable[Step]) -> list[str]:
    """The steps as text, as few parts as ranges of warps, and then of ranks, allow."""
    parts: list[_Ranges | Landing] = [
        _Ranges(each.until, range(each.warp, each.warp + 1), range(each.rank, each.rank + 1))
        if isinstance(each, Run)
        else each
        for each in steps
    ]
    for of_one_rank in (True, False):
        joined: list[_Ranges | Landing] = []
        for part in parts:
            last = joined[-1] if joined else None
            if (
                isinstance(last, _Ranges)
                and isinstance(part, _Ranges)
                and (last.ranks == part.ranks) == of_one_rank
                and last.joins(part)
            ):
                continue
            joined.append(part)
        parts = joined
    return list(map(str, parts))


def _steps(part: str, text: str) -> list[Step]:
    if found := _WARP.fullmatch(part):
        *ranges, end, file, line, times, through = found.groups()
        place = None
        if not end:
            place = Place(_file(file, part), int(line), int(times or 1), bool(through))
        warps, ranks = (_range(*ranges[each : each + 2], part=part) for each in (0, 2))
        return [Run(warp, place, rank) for rank in ranks for warp in warps]
    if found := _COPY.fullmatch(part):
        copy, thread, rank = found.groups()
        return [Landing(int(copy), int(thread), int(rank or 0))]
    if not part:
        raise UsageError(f"schedule '{text}': a step is empty")
    raise UsageError(
        f"schedule: '{part}' is not a step; steps are such as w4@kernel.cu:50x2+ (warp 4 runs "
        f"through its second synchronizing instruction at line 50), w0@end, and c1t128 (the first "
        f"copy of thread 128 takes effect)"
    )


def _range(first: str | None, last: str | None, *, part: str) -> range:
    start = int(first or 0)
    numbers = range(start, int(last or start) + 1)
    if not 0 < len(numbers) <= _LONGEST:
        raise UsageError(f"schedule: in '{part}' a range is reversed or too long")
    return numbers


def _file(encoded: str, part: str) -> str:
    found = unquote(encoded, errors="strict") if _is_utf8(encoded) else ""
    if quote(found, safe="/") != encoded:
        raise UsageError(f"schedule: the file in '{part}' is not percent-encoded as it should be")
    return found


def _is_utf8(encoded: str) -> bool:
    try:
        unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


def _rank(rank: int) -> str:
    return f"r{rank}" if rank else ""


def scheduled_blocks(schedule: Schedule, request: LaunchRequest) -> list[int]:
    """The numbers of the blocks that a schedule is for, x fastest: one or, by rank, those of a
    cluster.

    Raises:
        DeviceError: the grid has no such block.
    """
    block, grid = schedule.block, request.grid
    if any(number >= extent for number, extent in zip(block, grid, strict=True)):
        raise DeviceError(f"the schedule is for block {block}; the grid is {grid}")
    return request.cluster_members(cluster_of(grid, request.cluster_shape, block))
