"""Gathers findings: each once, with the times it was seen, the first block's as the example."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from gemmkit.record import Finding

# What is wrong at which lines of which array.
Key = tuple[str, str, str, str, str]


@dataclass(slots=True)
class _Seen:
    block: int
    example: Finding
    count: int


class Collection:
    """Findings of all workers of a launch; what it holds does not depend on their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Key, _Seen] = {}

    def add(self, finding: Finding, block: int) -> Key:
        """One more; `block` is the block's number in the grid."""
        # What is not defined is one cause, however many lines use it.
        used = finding.kind in ("uninitialized", "absent lane")
        other = "" if used or finding.other is None else str(finding.other)
        key = finding.check, finding.kind, str(finding.here), other, finding.array
        with self._lock:
            seen = self._seen.get(key)
            if seen is None:
                self._seen[key] = _Seen(block, finding, finding.count)
            else:
                seen.count += finding.count
                if block < seen.block:
                    seen.block, seen.example = block, finding
        return key

    def more(self, key: Key, count: int) -> None:
        """The same was seen some times more."""
        with self._lock:
            self._seen[key].count += count

    def findings(self) -> tuple[Finding, ...]:
        """All, in the order of the blocks where they were seen first."""
        ordered = sorted(self._seen.items(), key=lambda each: (each[1].block, each[0]))
        return tuple(msgspec.structs.replace(seen.example, count=seen.count) for _, seen in ordered)
