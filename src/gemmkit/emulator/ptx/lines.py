"""The source line of an instruction, and the calls that were inlined there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from gemmkit.emulator.ptx.module import SourceLine

_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+([^,\s]+)\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)

# File number, line, column.
_Position = tuple[int, int, int]


class LineTable:
    """Reads the `.loc` directives of a PTX text; `files` are the names of its `.file` directives.

    A directive names the call site that its line was inlined at, but not the callers of that call.
    The compiler emits those earlier, the outermost first, and only when they first occur, so that
    copies of a loop lack them. The last directive before a line that lies in the same function as
    the call says where that function was called, if the text has the call from there at all;
    otherwise the last one at the call's own position does. If there is neither, callers are
    followed as long as the text has only one.
    """

    def __init__(self, text: str, files: Mapping[int, str]) -> None:
        self._files = files
        self._callers: defaultdict[_Position, set[_Position | None]] = defaultdict(set)
        # The inlined functions that a position is in: several for instances of a template.
        self._functions: defaultdict[_Position, set[str]] = defaultdict(set)
        for match in _LOC.finditer(text):
            position, caller = _positions(match)
            self._callers[position].add(caller)
            if caller is not None:
                self._functions[position].add(match[4])
        # For each position in the directives read so far, the call that led there last, and the
        # same for each inlined function.
        self._led: dict[_Position, _Position | None] = {}
        self._entered: dict[str, _Position] = {}

    def line(self, directive: str) -> SourceLine:
        """The line that a `.loc` directive names; directives are read in the order of the text.

        Raises:
            ValueError: it is no such directive.
        """
        match = _LOC.match(directive)
        if match is None:
            raise ValueError(directive)
        position, caller = _positions(match)
        self._led[position] = caller
        if caller is not None:
            self._entered[match[4]] = caller
        calls = self._chain(caller)
        names = tuple("{}:{}".format(*self._named(call)) for call in calls)
        return SourceLine(*self._named(position), names)

    def _chain(self, caller: _Position | None) -> tuple[_Position, ...]:
        calls: list[_Position] = []
        while caller is not None and caller not in calls:
            calls.append(caller)
            caller = self._caller_of(caller)
        return tuple(calls)

    def _caller_of(self, call: _Position) -> _Position | None:
        """Where the function that a call is in was itself called."""
        known = self._callers[call]
        entered = {self._entered.get(each) for each in self._functions[call]} & known
        if len(entered) == 1:
            return entered.pop()
        if call in self._led:
            return self._led[call]
        return next(iter(known)) if len(known) == 1 else None

    def _named(self, position: _Position) -> tuple[str, int]:
        number, line, _ = position
        return self._files.get(number, f"file {number}"), line


def _positions(match: re.Match[str]) -> tuple[_Position, _Position | None]:
    """A directive's own position, and that of the call it was inlined at."""
    own = int(match[1]), int(match[2]), int(match[3])
    return own, (int(match[5]), int(match[6]), int(match[7])) if match[4] else None


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
