"""The findings about asynchronous copies, and conflicts that vector clocks find, in words."""

from __future__ import annotations

from functools import cached_property

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import LOADED, ORDERED, SENT, UPDATED
from gemmkit.emulator.isa.bulk_copies import is_reduction
from gemmkit.emulator.isa.warpgroup_forms import OPERATION
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.sanitizer.clocks import Clocks
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.granules import Conflict, instruction_of, thread_of
from gemmkit.emulator.sanitizer.lane_findings import LaneFindings
from gemmkit.emulator.sanitizer.mbarrier_findings import MbarrierFindings
from gemmkit.emulator.sanitizer.orders import LOST_FLAG, OLD_FLAG, UNINITIALIZED_FLAG, missing_order
from gemmkit.emulator.sanitizer.parties import Parties
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import AccessSite

_VERBS = {LOADED: "reads", UPDATED: "updates", SENT: "copies to"}
_NO_WGMMA_WAIT = "with no wgmma.wait_group for it, and synchronization after that, between"
# A stage that is filled again before its consumers have read it.
REFILL = "overwritten before read"
NO_COPY_WAIT = (
    "with no cp.async wait for it by that thread, and synchronization after that, between"
)
_NO_GROUP_WAIT = (
    "with no cp.async.bulk.wait_group.read for it, and synchronization after that, between"
)


def is_refill(clocks: Clocks, who: int | None, met: Conflict) -> bool:
    """Whether an access met a bulk copy that overwrote what an earlier one had brought before
    anybody read it. A party (`who`) that has not waited for the earlier one is too early itself."""
    refill = clocks.refills.get((met.actor, met.other))
    if refill is None or who is None:
        return refill is not None
    known = clocks.of[thread_of(who) // LANES, ORDERED, met.actor]
    return bool(known >= refill.overwritten)


def is_unordered_copy(clocks: Clocks, who: int, met: Conflict) -> bool:
    """Whether a party writes what a copy of another one's bulk group reads, and nothing orders the
    issue of the copy before that: then a wait alone would not help, a barrier is missing."""
    warp = thread_of(who) // LANES
    return not met.wrote and not clocks.knows_issue(warp, met.actor, met.other)


def not_waited(clocks: Clocks, who: int | None, met: Conflict, parties: Parties) -> str:
    """What is missing between a bulk copy and an access to its bytes, by a party or a copy."""
    actor = met.actor
    if is_refill(clocks, who, met):
        released = clocks.refills[actor, met.other].released
        if released is None:
            return "too early: its thread has not waited for the release of what it overwrites"
        return (
            f"too early: no arrival at the mbarrier at {parties.place(released)[2]}, for which its "
            "thread waits before, has to follow this access"
        )
    if actor in clocks.completed_early:
        return (
            "after a phase of its mbarrier that completes before all bytes have arrived: "
            "expect_tx announces fewer than are copied"
        )
    return "with no completed wait for that copy between"


class AsynchronousFindings(MbarrierFindings, LaneFindings):
    """Adds findings to a collection."""

    def __init__(self, names: Names, collection: Collection) -> None:
        super().__init__(names, collection)
        self._actions = names.actions

    @cached_property
    def _unordered(self) -> str:
        return missing_order(self._actions)

    def conflict(
        self, block: int, who: int, address: int, met: Conflict, kind: int, clocks: Clocks
    ) -> None:
        """A thread's access is not ordered after an earlier one."""
        reads = kind == LOADED
        array, offset, place = self.parties.place(address)
        there_by = met.other
        here, there = self.parties.site(who), self.parties.site(there_by)
        if is_unordered_copy(clocks, who, met):
            told = (
                f"the {self.parties.copy_name(instruction_of(there_by))} by "
                f"{self.parties.name(there_by, block)} reads {place}, which "
                f"{self.parties.name(who)} {_VERBS.get(kind, 'writes')}, {self._unordered}"
            )
            self._add(block, "racecheck", "read after write", told, there, here, array, offset)
            return
        by_proxy = clocks.warps <= met.actor < clocks.warps + clocks.places
        if by_proxy and is_refill(clocks, who, met):
            name = REFILL
        elif met.actor >= clocks.warps:
            name = "read before wait" if reads else "write before wait"
        elif met.wrote:
            name = "read after write" if reads else "write after write"
        else:
            name = "write after read"

        def text() -> str:
            by, between = self.parties.name(there_by), self._unordered
            if by_proxy and self._is_wgmma(there_by):
                by, between = f"the wgmma by {by}", _NO_WGMMA_WAIT
            elif by_proxy:
                by = f"the {self.parties.copy_name(instruction_of(there_by))} by {by}"
                between = not_waited(clocks, who, met, self.parties)
            elif met.actor >= clocks.warps:
                by, between = f"the cp.async by {by}", NO_COPY_WAIT
            does, before = _VERBS.get(kind, "writes"), "writes" if met.wrote else "reads"
            return f"{self.parties.name(who, block)} {does} {place}, which {by} {before}, {between}"

        def follows() -> str:
            return self._cause_of_last_wait(there_by) if by_proxy and met.wrote else ""

        self._add(block, "racecheck", name, text, here, there, array, offset, follows=follows)

    def uninitialized_flag(
        self, block: int, who: int, address: int, first: int, *, writes: bool
    ) -> None:
        """A thread reads or writes a flag, and the first write to it, by another one, may come
        later."""
        array, offset, place = self.parties.place(address)
        text = (
            f"{self.parties.name(who, block)} {'writes' if writes else 'reads'} {place}, which "
            f"{self.parties.name(first)} writes for the first time, {self._unordered}: "
            f"{LOST_FLAG if writes else OLD_FLAG}"
        )
        here, there = self.parties.site(who), self.parties.site(first)
        self._add(block, "initcheck", UNINITIALIZED_FLAG, text, here, there, array, offset)

    def copy_conflict(
        self,
        block: int,
        copy: Copy,
        address: int,
        met: Conflict,
        clocks: Clocks,
        *,
        writes: bool,
    ) -> None:
        """A bulk copy is not ordered after an earlier access to shared memory."""
        array, offset, place = self.parties.place(address)
        there_by = met.other
        here, there = self._copy_site(copy), self.parties.site(there_by)
        of_wgmma, does = self._is_wgmma(there_by), "write" if writes else "read"
        by_proxy = clocks.warps <= met.actor < clocks.warps + clocks.places
        if met.actor >= clocks.warps and not of_wgmma:
            name = f"{does} before wait"
        else:
            name = f"{does} after {'write' if met.wrote else 'read'}"

        def text() -> str:
            other, between = self.parties.name(there_by), self._unordered
            if of_wgmma:
                other, between = f"the wgmma by {other}", _NO_WGMMA_WAIT
            elif by_proxy:
                other = f"the {self.parties.copy_name(instruction_of(there_by))} by {other}"
                between = not_waited(clocks, None, met, self.parties)
                if clocks.mbarrier_of(met.actor) is None and not met.wrote:
                    between = _NO_GROUP_WAIT
            elif met.actor >= clocks.warps:
                other, between = f"the cp.async by {other}", NO_COPY_WAIT
            return (
                f"the {self.parties.copy_name(copy.action.number)} by "
                f"{self.parties.named(here, block)} {does}s "
                f"{place}, which {other} {'writes' if met.wrote else 'reads'}, {between}"
            )

        def follows() -> str:
            issuer = self.parties.first_warp + copy.thread // LANES
            return self.parties.cause_of_wait(issuer) if writes else ""

        self._add(block, "racecheck", name, text, here, there, array, offset, follows=follows)

    def no_proxy_fence(
        self, block: int, copy: Copy, address: int, other: int, *, writes: bool
    ) -> None:
        """A bulk copy reads or overwrites what a generic write may not have made visible."""
        array, offset, place = self.parties.place(address)
        there_by = other
        here, there = self._copy_site(copy), self.parties.site(there_by)
        text = (
            f"the {self.parties.copy_name(copy.action.number)} by "
            f"{self.parties.named(here, block)} "
            f"{'writes' if writes else 'reads'} "
            f"{place}, which {self.parties.name(there_by)} writes "
            f"{self.parties.missing_fence(other, address)}"
        )
        cause = self._names.missing_fences.cause(instruction_of(other))
        self._add(
            block, "racecheck", "missing proxy fence", text, here, there, array, offset, cause=cause
        )

    def unfenced_barrier(self, block: int, copy: Copy, who: int) -> None:
        """A bulk copy counts at an mbarrier that the asynchronous proxy may not see yet."""
        array, offset, place = self.parties.place(copy.barrier or 0)
        there_by = who
        here, there = self._copy_site(copy), self.parties.site(there_by)
        text = (
            f"the bulk copy by {self.parties.named(here, block)} uses the mbarrier at "
            f"{place}, which {self.parties.name(there_by)} initializes with no "
            "fence.mbarrier_init or "
            f"fence.proxy.async between"
        )
        self._add(
            block, "racecheck", "mbarrier not visible", text, here, there, array, offset,
            forgiven_by="current hardware within a block",
        )  # fmt: skip

    def overwritten(self, block: int, copy: Copy, address: int, who: int) -> None:
        """A bulk copy overwrites an mbarrier, which a party initialized."""
        array, offset, place = self.parties.place(address)
        here, there = self._copy_site(copy), self.parties.site(who)
        text = (
            f"the {self.parties.copy_name(copy.action.number)} by "
            f"{self.parties.named(here, block)} overwrites the mbarrier at {place}, which "
            f"{self.parties.name(who)} initializes, without mbarrier.inval between"
        )
        self._add(block, "synccheck", "mbarrier overwritten", text, here, there, array, offset)

    def uninitialized_source(self, block: int, copy: Copy, unset: int, writer: int | None) -> None:
        """A bulk copy reads an address in shared memory that was never written, or to which a
        party, `writer`, has written a value that was never set."""
        array, offset, _ = self.parties.place(max(unset, copy.start))
        self._uninitialized(block, copy, array, offset, writer)

    def uninitialized_global(self, block: int, copy: Copy, array: str, offset: int) -> None:
        """A bulk copy reads global memory that was never written."""
        self._uninitialized(block, copy, array, offset, None)

    def _uninitialized(
        self, block: int, copy: Copy, array: str, offset: int, writer: int | None
    ) -> None:
        here, there = self._copy_site(copy), None
        why = "was never written"
        if writer is not None:
            there = self.parties.site(writer)
            why = f"{self.parties.name(writer)} writes with a value that was never set"
        text = (
            f"the bulk copy by {self.parties.named(here, block)} reads byte {offset} of "
            f"'{array}', which {why}"
        )
        self._add(block, "initcheck", "uninitialized", text, here, there, array, offset)

    def past_end(self, block: int, copy: Copy, array: str, size: int, offset: int) -> None:
        """A bulk copy extends beyond the end of a variable in shared memory."""
        here = self._copy_site(copy)
        text = (
            f"the bulk copy by {self.parties.named(here, block)} accesses {copy.nbytes:,} bytes "
            "from byte "
            f"{offset} of '{array}', which has {size:,} bytes"
        )
        self._add(block, "memcheck", "out of bounds", text, here, None, array, offset)

    def map_not_acquired(self, block: int, copy: Copy) -> None:
        """A tensor map that the kernel wrote is used before the thread's warp acquired it."""
        self._of_map(
            block,
            copy,
            "tensor map not fenced",
            "which this launch writes, with no fence.proxy.tensormap::generic.acquire of it "
            "between by the thread's warp",
        )

    def map_not_released(self, block: int, copy: Copy) -> None:
        """A tensor map that the kernel wrote is used although nobody released it."""
        self._of_map(
            block,
            copy,
            "tensor map not fenced",
            "which this launch writes, with no fence.proxy.tensormap::generic.release by the "
            "writer between",
        )

    def _of_map(self, block: int, copy: Copy, kind: str, what: str) -> None:
        array, offset = self._names.device(copy.map_at)
        here = self._copy_site(copy)
        text = (
            f"the tensor copy by {self.parties.named(here, block)} uses the tensor map at byte "
            f"{offset} "
            f"of '{array}', {what}"
        )
        self._add(block, "racecheck", kind, text, here, None, array, offset)

    def map_past_end(self, block: int, copy: Copy, array: str, offset: int, left: int) -> None:
        """A tensor map reaches past the end of the allocation in which its tensor begins."""
        assert copy.box is not None
        here, each = self._copy_site(copy), copy.box.map
        text = (
            f"the tensor map that {self.parties.named(here, block)} uses does not fit "
            f"'{array}': its "
            f"tensor of {'x'.join(map(str, each.sizes))} {each.element} elements (innermost "
            f"dimension first) has {each.span:,} bytes from byte {offset}, where {left:,} are left"
        )
        self._add(block, "memcheck", "tensor map past the end", text, here, None, array, offset)

    def never_waited(self, block: int, copy: Copy) -> None:
        """A block ends although a copy from its shared memory may still be in flight."""
        array, offset, place = self.parties.place(copy.start)
        here = self._copy_site(copy)
        what = "reduction" if is_reduction(copy.action.form) else "copy"
        text = (
            f"the block ends without a cp.async.bulk.wait_group for the bulk {what} by "
            f"{self.parties.named(here, block)}, which reads {place}"
        )
        self._add(
            block, "synccheck", "copy not waited for", text, here, None, array, offset,
            forgiven_by="current hardware if nothing reuses the memory",
        )  # fmt: skip

    def _is_wgmma(self, who: int) -> bool:
        return self._names.actions[instruction_of(who)].operation == OPERATION

    def _copy_site(self, copy: Copy) -> AccessSite:
        return self._names.site(copy.action.number, self._names.thread(copy.thread))
