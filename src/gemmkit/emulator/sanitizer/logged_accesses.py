"""`LoggedAccesses`: compares the accesses in the log with earlier ones, in native code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.native import runtime
from gemmkit.emulator.codegen.runtime.granules import READ, WRITE
from gemmkit.emulator.codegen.runtime.logged_accesses import NAME
from gemmkit.emulator.codegen.shadow_layout import (
    COMPARISON,
    COMPARISON_BYTES,
    READS_WANTED,
    SUSPICIOUS,
    TOLD,
)
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES
from gemmkit.emulator.machine.memory import aligned_bytes
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.clocks import Clocks
from gemmkit.emulator.sanitizer.granules import Conflict, Granules, Numbers

_Compare = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_Read = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 5)
_Write = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_int64] * 6)


@dataclass(frozen=True, slots=True)
class Stop:
    """An entry of the log that needs Python: one that is not an access, or a suspicious access.

    `who` made it, at `granule`, in conflict with `met`; `marked` is the granule of an mbarrier that
    it accessed, or −1, and `marked_by` who did.
    """

    entry: int
    told: bool
    who: int = 0
    granule: int = -1
    met: Conflict | None = None
    marked: int = -1
    marked_by: int = 0


class LoggedAccesses:
    """The comparison for one worker."""

    def __init__(
        self, worker: Worker, strong: Numbers, relaxed: Sequence[int], granules: int
    ) -> None:
        """`strong` are the instructions whose accesses do not race with each other, `relaxed` those
        with relaxed semantics."""
        actions = worker.kernel.actions
        for_copies = [each.operation == "mbarrier_arrive_copies" for each in actions]
        self._for_copies = np.array([*for_copies, False], np.uint8)
        self._compare = _Compare(runtime().addresses[NAME])
        self._read = _Read(runtime().addresses[READ])
        self._write = _Write(runtime().addresses[WRITE])
        self._table = aligned_bytes(COMPARISON_BYTES).view(np.int64)
        self._addresses = worker.fields.ctypes.data, self._table.ctypes.data
        sites = worker.kernel.areas.sites
        self._numbers = np.array([*sites, 0], np.int64)
        self._strong, self._relaxed = np.zeros((2, len(worker.kernel.actions) + 1), np.uint8)
        self._strong[strong] = self._relaxed[relaxed] = 1
        # By address, where the mbarriers are.
        self._mbarriers = np.zeros(worker.shared_end // OBJECT_BYTES + 1, np.int64)
        self._marks = np.zeros(granules, np.uint8)
        # By instruction, the first block that was seen to execute it, if it is a wgmma.
        self._first_blocks = np.full(len(self._strong), np.iinfo(np.int64).max)
        self._set(
            numbers=self._numbers.ctypes.data,
            sites_at=worker.kernel.compiled.sites_start,
            worker_bytes=worker.kernel.compiled.worker_bytes,
            strong=self._strong.ctypes.data,
            granules=granules,
            marks=self._marks.ctypes.data,
            first_blocks=self._first_blocks.ctypes.data,
            mbarriers=self._mbarriers.ctypes.data,
            relaxed=self._relaxed.ctypes.data,
            for_copies=self._for_copies.ctypes.data,
        )

    def _set(self, **values: int) -> None:
        for name, value in values.items():
            self._table[COMPARISON[name] // 8] = value

    def _get(self, name: str) -> int:
        return int(self._table[COMPARISON[name] // 8])

    def begin(self, granules: Granules, clocks: Clocks, first_warp: int) -> None:
        """A block begins, with these; nothing was accessed yet. The clocks count the block's warps
        from `first_warp` on."""
        self._granules = granules
        # Python decides what of other blocks' stores is visible.
        self._reached = self._watches = False
        self._set(reached=0)
        self._marks[:] = 0
        self._mbarriers[:] = 0
        arrays: dict[str, NDArray[Any]] = {
            "writer": granules.writer,
            "time": granules.time,
            "who": granules.who,
            "read_times": granules.read_times,
            "read_whos": granules.read_whos,
            "reader_list": granules.readers,
            "clocks": clocks.of,
            "groups": clocks.group,
            "arrived_groups": clocks.arrived_group,
        }
        self._set(**{name: array.ctypes.data for name, array in arrays.items()})
        self._set(clock_bytes=clocks.of.strides[0], row_bytes=clocks.of.strides[1])
        self._set(warps=clocks.warps, copies_from=clocks.warps + clocks.places)
        self._set(first_warp=first_warp)

    def begin_products(
        self,
        block: int,
        executed: Numbers,
        actors: Numbers,
        groups: NDArray[np.int32],
        causes: NDArray[np.int32],
    ) -> None:
        """A block begins, with these for the wgmma of its warps: what each has executed, the actor
        that stands for its wgmma, the group that is open, and what precedes the commits of its last
        groups."""
        self._products = executed, actors, groups, causes
        addresses = (each.ctypes.data for each in self._products)
        names = ("executed", "product_actors", "product_groups", "product_causes")
        self._set(block=block, **dict(zip(names, addresses, strict=True)))

    def executed(self, number: int, block: int) -> None:
        """Python has seen a block execute a wgmma; native code need not tell it of later ones."""
        self._first_blocks[number] = min(self._first_blocks[number], block)

    def initialized(self, address: int, state: Numbers | None) -> None:
        """There is an mbarrier at an address from now on, or no longer."""
        place = address // OBJECT_BYTES
        self._mbarriers[place : place + 1] = 0 if state is None else state.ctypes.data

    def mark(self, first: int, end: int, *, used: bool) -> None:
        """Granules belong to an mbarrier from now on, or no longer do."""
        self._marks[first:end] = used

    def mark_remote(self, where: Numbers, *, by_peer: bool) -> None:
        """Granules are written by ordinary stores that may reach other blocks, and do if `by_peer`:
        Python must see who reads them."""
        self._marks[where] |= 2
        self._reached |= by_peer
        self._set(reached=self._reached or self._watches)

    def watch(self, where: Numbers) -> None:
        """Python must see who accesses these granules, and no longer those before."""
        self._marks &= 0xFF ^ 4
        self._marks[where] |= 4
        self._watches = bool(len(where))
        self._set(reached=self._reached or self._watches)

    def read(self, warp: int, actor: int, time: int, who: int, granules: tuple[int, int]) -> bool:
        """The wgmma of a warp read granules, of which there is an array at an address, and so many.

        Returns whether all were written before, in order and visibly.
        """
        self._granules.reads_of(actor)
        if self._reached or self._watches:
            return False
        return bool(self._read(*self._addresses, *granules, warp, actor, time, who))

    def write(self, where: range, warp: int, by: tuple[int, int], who: int) -> bool:
        """An actor at a time (`by`) overwrites granules by a copy that a warp issues.

        Returns whether all that was read or written there before is in order, and visible; if not,
        nothing is recorded.
        """
        if self._reached or self._watches:
            return False
        self._set(readers=self._granules.reading)
        place = where.start, len(where)
        return bool(self._write(self._addresses[1], *place, warp, *by, who))

    def until_stop(self, first: int, end: int, *, resumes: bool) -> Stop | None:
        """Compare entries of the log, up to one that needs Python; None if there is none.

        `resumes`: the entry before the first made it stop.
        """
        if not resumes:
            self._set(turn_of=-1)
        while True:
            self._set(readers=self._granules.reading)
            why = self._compare(*self._addresses, first, end)
            if why == 0:
                return None
            at = self._get("next")
            if why == TOLD:
                return Stop(at, told=True)
            if why == SUSPICIOUS:
                return self._suspicious(at - 1)
            assert why == READS_WANTED
            self._granules.reads_of(self._get("other"))
            first = at

    def _suspicious(self, entry: int) -> Stop:
        granule, met = self._get("granule"), None
        if granule >= 0:
            wrote = bool(self._get("wrote"))
            met = Conflict(0, self._get("other"), self._get("other_actor"), wrote)
        return Stop(
            entry, False, self._get("by"), granule, met, self._get("marked"), self._get("marked_by")
        )
