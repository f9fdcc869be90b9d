"""`WithinBlock`: races in global memory between threads of one block."""

from __future__ import annotations

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.ordering import Ordering, is_cas_loop
from gemmkit.emulator.codegen.shadow_layout import AGAINST_READER, CONFLICT_THREAD, IN_ORDER
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.between_blocks import BetweenBlocks, here
from gemmkit.emulator.sanitizer.block_knowledge import AHEAD, APART, KNOWN, UNFENCED, Place
from gemmkit.emulator.sanitizer.block_order import BlockOrder
from gemmkit.emulator.sanitizer.cross_block_races import Actor, instruction_numbers
from gemmkit.emulator.sanitizer.flag_order import FlagOrder
from gemmkit.emulator.sanitizer.flag_values import Looks
from gemmkit.emulator.sanitizer.global_copies import GlobalCopies
from gemmkit.emulator.sanitizer.global_findings import NOT_WAITED
from gemmkit.emulator.sanitizer.memory_faults import space_at
from gemmkit.emulator.sanitizer.orders import LANES_APART, lanes_apart, own_address_only
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names, actor_text, at, verb
from gemmkit.findings import Finding

_LANES_APART = {
    APART: "with no __syncwarp() before the flag that signals this",
    AHEAD: "with no __syncwarp() after another lane of this warp has waited for that",
}
# Separates shared memory from global memory.
_SHARED = 1 << 62


class WithinBlock:
    """The state of one worker: fences and atomics order its warps, besides barriers.

    What orders blocks also orders the warps of a block. If the kernel has nothing else that does,
    `BetweenBlocks` serves for both.
    """

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        between: BetweenBlocks,
        order: FlagOrder | None,
    ) -> None:
        """`order` follows mbarriers, if the kernel may have some."""
        self._names, self._worker, self._shadow = names, worker, shadow
        self._own = worker.kernel.orders_within_blocks
        self._block, self._order, self._between = -1, between.order, between
        self._by_mbarriers = order
        self._numbers = instruction_numbers(worker.kernel.areas)
        self._fences = worker.kernel.has_fences
        self._mbarriers = shadow.traits.explains

    def follow_copies(self, copies: GlobalCopies) -> None:
        """The kernel may have bulk copies."""
        self._copies = copies

    def _here(self) -> Place:
        """The running warp; no order is kept from blocks before it."""
        found = here(self._worker, self._shadow)
        if self._own and found.block != self._block:
            blocks = self._names.request.cluster_blocks
            self._block = found.block
            announces = bool(self._worker.kernel.data_loads)
            self._order = BlockOrder(
                self._worker.warps, blocks, None, self._by_mbarriers, announces=announces
            )
        return found

    def fence(self, now: int) -> None:
        """The running warp executes a fence."""
        if self._own:
            place = self._here()
            self._order.fence(place, now)

    def synchronize(self, looks: Looks, base: int, number: int) -> None:
        """The running warp has performed a strong access."""
        if not self._own:
            return
        action = self._names.actions[number]
        place = self._here()
        shared = _SHARED if space_at(action, base) == "shared" else 0
        self._order.synchronize(
            place,
            {address | shared: look for address, look in looks.items()},
            self._shadow.times(place.warp % self._worker.warps),
            Ordering.of(action),
            reads=action.operation != "store",
            writes=action.operation != "load",
        )

    def relation(self, other: Actor, time: int, thread: int) -> int:
        """How an access of another warp of the cluster at a time is ordered before what a thread of
        the running warp does now."""
        place, its = self._here(), self._warp_of(other)
        if self._by_mbarriers is not None and self._by_mbarriers.ordered_in_cluster()[its] >= time:
            return KNOWN
        lanes = other.thread % LANES, thread % LANES
        return self._order.before(place, place.cluster, its, time, *lanes)

    def is_of_warps(self, other: Actor, time: int) -> bool:
        """Whether what orders an access before holds for all lanes of both warps."""
        place = self._here()
        return self._order.all_know(place, place.cluster, self._warp_of(other), time)

    def is_announced(self, other: Actor, time: int) -> bool:
        """Whether the running warp has observed a flag that was written after such an access."""
        place, lane = self._here(), other.thread % LANES
        return self._order.is_announced(place, place.cluster, self._warp_of(other), time, lane)

    def _warp_of(self, other: Actor) -> int:
        return other.rank * self._worker.warps + other.thread // LANES

    def conflict(self, site: int, address: int, more: int) -> tuple[int, Finding | None]:
        """The running warp accesses what another thread of its block accessed, with no barrier
        between: the answer to native code, and the race if it is one."""
        against_reader, thread = more & AGAINST_READER, more >> CONFLICT_THREAD
        other = Actor.read(self._shadow.field("conflict"), self._numbers)
        place = self._here()
        time = self._shadow.field("conflict_time")
        if other.asynchronous:
            kind, follows = "reader" if against_reader else "writer", self._by_mbarriers
            if follows is None or self._copies.is_ordered(address, kind, follows.known):
                return 0, None
            if self._copies.is_released(address, kind, other):
                return 0, None
            number = self._worker.site_number(site)
            return 1, self._finding(number, thread, other, address, bool(against_reader), 0)
        its = self._warp_of(other)
        number, follows = self._worker.site_number(site), self._by_mbarriers
        if follows is not None and follows.ordered_in_cluster()[its] >= time:
            known = follows.known_to(place.warp % self._worker.warps, thread % LANES, its)
            if known is None or known >= time:
                return 0 if follows.is_ahead(place.warp % self._worker.warps) else IN_ORDER, None
            race = self._finding(number, thread, other, address, bool(against_reader), AHEAD)
            return 1, lanes_apart(race)
        if other.rank != self._worker.rank:
            how = self._between.relation(other, time, thread)
            if how != KNOWN and not self._between.is_race(number, other, how):
                return 0, None
        else:
            lane = other.thread % LANES
            how = self._order.before(place, place.cluster, its, time, lane, thread % LANES)
            if how == KNOWN and not self.is_of_warps(other, time):
                return 0, None
        if how == KNOWN:
            return IN_ORDER, None
        if is_cas_loop(*(self._names.actions[each] for each in (number, other.number))):
            return 0, None
        race = self._finding(number, thread, other, address, bool(against_reader), how)
        return 1, lanes_apart(race) if how in LANES_APART else race

    def _finding(
        self, number: int, thread: int, other: Actor, address: int, against_reader: bool, how: int
    ) -> Finding:
        names = self._names
        block, its = names.block(self._worker.field("block")), ""
        if other.rank != self._worker.rank:
            its = f" of block {names.member(other.block, other.rank)}"
        action = names.actions[number]
        site = names.site(number, names.thread(thread))
        met = names.site(other.number, names.thread(other.thread))
        array, offset = names.device(address)
        where = f"byte {offset} of '{array}'" if array else f"byte {offset} of an array"
        kind = "write after read" if against_reader else "write after write"
        if action.operation in ("load", "copy_async"):
            kind = "read after write"
        does, did = (verb(each, in_global=True) for each in (action, names.actions[other.number]))
        same_warp = not its and thread // LANES == other.thread // LANES
        between = "no __syncwarp() or barrier" if same_warp else "no barrier"
        missing = names.missing_barrier(self._worker, other.number, number, within_warp=same_warp)
        between_lines = missing.text if missing is not None else "between"
        if self._by_mbarriers is not None and self._mbarriers:
            between += ", and no arrival and wait at an mbarrier"
        if self._fences:
            between += " and no fence" if how == UNFENCED else ", fence and atomic"
        within_lines, between = f"with {between} between", f"with {between} {between_lines}"
        if self._fences:
            between += own_address_only(names.actions)
        if how in LANES_APART:
            between, missing = _LANES_APART[how], None
        if other.asynchronous:
            between, missing = NOT_WAITED, None
            kind = f"{kind.partition(' ')[0]} before wait"
        earlier = actor_text(names.actions[other.number], met, its)
        message = (
            f"{kind}: thread {site.thread} of block {block} {does} {where} at {site}, which "
            f"{earlier} {did}, {between}"
            if other.asynchronous
            else f"{kind}: thread {site.thread} of block {block} {does} {where} at {site}, which "
            f"thread {met.thread}{its} {did} at {met} {between}"
        )
        if number == other.number and same_warp and kind == "write after write":
            message = (
                f"{kind}: {at(site)} of block {block} writes {where}, to which thread "
                f"{met.thread} stores another value {within_lines}"
            )
        return Finding(
            check="racecheck",
            kind=kind,
            message=message,
            block=block,
            here=site,
            other=met,
            array=array,
            offset=offset,
            cause=missing.cause if missing is not None else "",
        )
