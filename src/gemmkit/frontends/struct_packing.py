"""`#pragma pack`: to how many bytes the members of each struct in a source are aligned at most."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

_PACK = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+pack[ \t]*\((?P<words>[^)\n]*)\)", re.M)
_OPERATOR = re.compile(r'\b_Pragma\s*\(\s*"\s*pack\b')


@dataclass(frozen=True, slots=True)
class Packing:
    """The largest alignment of members from each of `positions` of a text on; 0 is no limit."""

    positions: tuple[int, ...]
    limits: tuple[int, ...]

    def at(self, position: int) -> int:
        """The limit for a struct that begins at a position."""
        return self.limits[bisect_right(self.positions, position)]


def packing(text: str) -> Packing:
    """What the directives of a text without comments say, as nvcc and gcc read them.

    `pack(n)` sets the limit and `pack()` lifts it; `push` keeps the present one, and sets another
    where a number follows; `pop` goes back, to the `push` of that name where one is given.
    """
    positions: list[int] = []
    limits, kept = [0], list[tuple[str, int]]()
    for match in _PACK.finditer(text):
        words = [word.strip() for word in match["words"].split(",") if word.strip()]
        action = words[0] if words else ""
        number = next((int(word) for word in words if word.isdigit()), None)
        name = next((word for word in words[1:] if not word.isdigit()), "")
        limit = limits[-1]
        if action == "push":
            kept.append((name, limit))
        elif action == "pop":
            while kept:
                found, limit = kept.pop()
                if not name or found == name:
                    break
        elif number is None:
            limit = 0
        positions.append(match.end())
        limits.append(limit if number is None else number)
    return Packing(tuple(positions), tuple(limits))


def pack_operator_line(text: str) -> int | None:
    """The line of the first `_Pragma("pack(…)")`, which is not followed here; None without one."""
    found = _OPERATOR.search(text)
    return None if found is None else text.count("\n", 0, found.start()) + 1
