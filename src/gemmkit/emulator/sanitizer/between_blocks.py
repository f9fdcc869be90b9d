"""`BetweenBlocks`: cross-block races in global memory of a kernel whose blocks synchronize by
fences."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from gemmkit.emulator.codegen.addresses import space_of
from gemmkit.emulator.codegen.flag_waits import flag_waits
from gemmkit.emulator.codegen.layout import LANES, WINDOWS
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering, is_cas_loop, scope
from gemmkit.emulator.codegen.shadow_layout import (
    AGAINST_READER,
    AGAINST_STRONG,
    CONFLICT_THREAD,
    IN_ORDER,
)
from gemmkit.emulator.machine.turns import most_at_once
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.block_knowledge import KNOWN, UNFENCED, Place, Reached
from gemmkit.emulator.sanitizer.block_order import BlockOrder
from gemmkit.emulator.sanitizer.cross_block_races import (
    ANY_ORDER,
    Actor,
    cross_block_race,
    instruction_numbers,
)
from gemmkit.emulator.sanitizer.flag_values import Looks
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow
from gemmkit.emulator.sanitizer.orders import LANES_APART, BlockOrders, lanes_apart, ordinary_access
from gemmkit.emulator.sanitizer.releases import ANY_LANE
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names, is_bulk_reduction, verb
from gemmkit.findings import Finding

# A warp that accesses one address so often by one instruction waits for another block.
_POLLS, _POLLED = 500, 4096
# Of so many such turns of a block in a cluster, one is for other clusters.
_POLLS_OF_CLUSTER = 4
# Of blocks that wait for each other all the same.
_NO_FENCES = (
    "and a flag orders them only with a __threadfence() before it is set, and one after it is seen"
)
# Loads that bypass the L1 cache, where no stale line can be, need no fence before them.
_PAST_L1 = (".cg", ".cv")


def here(worker: Worker, shadow: BlockShadow) -> Place:
    """The running warp of the running block."""
    own = worker.warp_number(worker.field("running"))
    warp, steps = worker.rank * worker.warps + own, shadow.steps(own)
    barrier = shadow.field("barrier_time")
    return Place(worker.field("block"), worker.field("cluster_start"), warp, barrier, steps)


class BetweenBlocks:
    """The state of one worker; those of a cluster's blocks, and of blocks in turn, share what is
    released."""

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        known: GlobalShadow,
        peer: BetweenBlocks | None,
        reached: Reached | None,
    ) -> None:
        """`peer` is that of another worker, whose blocks may be in the same cluster; `reached` as
        for `BlockOrder`."""
        self._names, self._worker, self._shadow, self._known = names, worker, shadow, known
        of_peer = peer.order if peer is not None else None
        # By address, who last observed another block there, in the order of time.
        self.observed: dict[int, Actor] = {}
        # How often each warp of a block has accessed an address by an instruction.
        self._repeated: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._polling = -1
        blocks = names.request.cluster_blocks
        announces = bool(worker.kernel.data_loads)
        self.order: BlockOrder = BlockOrder(
            worker.warps, blocks, of_peer, reached, announces=announces
        )
        self._fences = worker.kernel.orders_blocks
        # The block and the race that stand for others of the same instructions, kind and array.
        self._made: dict[tuple[str, int, int, int, int], tuple[int, Finding]] = {}
        self._numbers = instruction_numbers(worker.kernel.areas)
        self._orders = BlockOrders(names.actions)

    def fence(self, now: int, *, in_block: bool) -> None:
        """The running warp executes a fence, possibly one for its block only."""
        if not in_block:
            self.order.fence(self._here(), now)

    def fence_proxy(self, now: int) -> None:
        """The running warp executes a proxy fence that covers global memory."""
        if self._fences:
            self.order.fence_proxy(self._here(), now)

    def _here(self) -> Place:
        return here(self._worker, self._shadow)

    def synchronize(self, looks: Looks, base: int, number: int) -> None:
        """The running warp has performed a strong access."""
        action = self._names.actions[number]
        if Ordering.of(action).in_block:
            # It may still wait for another block, of the cluster or, by mistake, of another one.
            if self._names.request.cluster_blocks > 1 or base < min(WINDOWS.values()):
                self._note_poll(self._here(), number, base)
            return
        at, here = self._here(), min(WINDOWS.values())
        looks = {address: look for address, look in looks.items() if address < here}
        warp = at.warp % self._worker.warps
        observed = self.order.synchronize(
            at,
            looks,
            self._shadow.times(warp),
            Ordering.of(action),
            reads=action.operation != "store",
            writes=action.operation != "load",
        )
        for address in looks:
            self._note_poll(at, number, address)
        if action.operation == "reduction" or number in self._worker.kernel.data_loads:
            return
        for address in observed:
            self.observed.pop(address, None)
            self.observed[address] = Actor(at.block, warp * LANES, number)

    def _note_poll(self, at: Place, number: int, address: int) -> None:
        """A warp has performed a strong access by an instruction at an address."""
        access = at.warp, number, address
        if at.block != self._polling or len(self._repeated) > _POLLED:
            self._polling = at.block
            self._repeated.clear()
        self._repeated[access] += 1
        times = self._repeated[access]
        if times % _POLLS:
            return
        in_cluster = self._names.request.cluster_blocks > 1
        if in_cluster and times % (_POLLS_OF_CLUSTER * _POLLS):
            # First the other blocks of the cluster.
            self._worker.end_turn(polls=True)
        elif most_at_once(self._worker.kernel, self._names.request) > 1:
            self._worker.end_poll()
        elif in_cluster:
            self._worker.end_turn(polls=True)

    def conflict(self, site: int, address: int, more: int) -> tuple[int, Finding | None]:
        """The running warp accesses what another block accessed: the answer to native code, and the
        race if it is one."""
        against_reader, thread = more & AGAINST_READER, more >> CONFLICT_THREAD
        kind = "strong" if more & AGAINST_STRONG else "reader" if against_reader else "writer"
        number = self._worker.site_number(site)
        met = self._known.at(address, kind)
        how, found = self.meets(number, thread, address, met, kind)
        other = Actor.read(met[0], self._numbers)
        if how == KNOWN and self.is_of_warps(other, met[1]):
            return IN_ORDER, None
        return int(found is not None), found

    def relation(self, other: Actor, time: int, thread: int | None = None) -> int:
        """How fences and atomics order an access of another block at a time before what the running
        warp, or a thread of it, does now."""
        here, warp = self._here(), self._warp_of(other)
        lane = ANY_LANE if other.asynchronous else other.thread % LANES
        mine = ANY_LANE if thread is None else thread % LANES
        return self.order.before(here, other.block, warp, time, lane, mine)

    def is_of_warps(self, other: Actor, time: int) -> bool:
        """Whether what orders an access before holds for all lanes of both warps."""
        return self.order.all_know(self._here(), other.block, self._warp_of(other), time)

    def is_announced(self, other: Actor, time: int) -> bool:
        """Whether the running warp has observed a flag that was written after such an access."""
        at, lane = self._here(), other.thread % LANES
        return self.order.is_announced(at, other.block, self._warp_of(other), time, lane)

    def is_visible(self, other: Actor, time: int) -> bool:
        """Whether such an access, which is ordered before, is visible to the asynchronous proxy."""
        return self.order.is_visible(self._here(), other.block, self._warp_of(other), time)

    def _warp_of(self, other: Actor) -> int:
        return other.rank * self._worker.warps + other.thread // LANES

    def is_race(self, number: int, other: Actor, how: int) -> bool:
        """Whether an access by an instruction races with one of another block ordered so."""
        if how == KNOWN:
            return False
        action = self._names.actions[number]
        pair = action, self._names.actions[other.number]
        if is_cas_loop(*pair) and "block" not in map(scope, pair):
            return False
        loads = verb(action, in_global=True) == "reads"
        past_l1 = any(word in action.form.opcode for word in _PAST_L1)
        # Atomics and the like also bypass the L1 cache.
        strong = Ordering.of(action).between_blocks.strong or is_bulk_reduction(action)
        return how != UNFENCED or not ((loads and past_l1) or strong)

    @cached_property
    def _polls(self) -> bool:
        """Whether threads wait for flags that are not in shared memory."""
        actions = self._names.actions
        waits = flag_waits(self._worker.kernel.flow, actions)
        return any(space_of(actions[each]) != "shared" for each in waits)

    def _look(self, other: Actor, time: int) -> Action | None:
        """The last access by which the running block has observed another block and, if there is
        any of these, that such an access is released."""
        block = self._worker.field("block")
        looks = {at: each.number for at, each in self.observed.items() if each.block == block}
        lane = ANY_LANE if other.asynchronous else other.thread % LANES
        signals = self.order.signals(self._here(), other.block, self._warp_of(other), time, lane)
        own = [looks[each] for each in signals if each in looks]
        numbers = own or [*looks.values()]
        return self._names.actions[numbers[-1]] if numbers else None

    def _why(self, number: int, met: tuple[int, int], how: int, *, after_read: bool) -> str:
        """Why an access by an instruction races with one of another block (`met`) ordered so."""
        actions, other = self._names.actions, Actor.read(met[0], self._numbers)
        if how in LANES_APART:
            return LANES_APART[how]
        if not self._fences:
            return f"{ANY_ORDER}, {_NO_FENCES}" if self._polls else ANY_ORDER
        ordinary = ordinary_access(actions[number], actions[other.number])
        if ordinary and how != UNFENCED:
            return ordinary
        look = self._look(other, met[1])
        return self._orders.missing(how, look, after_read=after_read)

    def meets(
        self, number: int, thread: int, address: int, met: tuple[int, int], kind: str
    ) -> tuple[int, Finding | None]:
        """A thread of the running warp accesses by an instruction what another block accessed
        (`met`: the actor and the time) as the last "writer", "reader" or by a "strong" write: how
        the two are ordered, and the race if it is one.

        Of races that differ only in the address and the threads, the first one of a block stands
        for those after it.
        """
        (note, time), against_reader = met, kind == "reader"
        other, block = Actor.read(note, self._numbers), self._worker.field("block")
        how = self.relation(other, time, thread)
        if not self.is_race(number, other, how):
            return how, None
        kind = "write after read" if against_reader else "write after write"
        if verb(self._names.actions[number], in_global=True) == "reads":
            kind = "read after write"
        alike = kind, number, other.number, self._known.region(address), how
        first, found = self._made.get(alike, (block + 1, None))
        if found is None or block < first:
            me, why = (
                Actor(block, thread, number),
                self._why(number, met, how, after_read=against_reader),
            )
            found = cross_block_race(self._names, kind, address, other, me, why=why)
            if how in LANES_APART:
                found = lanes_apart(found)
            self._made[alike] = block, found
        return how, found
