"""`Phases`: the instructions on the mbarriers of a running block, and on bulk copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES, WINDOW_BYTES, WINDOWS
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.cluster import (
    CLUSTER_BARRIER,
    cluster_address,
    divided,
    reaches_peers,
)
from gemmkit.emulator.isa.mbarriers import (
    OBJECT_BYTES,
    Misuse,
    State,
    awaited_phase,
    completes,
    object_at,
    received,
    updated,
)
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.block_waits import BlockWaits
from gemmkit.emulator.machine.bulk import BulkCopies
from gemmkit.emulator.machine.destinations import copies_of
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.transfers import count_transfers
from gemmkit.emulator.machine.warp_stores import WarpStores
from gemmkit.emulator.machine.worker import Worker


class Phases(BlockWaits):
    """The mbarriers of the block that a worker runs."""

    def __init__(self, worker: Worker, memory: DeviceMemory) -> None:
        super().__init__(worker, BulkCopies(worker, memory, self._deliver))
        self._memory = memory

    def execute(
        self, warp: int, action: Action, operands: Sequence[NDArray[Any]], active: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        """Execute an instruction in some lanes of a warp, from the lowest one on.

        Raises:
            Refusal: it is not valid in one of them.
        """
        self._begin()
        if action.operation == "bulk_store" and self._send(warp, action, operands, active):
            return ()
        self._lanes.adopt()
        try:
            return self._execute(warp, action, operands, active)
        finally:
            self._lanes.publish()

    def _execute(
        self, warp: int, action: Action, operands: Sequence[NDArray[Any]], active: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        self._copies.tick()
        if action.operation.startswith("barrier_cluster"):
            return self._at_cluster_barrier(warp, action, active)
        if action.operation.startswith("bulk"):
            made: list[Copy] = []
            for lane in np.flatnonzero(active).tolist():
                values = [int(each[lane]) for each in operands]
                made += self._bulk(action, warp * LANES + lane, values)
            if made:
                count_transfers(self._worker, action, made)
            return ()
        arrives = action.operation in ("mbarrier_arrive", "mbarrier_arrive_copies")
        if arrives and self._worker.observer is not None:
            bits = np.packbits(active, bitorder="little").view(np.uint32)
            self._worker.observer.releases(warp, action.number, int(bits[0]))
        *given, addresses = operands
        chosen = addresses[active], given[0][active] if given else addresses[active]
        lanes = np.flatnonzero(active)
        uniform = all((each == each[0]).all() for each in chosen)
        operand: list[Any] = given[0].tolist() if given else [None] * LANES
        if action.operation in ("mbarrier_test", "mbarrier_try"):
            done = np.zeros(LANES, bool)
            awaited: dict[int, int] = {}
            mask = int((np.uint64(1) << lanes.astype(np.uint64)).sum())
            for lane in lanes[:1].tolist() if uniform else lanes.tolist():
                thread, raw = warp * LANES + lane, int(addresses[lane])
                asking = mask if uniform else 1 << lane
                done[lane] = self._ask(action, (thread, asking), raw, operand[lane], awaited)
            if uniform:
                done[active] = done[lanes[0]]
            self._lanes.answer(warp, action, mask, awaited, some=bool(done.any()))
            return (done,)
        tokens = np.zeros(LANES, np.uint64)
        count = self._together(action, int(addresses[lanes[0]]), operand[lanes[0]], len(lanes))
        if uniform and count:
            lane = int(lanes[-1])
            thread, raw = warp * LANES + lane, int(addresses[lane])
            before = self._update(action, thread, raw, count * len(lanes), {}, last=True)
            tokens[lanes] = before - count * np.arange(len(lanes)).astype(np.uint64)
            return (tokens,)
        # By address, the last thread that has completed a phase.
        ended: dict[int, int] = {}
        for lane in lanes.tolist():
            last = not (active & (addresses == addresses[lane]))[lane + 1 :].any()
            thread, raw = warp * LANES + lane, int(addresses[lane])
            tokens[lane] = self._update(action, thread, raw, operand[lane], ended, last=last)
        return (tokens,)

    def _together(self, action: Action, raw: int, operand: int | None, lanes: int) -> int:
        """The count with which each lane arrives, if the lanes' arrivals are the same as a single
        one: plain ones that complete the phase at most with the last; else 0."""
        form = action.form
        if action.operation != "mbarrier_arrive" or form["K"] or form["D"] != "arrive":
            return 0
        count = 1 if operand is None else operand
        try:
            home, address = self._home(action, raw)
            state = State.of(home.read(address))
        except Misuse:
            return 0
        return count if count * lanes <= state.pending else 0

    def _ask(
        self,
        action: Action,
        asking: tuple[int, int],
        raw: int,
        operand: int,
        awaited: dict[int, int],
    ) -> bool:
        """Whether the phase for which a thread asks, and for whom else (`asking`: it and lanes of
        its warp), has completed; if not, it is added to `awaited`."""
        (thread, lanes), observer = asking, self._worker.observer
        try:
            address = self._home(action, raw)[1]
            phase = awaited_phase(action.form, operand)
            done = State.of(self.read(address)).phase != phase
        except Misuse as misuse:
            raise self._refusal(misuse, action, thread, raw) from None
        if observer is not None:
            observer.used(action.number, thread, address)
            if done:
                observer.waited(action.number, thread, address, lanes)
        if not done:
            awaited[address] = phase
        return done

    def _bulk(self, action: Action, thread: int, operands: list[int]) -> list[Copy]:
        """Execute a thread's instruction on bulk copies; the copies that it issues."""
        made: list[Copy] = []
        if action.operation == "bulk_commit":
            self._copies.commit(thread)
        elif action.operation == "bulk_wait":
            self._copies.wait(thread, operands[0], read=action.form["K"] == "read")
        elif action.operation in ("bulk_copy", "bulk_store", "bulk_tensor"):
            made = copies_of(self._worker, self._memory, action, thread, operands)
            for copy in made:
                if copy.barrier is not None:
                    self._check_barrier(copy, copy.barrier)
                self._copies.issue(copy)
        elif self._worker.observer is not None:
            if action.operation == "bulk_acquire_map":
                self._worker.observer.acquired_map(thread, operands[-1])
            else:
                self._worker.observer.released_maps()
        return made

    def _send(
        self, warp: int, action: Action, operands: Sequence[NDArray[Any]], active: NDArray[np.bool_]
    ) -> bool:
        """Execute `st.async` or `red.async` in all lanes at once; returns whether that is the same
        as one after the other, and was done."""
        if not active.any() or self._copies.are_delayed:
            return False
        stores = WarpStores.of(self._worker, warp, action, operands, active)
        if stores is None:
            return False
        worker = self._worker.peers[stores.rank]
        home = self if worker is self._worker else self._of(worker)
        before = home.read(stores.barrier)
        after = received(before, stores.nbytes, len(stores.lanes))
        observer = self._worker.observer
        if after is None or (observer is not None and not observer.sent(stores)):
            return False
        stores.perform(worker.shared)
        home.write(stores.barrier, after.word)
        if after.phase != State.of(before).phase:
            home.completed(stores.barrier, after)
        self._worker.count_transfer(action.number, 1, stores.sectors)
        return True

    def _check_barrier(self, copy: Copy, barrier: int) -> None:
        """The mbarrier of a copy must be valid."""
        try:
            home, address = self._home(copy.action, barrier)
            State.of(home.read(address))
        except Misuse as misuse:
            raise self._refusal(misuse, copy.action, copy.thread, barrier) from None

    def _deliver(self, copy: Copy) -> None:
        """Count the bytes of a copy that has taken effect at its mbarrier."""
        assert copy.barrier is not None
        try:
            home, address = self._home(copy.action, copy.barrier)
            state = State.of(home.read(address))
            after = state.expect(-copy.nbytes).settled()
        except Misuse as misuse:
            raise self._refusal(misuse, copy.action, copy.thread, copy.barrier) from None
        home.write(address, after.word)
        if self._worker.observer is not None:
            self._worker.observer.delivered(copy)
        if copy.box is not None:
            home._boxes.setdefault(address, set()).add(copy.nbytes)
        if after.phase != state.phase:
            home.completed(address, after)

    def _refusal(self, misuse: Misuse, action: Action, thread: int, address: int) -> Refusal:
        kernel = self._worker.flow.kernel
        address %= WINDOW_BYTES
        rank, within = divided(address, self._worker.rank)
        if not 0 <= rank < len(self._worker.peers):
            rank, within = self._worker.rank, address
        unset = misuse.kind == "invalid mbarrier" and "not initialized" in misuse.what
        peer = rank if rank != self._worker.rank and unset else None
        return Refusal.at_shared(misuse, action.number, thread, kernel, within, peer)

    def _home(self, action: Action, address: int) -> tuple[Phases, int]:
        """The block that has an mbarrier, and the address there; bulk copies accept generic
        addresses too."""
        if not action.form.modifiers.get("S", "shared") or address >= WINDOWS["shared"]:
            address -= WINDOWS["shared"]
        home, within = self, address
        if reaches_peers(action.form):
            rank, within = divided(address, self._worker.rank)
            if rank >= len(self._worker.peers):
                raise Misuse(
                    "invalid mbarrier",
                    f"uses an mbarrier of rank {rank}, of which its cluster has no block",
                )
            home = self if rank == self._worker.rank else self._of(self._worker.peers[rank])
        worker = self._worker
        return home, object_at(within, worker.shared_base, worker.shared_end)

    def _of(self, worker: Worker) -> Phases:
        """The mbarriers of another block of the cluster."""
        if worker.phases is None:
            worker.phases = Phases(worker, self._memory)
        assert isinstance(worker.phases, Phases)
        worker.phases._begin()
        return worker.phases

    def _update(
        self,
        action: Action,
        thread: int,
        raw: int,
        operand: int | None,
        ended: dict[int, int],
        *,
        last: bool,
    ) -> int:
        """Perform a thread's instruction, `last` of its warp; returns the 8 bytes before it. If it
        completes a phase, `ended` has the thread then, by its address."""
        form = action.form
        try:
            home, address = self._home(action, raw)
            before = home.read(address)
            after = updated(form, before, operand)
        except Misuse as misuse:
            raise self._refusal(misuse, action, thread, raw) from None
        home.write(address, after)
        place = address if home is self else cluster_address(home._worker.rank, address)
        self._tell(action, thread, place, ended.get(raw), last=last)
        kind = form.modifiers.get("K")
        if action.operation == "mbarrier_init":
            home._announced[address // OBJECT_BYTES] = 0
            home._boxes.pop(address, None)
        elif kind == "expect_tx":
            home._announced[address // OBJECT_BYTES] += operand or 0
        if completes(form, before, after):
            ended[raw] = thread
            home.completed(address, State.of(after))
        return before

    def _tell(
        self, action: Action, thread: int, address: int, ended: int | None, *, last: bool
    ) -> None:
        observer, number = self._worker.observer, action.number
        if observer is None:
            return
        if action.operation == "mbarrier_init":
            observer.initialized(number, thread, address)
        elif action.operation == "mbarrier_invalidate":
            observer.invalidated(number, thread, address)
        else:
            observer.used(number, thread, address)
            if last and action.operation.startswith("mbarrier_arrive"):
                observer.arrived(number, thread, address, ended)

    def _at_cluster_barrier(
        self, warp: int, action: Action, active: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        """`barrier.cluster` in some lanes of a warp."""
        for worker in self._worker.peers:
            if worker is not self._worker:
                self._of(worker)
        lanes = int((np.uint64(1) << np.flatnonzero(active).astype(np.uint64)).sum())
        thread = warp * LANES + int(active.argmax())
        try:
            passes = self._cluster.execute(warp, action, lanes)
        except Misuse as misuse:
            where = (action.number, thread, "", 0)
            raise Refusal(misuse.kind, misuse.what, *where) from None
        if action.operation == "barrier_cluster_wait":
            awaited = {} if passes else {CLUSTER_BARRIER: self._cluster.phase}
            self._lanes.answer(warp, action, lanes, awaited, some=passes)
        return ()
