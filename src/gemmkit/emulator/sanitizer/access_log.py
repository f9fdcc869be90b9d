"""`AccessLog`: reads the accesses to shared memory that native code logs for one worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import (
    LOG_ENTRIES,
    SENT,
    TAG_BYTES,
    TAG_KIND,
    TAG_WARP,
    UPDATED,
)
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.granules import Numbers, party
from gemmkit.emulator.sanitizer.shadow import BlockShadow, Pattern

# Patterns whose lanes are remembered.
_KEPT_PATTERNS = 4096


@dataclass(frozen=True, slots=True)
class Logged:
    """Accesses of one warp, of one kind, from one turn of the warp: the granules, for each of them
    the party, and the lowest address."""

    warp: int
    kind: int
    where: Numbers
    who: Numbers
    first: int


class AccessLog:
    """The log of one worker."""

    def __init__(self, worker: Worker, shadow: BlockShadow) -> None:
        self._worker, self._shadow = worker, shadow
        self._patterns: dict[int, tuple[Numbers, Numbers]] = {}
        self._logged = 0

    def take(self, now: int) -> Iterator[Logged]:
        """What was logged since the last time, until the log had `now` entries."""
        first = max(self._logged, now - LOG_ENTRIES)
        self._logged = now
        if first == now:
            return
        entries = self._shadow.log[np.arange(first, now) % LOG_ENTRIES]
        pointers, bases, serials, tags = entries.T
        kinds = tags >> TAG_KIND
        wanted = (serials != 0) & ((kinds <= UPDATED) | (kinds == SENT))
        # Accesses of one warp, kind and pattern, from one turn of the warp.
        keys = np.stack([tags >> TAG_BYTES, tags >> TAG_WARP & 255, serials], axis=1)
        turns = np.cumsum(np.concatenate([[0], np.diff(keys[:, 1]) != 0]))
        keys = np.concatenate([turns[:, None], keys], axis=1)[wanted]
        if not len(keys):
            return
        _, where, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        chosen = np.flatnonzero(wanted)
        for group in range(len(where)):
            members = chosen[inverse.reshape(-1) == group]
            found = self._accesses(int(pointers[members[0]]), bases[members], tags[members],
                                   int(serials[members[0]]))  # fmt: skip
            if found is not None:
                yield found

    def _accesses(self, pointer: int, bases: Numbers, tags: Numbers, serial: int) -> Logged | None:
        lanes, offsets = self._pattern(pointer, serial)
        if not len(lanes):
            return None
        tag, shift = int(tags[0]), self._shadow.shift
        warp, nbytes, kind = tag >> TAG_WARP & 255, tag >> TAG_BYTES & 255, tag >> TAG_KIND
        numbers = [self._worker.site_at(int(each) & 0xFFFFFFFF) for each in tags]
        starts = bases[:, None] + offsets[None, :]
        parts = np.arange(max(nbytes >> shift, 1))
        where = ((starts >> shift)[:, :, None] + parts).reshape(-1)
        first = warp * LANES
        threads = np.array([party(each, first) for each in numbers], np.int64)[:, None] + lanes
        who = np.broadcast_to(threads[:, :, None], (*starts.shape, len(parts))).reshape(-1)
        return Logged(warp, kind, where, who, int(starts.min()))

    def _pattern(self, pointer: int, serial: int) -> tuple[Numbers, Numbers]:
        """The active lanes of a pattern and their offsets, if it still exists."""
        found = self._patterns.get(serial)
        if found is None:
            empty = np.zeros(0, np.int64)
            if not self._worker.holds(pointer):
                return empty, empty
            pattern = Pattern(pointer)
            if pattern.serial != serial:
                return empty, empty
            if len(self._patterns) > _KEPT_PATTERNS:
                self._patterns.clear()
            found = self._patterns[serial] = pattern.lanes, pattern.offsets[pattern.lanes]
        return found
