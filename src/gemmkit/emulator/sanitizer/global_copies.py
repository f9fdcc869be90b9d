"""`GlobalCopies`: what bulk copies read and write in global memory, against other accesses there.

Native code records ordinary accesses by granule, see `codegen.shadow_layout.ROW`. A copy is entered
there as an access of its thread that is marked, and that no barrier orders: a later access in
conflict with it is reported to Python, which knows by vector clocks whether it waited for the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import (
    ACTOR_BLOCK,
    ACTOR_RANK,
    ACTOR_RANKS,
    ACTOR_SITE,
    COPY_PLACE,
    IN_FLIGHT_TIME,
    ORDERED,
    ROW,
    VISIBLE_GLOBAL,
)
from gemmkit.emulator.isa.bulk_copies import is_reduction
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.between_blocks import BetweenBlocks
from gemmkit.emulator.sanitizer.block_knowledge import KNOWN
from gemmkit.emulator.sanitizer.clocks import Clocks
from gemmkit.emulator.sanitizer.cross_block_races import Actor, instruction_numbers
from gemmkit.emulator.sanitizer.global_findings import GlobalFindings
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow, Words

_THREAD = (1 << ACTOR_SITE) - 1


@dataclass(frozen=True, slots=True)
class _Span:
    """The granules of global memory that a copy touches: those of a region from a first one on,
    with a shape and the distances along it."""

    start: int
    first: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, copy: Copy, address: int, start: int, granule: int) -> _Span:
        """From an address on, in the region with a first byte."""
        if copy.box is None:
            shape: tuple[int, ...] = (copy.nbytes,)
            strides: tuple[int, ...] = (1,)
        else:
            shape, strides = copy.box.extent
        counts = (*shape[:-1], -(-shape[-1] // granule))
        return cls(start, (address - start) // granule, counts,
                   (*(each // granule for each in strides[:-1]), 1))  # fmt: skip

    def of_cells(self, cells: NDArray[np.generic]) -> NDArray[np.generic]:
        """These granules' cells, as a view."""
        size = cells.itemsize
        offset = self.first * size
        return np.ndarray(
            self.shape, cells.dtype, cells, offset, tuple(each * size for each in self.steps)
        )

    def index(self, place: int) -> int:
        """The granule at a place in the flattened view."""
        where = np.unravel_index(place, self.shape)
        steps = zip(where, self.steps, strict=True)
        return self.first + sum(int(each) * step for each, step in steps)


class LaunchCopies:
    """What the workers of a launch share: by region, the actor and its time of the last copy that
    wrote, or read, each granule."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._actors: dict[tuple[int, str], tuple[NDArray[np.int16], NDArray[np.int32]]] = {}

    def actors(
        self, start: int, kind: str, count: int
    ) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        """The actors and times of the last copies that wrote ("writer") or read a region of so many
        granules."""
        found = self._actors.get((start, kind))
        if found is None:
            found = np.zeros(count, np.int16), np.zeros(count, np.int32)
            self._actors[start, kind] = found
        return found


class GlobalCopies:
    """The copies of one worker's blocks."""

    def __init__(
        self,
        worker: Worker,
        known: GlobalShadow,
        launch: LaunchCopies,
        between: BetweenBlocks,
        found: GlobalFindings,
    ) -> None:
        self._worker, self._launch, self._between = worker, launch, between
        self._found, self._known = found, known
        areas = worker.kernel.areas
        self._numbers = instruction_numbers(areas)
        self._places = {number: COPY_PLACE | at for number, at in areas.transfers.items()}

    def issued(self, copy: Copy, warp: int, by: tuple[int, int], clocks: Clocks) -> int | None:
        """A warp, as the clocks count it, issues a copy: `by` is the actor that stands for it in
        global memory, and the actor's time. Returns the region (its first byte) if the launch
        must be run again with the loads of it recorded."""
        form = copy.action.form
        writes = form["D"] == "global"
        if not writes and form.modifiers.get("F") != "global":
            return None
        if copy.box is not None and copy.box.empty:
            return None
        address = copy.to if writes else copy.start
        start = self._known.region(address)
        row = self._known.row(start)
        row[ROW["stored" if writes else "loaded"] // 8] = 1
        reads_noted = (start, "reader") in self._known.actors
        if not reads_noted and row[ROW["stored"] // 8] and row[ROW["loaded"] // 8]:
            return start
        if not writes and not reads_noted:
            return None
        span = _Span.of(copy, address, start, self._known.granule)
        with self._launch.lock:
            self._check(copy, warp, clocks, span, writes=writes)
            self._enter(copy, by, span, writes=writes)
        return None

    def _cells(self, span: _Span, name: str) -> Words | None:
        cells = self._known.actors.get((span.start, name))
        if cells is None:
            return None
        found: Words = span.of_cells(cells)  # type: ignore[assignment]
        return found

    def _actors(self, start: int, kind: str) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        return self._launch.actors(start, kind, len(self._known.actors[start, "writer"]))

    # Conflicts with what came before

    def _check(self, copy: Copy, warp: int, clocks: Clocks, span: _Span, *, writes: bool) -> None:
        reduces = writes and is_reduction(copy.action.form)
        kinds = [("writer", "writer")]
        if writes:
            kinds += [("reader", "reader"), ("other_reader", "reader")]
        for name, kind in kinds:
            cells, times = self._cells(span, name), self._cells(span, f"{name}_at")
            if cells is not None and times is not None:
                for note, stamp, place in _kinds_of(cells, times):
                    self._meet(copy, warp, clocks, span, (note, stamp, place), kind,
                               reduces=reduces)  # fmt: skip
        block = self._worker.field("cluster_start") + 1
        against = ["writer"] + ["reader"] * writes + ["strong"] * (not reduces)
        for kind in against:
            cells, times = self._cells(span, f"last_{kind}"), self._cells(span, f"{kind}_time")
            if cells is None or times is None:
                continue
            for note, time, place in _kinds_of(cells, times):
                if note >> ACTOR_BLOCK != block:
                    address = span.start + span.index(place) * self._known.granule
                    self._meet_block(copy, address, (note, time), kind)

    def _meet_block(self, copy: Copy, address: int, met: tuple[int, int], kind: str) -> None:
        """The copy touches what an access of another block or cluster touched (`met`: the note of
        that, and its time)."""
        how, found = self._between.meets(copy.action.number, copy.thread, address, met, kind)
        if found is not None:
            self._found.add(found, self._worker.number)
        other = Actor.read(met[0], self._numbers)
        if how != KNOWN or kind == "reader" or other.asynchronous:
            return
        if not self._between.is_visible(other, met[1]):
            self._found.no_proxy_fence(copy, address, other, self._worker)

    def _meet(
        self,
        copy: Copy,
        warp: int,
        clocks: Clocks,
        span: _Span,
        met: tuple[int, int, int],
        kind: str,
        *,
        reduces: bool,
    ) -> None:
        """The copy touches what an earlier access in its block or cluster touched, of a kind; `met`
        is the note of that, its stamp, and a place in the span."""
        note, stamp, place = met
        if note >> ACTOR_BLOCK != self._worker.field("cluster_start") + 1:
            return
        if reduces and stamp & 1:
            return
        granule, other = span.index(place), Actor.read(note, self._numbers)
        address = span.start + granule * self._known.granule
        if other.asynchronous:
            known = clocks.of[warp, ORDERED]
            waited = self._is_waited_for(span.start, granule, kind, known)
            if not waited and not self.is_released(address, kind, other):
                self._found.copy_after(copy, address, other, kind, self._worker, waits=True)
            return
        its = other.rank * self._worker.warps + other.thread // LANES
        time, between = stamp >> 1, self._between
        if its != warp and clocks.of[warp, ORDERED, its] < time:
            how = between.relation(other, time)
            if between.is_race(copy.action.number, other, how):
                self._found.copy_after(copy, address, other, kind, self._worker, waits=False)
                return
        visible = clocks.of[warp, VISIBLE_GLOBAL, its] >= time
        if kind == "writer" and not visible and not between.is_visible(other, time):
            self._found.no_proxy_fence(copy, address, other, self._worker)

    def _is_waited_for(self, start: int, granule: int, kind: str, known: NDArray[np.int32]) -> bool:
        actors, times = self._actors(start, kind)
        return bool(known[actors[granule]] >= times[granule])

    def is_ordered(self, address: int, kind: str, known: NDArray[np.int32]) -> bool:
        """Whether the last copy that wrote, or read, an address is ordered before what has the
        clock `known`."""
        start = self._known.region(address)
        granule = (address - start) // self._known.granule
        return self._is_waited_for(start, granule, kind, known)

    def is_released(self, address: int, kind: str, other: Actor) -> bool:
        """Whether fences and atomics order the last copy that wrote, or read, an address, by
        `other`, before what the running warp does."""
        if (self._known.region(address), f"{kind}_time") not in self._known.actors:
            return False
        note, time = self._known.at(address, kind)
        # Of a copy whose thread has not waited for it, nothing has been noted.
        return bool(note) and (
            Actor.read(note, self._numbers) == other
            and self._between.relation(other, time) == KNOWN
        )

    # Records

    def _enter(self, copy: Copy, by: tuple[int, int], span: _Span, *, writes: bool) -> None:
        acting, kind = self._acting(copy), "writer" if writes else "reader"
        strong = writes and is_reduction(copy.action.form)
        if not writes:
            for name in ("reader", "reader_at"):
                before, kept = self._cells(span, name), self._cells(span, f"other_{name}")
                if before is not None and kept is not None:
                    kept[...] = before
        for name, value in ((kind, acting), (f"{kind}_at", IN_FLIGHT_TIME << 1 | strong)):
            self._store(span, name, value)
        actors, times = self._actors(span.start, kind)
        span.of_cells(actors)[...], span.of_cells(times)[...] = by
        if strong:
            self._store(span, "last_strong", acting)
            self._store(span, "strong_time", IN_FLIGHT_TIME)
            return
        first, last = (self._cells(span, f"{which}_{kind}") for which in ("first", "last"))
        if first is not None and last is not None:
            np.maximum(last, np.uint64(acting), out=last)
            np.maximum(first, ~np.uint64(acting), out=first)
            return
        self._store(span, f"last_{kind}", acting)
        # Whoever releases anything has waited for what it has read.
        self._store(span, f"{kind}_time", IN_FLIGHT_TIME if writes else 0)

    def _store(self, span: _Span, name: str, value: int) -> None:
        cells = self._cells(span, name)
        if cells is not None:
            cells[...] = value

    def _acting(self, copy: Copy) -> int:
        block = self._worker.field("cluster_start") + 1
        place = self._places[copy.action.number]
        rank = self._worker.rank << ACTOR_RANK & ACTOR_RANKS
        return block << ACTOR_BLOCK | rank | place << ACTOR_SITE | copy.thread

    def waited(self, copy: Copy, now: int) -> None:
        """A copy has written global memory, and its thread knows: from now on a fence may release
        it to other blocks."""
        if copy.box is not None and copy.box.empty:
            return
        start = self._known.region(copy.to)
        span = _Span.of(copy, copy.to, start, self._known.granule)
        kind = "strong" if is_reduction(copy.action.form) else "writer"
        last, times = self._cells(span, f"last_{kind}"), self._cells(span, f"{kind}_time")
        if last is not None and times is not None:
            mine = (last == np.uint64(self._acting(copy))) & (times == np.uint64(IN_FLIGHT_TIME))
            times[mine] = now


def _kinds_of(cells: Words, times: Words) -> Iterator[tuple[int, int, int]]:
    """What differs among cells that are not empty: the note and time, and the first place."""
    if not cells.any():
        return
    notes, stamps = cells.reshape(-1), times.reshape(-1)
    # Threads of one instruction and time differ in nothing that matters but their warps.
    keys = notes & ~np.uint64(LANES - 1)
    changes = np.flatnonzero((keys[1:] != keys[:-1]) | (stamps[1:] != stamps[:-1])) + 1
    seen: set[tuple[int, int]] = set()
    for place in (0, *changes.tolist()):
        pair = int(keys[place]), int(stamps[place])
        if int(notes[place]) and pair not in seen:
            seen.add(pair)
            yield int(notes[place]), pair[1], place
