"""`BlockBarriers`: what the barriers of a block order, and named barriers that groups of warps
share by accident.

A barrier counts arrivals, whoever makes them. If warps arrive for one of its generations, and
others for the next one with nothing that orders these arrivals after those, they may complete each
other's generation: which warps meet depends on the order in which they happen to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemmkit.emulator.codegen.layout import AT_BARRIER, BARRIERS
from gemmkit.emulator.codegen.shadow_layout import ARRIVES, BEGINS, CAUSED, OPENS
from gemmkit.emulator.machine.errors import span
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.clocks import Clock, Clocks
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names, at
from gemmkit.findings import Finding


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A warp's arrival at a barrier: by which instruction, its time, and what was earlier."""

    warp: int
    number: int
    time: int
    before: Clock


class BarrierFindings:
    """Adds findings about shared barriers to a collection."""

    def __init__(self, names: Names, collection: Collection) -> None:
        self._names, self._collection = names, collection

    def shared(
        self, worker: Worker, barrier: int, earlier: Sequence[_Arrival], later: Sequence[_Arrival]
    ) -> None:
        """Arrivals of two generations of a barrier that nothing orders."""
        names, block = self._names, worker.number
        here, there = (
            names.site(each[0].number, names.lane(each[0].warp, 0)) for each in (later, earlier)
        )
        groups = [span(sorted({each.warp for each in every})) for every in (later, earlier)]
        kind = "barrier shared"
        text = (
            f"{kind}: in block {names.block(block)} warps {groups[0]} arrive at barrier {barrier} "
            f"({at(here)}), and so do warps {groups[1]} ({at(there)}), with nothing that orders "
            "these arrivals: they may complete each other's barrier"
        )
        self._collection.add(
            Finding(
                check="synccheck",
                kind=kind,
                message=text,
                block=names.block(block),
                here=here,
                other=there,
            ),
            block,
        )


class BlockBarriers:
    """The barriers of one worker's block."""

    def __init__(self, worker: Worker, shadow: BlockShadow, found: BarrierFindings) -> None:
        self._worker, self._shadow, self._found = worker, shadow, found
        # Flags in shared memory may order warps too, which clocks do not know.
        self._compares = not shadow.traits.flags_order_warps
        self.begin(Clocks(worker.warps))

    def begin(self, clocks: Clocks, first: int = 0) -> None:
        """A block begins, whose first warp has this number among the clocks'."""
        self._clocks, self._first = clocks, first
        self._barriers = [clocks.empty() for _ in range(BARRIERS)]
        self._now: list[list[_Arrival]] = [[] for _ in range(BARRIERS)]
        self._last: list[list[_Arrival]] = [[] for _ in range(BARRIERS)]

    def told(self, what: int, barrier: int) -> None:
        """The running warp arrives at a barrier, or that opens; a block begins whose warps only
        barriers order."""
        if what == BEGINS:
            self.begin(Clocks(self._worker.warps))
        elif what == ARRIVES:
            warp = self._worker.warp_number(self._worker.field("running"))
            self._arrive(warp, barrier % BARRIERS)
        elif what == OPENS:
            self._open(barrier)

    def _arrive(self, warp: int, barrier: int) -> None:
        clocks, own = self._clocks, self._first + warp
        clocks.release(own, self._barriers[barrier])
        time, row = clocks.now(own) - 1, clocks.of[own, CAUSED]
        before = row[self._first : self._first + self._worker.warps].copy()
        number = self._shadow.field("arriving")
        self._now[barrier].append(_Arrival(warp, number, time, before))

    def _open(self, barrier: int) -> None:
        worker, number = self._worker, barrier % BARRIERS
        here = worker.warp_fields("barrier") == barrier
        for each in np.flatnonzero(here & (worker.warp_fields("status") == AT_BARRIER)):
            self._clocks.acquire(self._first + int(each), self._barriers[number])
        self._barriers[number] = self._clocks.empty()
        earlier, later = self._last[number], self._now[number]
        if self._compares and {each.warp for each in earlier} != {each.warp for each in later}:
            self._compare(number, earlier, later)
        self._last[number], self._now[number] = later, []

    def _compare(
        self, barrier: int, earlier: Sequence[_Arrival], later: Sequence[_Arrival]
    ) -> None:
        if any(
            each.before[other.warp] < other.time
            for each in later
            for other in earlier
            if each.warp != other.warp
        ):
            self._found.shared(self._worker, barrier, earlier, later)
