"""Explains races in shared memory: conflicting accesses with nothing that orders them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemmkit.emulator.codegen.areas import Areas
from gemmkit.emulator.codegen.layout import LANES, PATTERN
from gemmkit.emulator.codegen.operands import access_bytes
from gemmkit.emulator.codegen.ordering import is_cas_loop
from gemmkit.emulator.codegen.shadow_layout import (
    COPIED,
    COPY_EPOCH_BITS,
    COPY_SITE,
    COPY_THREAD,
    LOADED,
    LOG_ENTRIES,
    OWN_READ,
    OWN_WRITTEN,
    SAME_STORE,
    STORED,
    TAG_BYTES,
    TAG_KIND,
    TAG_WARP,
    UPDATED,
)
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.shadow import (
    BlockShadow,
    Pattern,
    bits_at,
    granules_of,
)
from gemmkit.emulator.sanitizer.sites import Names, at, verb
from gemmkit.findings import Finding, Triple


@dataclass(frozen=True, slots=True)
class Access:
    """One access of a warp to shared memory, of `nbytes` per lane; `numbers` are its instructions,
    several if adjacent loads are performed together."""

    numbers: tuple[int, ...]
    pattern: Pattern
    base: int
    nbytes: int
    warp: int
    kind: int

    def number_at(self, lane: int, address: int) -> int:
        """The instruction by which a lane accesses an address."""
        distance = address - self.base - int(self.pattern.offsets[lane])
        place = distance // max(self.nbytes // len(self.numbers), 1)
        return self.numbers[min(max(place, 0), len(self.numbers) - 1)]


@dataclass(frozen=True, slots=True)
class _Conflict:
    """Two threads at one address; the other's instruction and thread, if they are known."""

    lane: int
    address: int
    other: int | None
    thread: int | None
    kind: int


class Races:
    """Explains the races of one worker's blocks."""

    def __init__(self, names: Names, worker: Worker, shadow: BlockShadow) -> None:
        self._names, self._worker, self._shadow = names, worker, shadow
        self._areas: Areas = worker.kernel.areas
        # The patterns that were read last, by where they are.
        self._patterns: dict[int, Pattern] = {}

    def between_warps(self, access: Access) -> Finding | None:
        """The race of this access with another warp's, or with a copy in flight."""
        copied = self._copy_on_its_way(access)
        if copied is not None:
            return self._finding(access, copied, waiting=True)
        met = self._other_warp(access) or self._landed_copy(access)
        if met is not None:
            return None if self._is_cas_loop(access, met) else self._finding(access, met)
        if self._names.strong(access.numbers[0]) or not self._may_race(access):
            return None
        return self._unknown(access)

    def _may_race(self, access: Access) -> bool:
        """Whether other warps have accessed the same granules with nothing that orders them."""
        places = [OWN_WRITTEN] if access.kind == LOADED else [OWN_WRITTEN, OWN_READ]
        granules = granules_of(access.pattern, access.base, access.nbytes, self._shadow.shift)
        sets = (self._shadow.unordered(access.warp, place) for place in places)
        return any(bits_at(bits, granules).any() for each in sets for bits in each)

    def between_lanes(self, access: Access, more: int) -> Finding | None:
        """The race of two lanes of one warp, as native code found it."""
        lane, other = more & 31, more >> 8 & 31
        thread = access.warp * LANES + other
        if more & SAME_STORE:
            address = access.base + int(access.pattern.offsets[lane])
            met = _Conflict(lane, address, access.numbers[0], thread, STORED)
            return self._finding(access, met, within=True)
        if more & COPIED:
            return self._finding(access, self._copied(access, lane, thread), within=True)
        entry = self._entry(more >> 16)
        if entry is None:
            return None
        starts = (each.base + int(each.pattern.offsets[who])
                  for each, who in ((access, lane), (entry, other)))  # fmt: skip
        address = max(starts)
        met = _Conflict(lane, address, entry.number_at(other, address), thread, entry.kind)
        if self._is_cas_loop(access, met) or self._synchronizes(access, met):
            return None
        return self._finding(access, met, within=True)

    def _synchronizes(self, access: Access, met: _Conflict) -> bool:
        """Whether two lanes meet at a flag or a counter: by strong accesses, of which at least one
        is an atomic, names its order (`.relaxed`, `.acquire`, `.release`) or is that of a wait.

        Other volatile accesses are those of reductions that take a warp's lanes to be in step.
        """
        if met.other is None:
            return False
        actions, both = self._names.actions, (access.numbers[0], met.other)
        if not all(self._names.strong(each) for each in both):
            return False
        if not all(".volatile" in actions[each].form.opcode for each in both):
            return True
        waits = self._worker.kernel.flag_waits
        return any(each in waits for each in both)

    def _is_cas_loop(self, access: Access, met: _Conflict) -> bool:
        actions = self._names.actions
        return met.other is not None and is_cas_loop(actions[access.numbers[0]], actions[met.other])

    def row(self, number: int, nbytes: int, each: int) -> tuple[int, ...]:
        """The instructions that an access represents."""
        return self._areas.group_of[number] if nbytes > each else (number,)

    def _copy_on_its_way(self, access: Access) -> _Conflict | None:
        shadow = self._shadow
        granules = granules_of(access.pattern, access.base, access.nbytes, shadow.shift)
        alarm = bits_at(shadow.common_bits("alarm"), granules)
        alarm &= ~bits_at(shadow.common_bits("atomic"), granules)
        if not alarm.any():
            return None
        row, column = (int(each[0]) for each in np.nonzero(alarm))
        return self._copy_at(access, row, int(granules[row, column]))

    def _copy_at(self, access: Access, row: int, granule: int) -> _Conflict:
        lane = int(access.pattern.lanes[row])
        note = int(self._shadow.copies[granule])
        number = self._site_number(note >> COPY_SITE)
        thread = note >> COPY_THREAD & 0xFFFF
        start = access.base + int(access.pattern.offsets[lane])
        return _Conflict(lane, max(granule << self._shadow.shift, start), number, thread, STORED)

    def _copied(self, access: Access, lane: int, thread: int) -> _Conflict:
        """The conflict of a lane with another thread's copy."""
        row = access.pattern.lanes.tolist().index(lane)
        granules = granules_of(access.pattern, access.base, access.nbytes, self._shadow.shift)
        notes = self._shadow.copies[granules[row]] >> np.uint64(COPY_THREAD) & np.uint64(0xFFFF)
        return self._copy_at(access, row, int(granules[row, (notes == thread).argmax()]))

    def _landed_copy(self, access: Access) -> _Conflict | None:
        shadow = self._shadow
        granules = granules_of(access.pattern, access.base, access.nbytes, shadow.shift)
        notes = shadow.copies[granules]
        mask = (1 << COPY_EPOCH_BITS) - 1
        lately = (notes != 0) & (notes & np.uint64(mask) == shadow.field("epoch") & mask)
        if shadow.by_pairs:
            lately = notes != 0
        warps = (notes >> np.uint64(COPY_THREAD) & np.uint64(0xFFFF)) // np.uint64(LANES)
        written = shadow.unordered(access.warp, OWN_WRITTEN)
        for warp in np.unique(warps[lately]).tolist():
            theirs = warps == warp
            lately &= ~theirs | bits_at(written[warp], granules)
        if not lately.any():
            return None
        row, column = (int(each[0]) for each in np.nonzero(lately))
        return self._copy_at(access, row, int(granules[row, column]))

    def _other_warp(self, access: Access) -> _Conflict | None:
        """The latest conflicting access of another warp, writes first."""
        shift = self._shadow.shift
        mine = granules_of(access.pattern, access.base, access.nbytes, shift)
        strong = self._names.strong(access.numbers[0])
        kinds: list[tuple[int, ...]] = [(STORED, UPDATED)]
        if access.kind != LOADED:
            kinds.append((LOADED,))
        for wanted in kinds:
            for entry in self._entries(access.warp, wanted, int(mine.min()), int(mine.max())):
                if strong and self._names.strong(entry.numbers[0]):
                    continue
                theirs = granules_of(entry.pattern, entry.base, entry.nbytes, shift)
                place = OWN_READ if entry.kind == LOADED else OWN_WRITTEN
                unordered = self._shadow.unordered(access.warp, place)[entry.warp]
                shared = np.isin(mine, theirs) & bits_at(unordered, mine)
                if not shared.any():
                    continue
                row, column = (int(each[0]) for each in np.nonzero(shared))
                granule = int(mine[row, column])
                lane = int(access.pattern.lanes[row])
                other = int(entry.pattern.lanes[(theirs == granule).any(axis=1).argmax()])
                starts = (each.base + int(each.pattern.offsets[who])
                          for each, who in ((access, lane), (entry, other)))  # fmt: skip
                address = max(granule << shift, *starts)
                number = entry.number_at(other, address)
                return _Conflict(lane, address, number, entry.warp * LANES + other, entry.kind)
        return None

    def _entries(
        self, warp: int, kinds: tuple[int, ...], least: int, most: int
    ) -> Iterator[Access]:
        """Accesses of other warps to these granules in this epoch, the latest first."""
        shadow, now = self._shadow, self._shadow.field("log_count")
        first = max(shadow.field("log_epoch"), now - LOG_ENTRIES)
        places = np.arange(first, now)[::-1]
        tags = shadow.log[places % LOG_ENTRIES, 3]
        wanted = sum(1 << kind for kind in kinds)
        chosen = (tags >> TAG_WARP & 255 != warp) & (wanted >> (tags >> TAG_KIND) & 1 != 0)
        bounds: dict[int, tuple[int, int]] = {}
        for place in places[chosen].tolist():
            _, base, serial, tag = shadow.log[place % LOG_ENTRIES].tolist()
            if serial not in bounds:
                entry = self._entry(place)
                if entry is None:
                    continue
                offsets = entry.pattern.offsets[entry.pattern.lanes]
                bounds[serial] = int(offsets.min()), int(offsets.max())
            low, high = bounds[serial]
            nbytes = tag >> TAG_BYTES & 255
            if base + high + nbytes <= least << shadow.shift:
                continue
            if base + low >= (most + 1) << shadow.shift:
                continue
            entry = self._entry(place)
            if entry is not None:
                yield entry

    def _entry(self, index: int) -> Access | None:
        """An access of the log, if its pattern still exists."""
        pointer, base, serial, tag = self._shadow.log[index % LOG_ENTRIES].tolist()
        if not serial or not self._worker.holds(pointer):
            return None
        pattern = self._pattern(pointer, serial)
        if pattern is None:
            return None
        number = self._site_number(tag & 0xFFFFFFFF)
        nbytes = tag >> TAG_BYTES & 255
        action = self._names.actions[number]
        each = access_bytes(action) if action.operation == "load" else nbytes
        row = self.row(number, nbytes, each)
        return Access(row, pattern, base, nbytes, tag >> TAG_WARP & 255, tag >> TAG_KIND)

    def _pattern(self, pointer: int, serial: int) -> Pattern | None:
        """The pattern of a serial number, if it still exists."""
        if ctypes.c_int64.from_address(pointer + PATTERN.serial).value != serial:
            return None
        found = self._patterns.get(pointer)
        if found is None or found.serial != serial:
            found = self._patterns[pointer] = Pattern(pointer)
        return found

    def _site_number(self, distance: int) -> int:
        return self._worker.site_at(distance)

    def _unknown(self, access: Access) -> Finding:
        """A race whose other side is no longer in the log."""
        lane = int(access.pattern.lanes[0])
        address = access.base + int(access.pattern.offsets[lane])
        return self._finding(access, _Conflict(lane, address, None, None, STORED))

    def _finding(
        self, access: Access, met: _Conflict, *, waiting: bool = False, within: bool = False
    ) -> Finding:
        names = self._names
        block: Triple = names.block(self._worker.field("block"))
        number = access.number_at(met.lane, met.address)
        here = names.site(number, names.lane(access.warp, met.lane))
        array, offset = names.shared(met.address)
        action = names.actions[number]
        what = (
            f"thread {here.thread} of block {block} {verb(action)} byte {offset} of '{array}' at "
            f"{here}"
        )
        reads = access.kind == LOADED
        if met.other is None:
            kind = "read after write" if reads else "write after access"
            return Finding(
                check="racecheck",
                kind=kind,
                message=f"{kind}: {what}, which another warp accesses with no barrier between",
                block=block,
                here=here,
                array=array,
                offset=offset,
            )
        thread = names.thread(met.thread) if met.thread is not None else None
        other = names.site(met.other, thread)
        missing = names.missing_barrier(self._worker, met.other, number, within_warp=within)
        cause = missing.cause if missing is not None else ""
        if waiting:
            kind = "read before wait" if reads else "write before wait"
            rest = f"before a wait for the cp.async to it by {at(other)}"
            cause = f"{cause}/{kind.replace(' ', '-')}".lstrip("/")
        else:
            kind = "read after write" if reads else "write after write"
            if not reads and met.kind == LOADED:
                kind = "write after read"
            between = "no __syncwarp() or barrier" if within else "no barrier"
            does = f"thread {thread} {verb(names.actions[met.other])}"
            where = missing.text if missing is not None else "between"
            rest = f"which {does} at {other} with {between} {where}"
            if met.other == number and within:
                rest = f"to which thread {thread} stores another value at the same time"
        return Finding(
            check="racecheck",
            kind=kind,
            message=f"{kind}: {what}, {rest}",
            block=block,
            here=here,
            other=other,
            array=array,
            offset=offset,
            cause=cause,
        )
