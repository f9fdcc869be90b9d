"""The source line of an instruction, and the calls that were inlined there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from gemmkit.emulator.ptx.module import SourceLine

_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+[^,\s]+\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)

# File number, line, column.
_Position = tuple[int, int, int]


class LineTable:
    """Reads the `.loc` directives of a PTX text; `files` are the names of its `.file` directives.

    A directive names the call site that its line was inlined at, but not the callers of that call.
    The compiler emits those earlier, the outermost first, when they first occur: the last such
    directive before a line gives the call's own position. If none comes before it, callers are
    followed as long as the text has only one.
    """

    def __init__(self, text: str, files: Mapping[int, str]) -> None:
        self._files = files
        self._callers: defaultdict[_Position, set[_Position | None]] = defaultdict(set)
        for match in _LOC.finditer(text):
            position, caller = _positions(match)
            self._callers[position].add(caller)
        # For each position in the directives read so far, the calls that led there last.
        self._led: dict[_Position, tuple[_Position, ...]] = {}

    def line(self, directive: str) -> SourceLine:
        """The line that a `.loc` directive names; directives are read in the order of the text.

        Raises:
            ValueError: it is no such directive.
        """
        match = _LOC.match(directive)
        if match is None:
            raise ValueError(directive)
        position, caller = _positions(match)
        calls = self._chain(caller)
        self._led[position] = calls
        names = tuple("{}:{}".format(*self._named(call)) for call in calls)
        return SourceLine(*self._named(position), names)

    def _chain(self, caller: _Position | None) -> tuple[_Position, ...]:
        calls: list[_Position] = []
        while caller is not None and caller not in calls:
            calls.append(caller)
            if caller in self._led:
                calls += [each for each in self._led[caller] if each not in calls]
                break
            known = self._callers[caller]
            caller = next(iter(known)) if len(known) == 1 else None
        return tuple(calls)

    def _named(self, position: _Position) -> tuple[str, int]:
        number, line, _ = position
        return self._files.get(number, f"file {number}"), line


def _positions(match: re.Match[str]) -> tuple[_Position, _Position | None]:
    """A directive's own position, and that of the call it was inlined at."""
    own = int(match[1]), int(match[2]), int(match[3])
    return own, (int(match[4]), int(match[5]), int(match[6])) if match[4] else None


class NearestLines:
    """The lines that messages name for what the compiler attributes to line 0: that of an
    instruction before of the same inlined call, else that of the call, else the last one before.
    """

    def __init__(self) -> None:
        self._last: SourceLine | None = None
        # By file and calls.
        self._last_of: dict[tuple[str, tuple[str, ...]], SourceLine] = {}

    @property
    def some(self) -> bool:
        """Whether an instruction so far has a line."""
        return self._last is not None

    def of(self, source: SourceLine | None) -> SourceLine | None:
        """The line for an instruction at line 0, if there is one; None for all others, which are to
        be told in the order of the text."""
        if source is None:
            return None
        here = source.file, source.called_from
        if source.line:
            self._last = self._last_of[here] = source
            return None
        return self._last_of.get(here) or _call(source) or self._last


def _call(source: SourceLine) -> SourceLine | None:
    """The innermost call, of those that a line was inlined by, that has a line."""
    for index, call in enumerate(source.called_from):
        file, _, line = call.rpartition(":")
        if int(line):
            return SourceLine(file, int(line), source.called_from[index + 1 :])
    return None
