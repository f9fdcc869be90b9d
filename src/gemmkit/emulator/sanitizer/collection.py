"""Collects findings: each once, with its number of occurrences and that of the first block as
example."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from gemmkit.findings import AccessSite, Finding

# The kind of races that there are only as lanes of a warp are not in step.
APART = "lanes not in step"
# The fault, and the lines and array that it concerns.
Key = tuple[str, str, str, str, str]


_RACES = (" after read", " after write")


def _pair(key: Key) -> tuple[frozenset[str], str]:
    """The two lines that a race concerns, and the array."""
    _, _, here, other, array = key
    return frozenset((here, other)), array


@dataclass(slots=True)
class _Seen:
    block: int
    example: Finding
    count: int
    follows: str = ""


def key_of(finding: Finding) -> Key:
    """What distinguishes a finding from others."""
    return key_for(finding.check, finding.kind, finding.here, finding.other, finding.array)


def key_for(check: str, kind: str, here: AccessSite, other: AccessSite | None, array: str) -> Key:
    """What distinguishes a finding from others, for one that is not made yet."""
    # An undefined value is one cause, however many lines use it.
    used = kind in ("uninitialized", "absent lane")
    return check, kind, str(here), "" if used or other is None else str(other), array


class Collection:
    """Findings of all workers of a launch; the result does not depend on their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Key, _Seen] = {}
        # Causes that explain findings which name them.
        self.roots: set[str] = set()

    def add(self, finding: Finding, block: int, follows: str = "") -> Key:
        """Add a finding; `block` is the block's number in the grid.

        If the cause `follows` is among the `roots` in the end, it is that of the finding.
        """
        key = key_of(finding)
        with self._lock:
            seen = self._seen.get(key)
            if seen is None:
                self._seen[key] = _Seen(block, finding, finding.count, follows)
            else:
                seen.count += finding.count
                if block < seen.block:
                    seen.block, seen.example, seen.follows = block, finding, follows
        return key

    def again(self, key: Key, block: int) -> bool:
        """Whether a finding occurred before, in this block or an earlier one, so that it is no
        example; it is counted then."""
        with self._lock:
            seen = self._seen.get(key)
            if seen is None or block < seen.block:
                return False
            seen.count += 1
        return True

    def more(self, key: Key, count: int) -> None:
        """The same finding occurred `count` more times."""
        with self._lock:
            self._seen[key].count += count

    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of the blocks where they occurred first."""
        # Where more is missing than a __syncwarp(), that is no finding of its own.
        races = {_pair(each) for each in self._seen if each[1].endswith(_RACES)}
        left = (
            (key, seen)
            for key, seen in self._seen.items()
            if key[1] != APART or _pair(key) not in races
        )
        ordered = sorted(left, key=lambda each: (each[1].block, each[0]))
        return tuple(
            msgspec.structs.replace(
                seen.example,
                count=seen.count,
                cause=seen.follows if seen.follows in self.roots else seen.example.cause,
            )
            for _, seen in ordered
        )
