"""`Phases`: the mbarriers of a running block, and the warps that wait for their phases.

A warp whose `try_wait` fails runs other lanes of its own, or stops until the phase completes. If
all warps of the block have stopped, the time limit of every `try_wait` expires: it returns false.
The block is deadlocked once that has changed nothing for `PATIENCE` times. A `test_wait` that fails
ends the turn of its warp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import (
    AT_PHASE,
    HELD,
    LANES,
    RUNNING,
    TURNED,
    WARP,
    WINDOW_BYTES,
    WINDOWS,
)
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.runtime.blocks import CALL_COST
from gemmkit.emulator.isa.mbarriers import (
    OBJECT_BYTES,
    PATIENCE,
    Misuse,
    State,
    awaited_phase,
    completes,
    object_at,
    state_text,
    updated,
)
from gemmkit.emulator.machine.asynchronous import Copy, Wait
from gemmkit.emulator.machine.bulk import BulkCopies
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.native_waits import adopt, publish
from gemmkit.emulator.machine.paths import Paths
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.shared_names import shared_array

_POLLS = "mbarrier_test"
_STATUS, _VERDICT, _BLOCK = (WARP[name] // 4 for name in ("status", "verdict", "block"))


class Phases:
    """The mbarriers of the block that a worker runs."""

    def __init__(self, worker: Worker, memory: DeviceMemory) -> None:
        self._worker = worker
        self._copies = BulkCopies(worker, memory, self._deliver)
        self._running_block = -1
        # Where native code executes instructions too, it keeps what warps wait for.
        self._natively = not worker.grid.through_python
        whole = len(worker.shared) // OBJECT_BYTES * OBJECT_BYTES
        self._words = worker.shared[:whole].view(np.uint64)
        self._announced = worker.announced
        self._block_of: dict[int, int] = {}
        for block, each in enumerate(worker.flow.blocks):
            self._block_of |= dict.fromkeys(range(each.start, each.end), block)

    def _begin(self) -> None:
        """Forget the block before this one."""
        block = self._worker.field("block")
        if self._running_block != block:
            self._running_block = block
            self._waits: list[list[Wait]] = [[] for _ in range(self._worker.warps)]
            self._expired: list[set[int]] = [set() for _ in range(self._worker.warps)]
            # The sizes of the boxes that tensor copies have brought to an mbarrier.
            self._boxes: dict[int, set[int]] = {}
            self._last_stop: object = None
            self._fruitless = 0
            self._copies.begin()

    def execute(
        self, warp: int, action: Action, operands: Sequence[NDArray[Any]], active: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        """Execute an instruction in some lanes of a warp, from the lowest one on.

        Raises:
            Refusal: it is not valid in one of them.
        """
        self._begin()
        if not self._natively:
            return self._execute(warp, action, operands, active)
        self._adopt()
        try:
            return self._execute(warp, action, operands, active)
        finally:
            publish(self._worker, self._waits, self._expired)

    def _execute(
        self, warp: int, action: Action, operands: Sequence[NDArray[Any]], active: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        self._copies.tick()
        if action.operation.startswith("bulk"):
            for lane in np.flatnonzero(active).tolist():
                self._bulk(action, warp * LANES + lane, [int(each[lane]) for each in operands])
            return ()
        *given, addresses = operands
        chosen = addresses[active], given[0][active] if given else addresses[active]
        lanes = np.flatnonzero(active)
        uniform = all((each == each[0]).all() for each in chosen)
        operand: list[Any] = given[0].tolist() if given else [None] * LANES
        if action.operation in ("mbarrier_test", "mbarrier_try"):
            done = np.zeros(LANES, bool)
            awaited: dict[int, int] = {}
            for lane in lanes[:1].tolist() if uniform else lanes.tolist():
                thread, raw = warp * LANES + lane, int(addresses[lane])
                done[lane] = self._ask(action, thread, raw, operand[lane], awaited)
            if uniform:
                done[active] = done[lanes[0]]
            mask = int((np.uint64(1) << lanes.astype(np.uint64)).sum())
            self._answer(warp, action, mask, awaited, some=bool(done.any()))
            return (done,)
        tokens = np.zeros(LANES, np.uint64)
        count = self._together(action, int(addresses[lanes[0]]), operand[lanes[0]], len(lanes))
        if uniform and count:
            lane = int(lanes[-1])
            thread, raw = warp * LANES + lane, int(addresses[lane])
            before = self._update(action, thread, raw, count * len(lanes), last=True)
            tokens[lanes] = before - count * np.arange(len(lanes)).astype(np.uint64)
            return (tokens,)
        for lane in lanes.tolist():
            last = not (active & (addresses == addresses[lane]))[lane + 1 :].any()
            thread, raw = warp * LANES + lane, int(addresses[lane])
            tokens[lane] = self._update(action, thread, raw, operand[lane], last=last)
        return (tokens,)

    def _together(self, action: Action, raw: int, operand: int | None, lanes: int) -> int:
        """The count with which each lane arrives, if the lanes' arrivals are the same as a single
        one: plain ones that complete the phase at most with the last; else 0."""
        form = action.form
        if action.operation != "mbarrier_arrive" or form["K"] or form["D"] != "arrive":
            return 0
        count = 1 if operand is None else operand
        try:
            state = State.of(self._read(self._address(form["S"], raw)))
        except Misuse:
            return 0
        return count if count * lanes <= state.pending else 0

    def _ask(
        self, action: Action, thread: int, raw: int, operand: int, awaited: dict[int, int]
    ) -> bool:
        """Whether the phase for which a thread asks has completed; if not, it is added to
        `awaited`."""
        observer = self._worker.observer
        try:
            address = self._address(action.form["S"], raw)
            phase = awaited_phase(action.form, operand)
            done = State.of(self._read(address)).phase != phase
        except Misuse as misuse:
            raise self._refusal(misuse, action, thread, raw) from None
        if observer is not None:
            observer.used(action.number, thread, address)
            if done:
                observer.waited(action.number, thread, address)
        if not done:
            awaited[address] = phase
        return done

    def _bulk(self, action: Action, thread: int, operands: list[int]) -> None:
        if action.operation == "bulk_commit":
            self._copies.commit(thread)
        elif action.operation == "bulk_wait":
            self._copies.wait(thread, operands[0], read=action.form["K"] == "read")
        elif action.operation == "bulk_tensor":
            if action.form["D"] == "shared":
                operands[-1] = self._valid(action, thread, operands[-1])
            self._copies.issue_tensor(action, thread, operands)
        elif action.operation == "bulk_copy":
            size, to, start, *barrier = operands
            barrier = [self._valid(action, thread, address) for address in barrier]
            self._copies.issue(action, thread, [size, to, start, *barrier])
        elif self._worker.observer is not None:
            if action.operation == "bulk_acquire_map":
                self._worker.observer.acquired_map(thread, operands[-1])
            else:
                self._worker.observer.released_maps()

    def _valid(self, action: Action, thread: int, address: int) -> int:
        """The address of a copy's mbarrier, which must be valid."""
        try:
            found = self._address("shared", address)
            State.of(self._read(found))
        except Misuse as misuse:
            raise self._refusal(misuse, action, thread, address) from None
        return found

    def _deliver(self, copy: Copy) -> None:
        """Count the bytes of a copy that has taken effect at its mbarrier."""
        assert copy.barrier is not None
        try:
            state = State.of(self._read(copy.barrier))
            after = state.expect(-copy.nbytes).settled()
        except Misuse as misuse:
            raise self._refusal(misuse, copy.action, copy.thread, copy.barrier) from None
        self._write(copy.barrier, after.word)
        if self._worker.observer is not None:
            self._worker.observer.delivered(copy)
        if copy.box is not None:
            self._boxes.setdefault(copy.barrier, set()).add(copy.nbytes)
        if after.phase != state.phase:
            self._completed(copy.barrier, after)

    def _refusal(self, misuse: Misuse, action: Action, thread: int, address: int) -> Refusal:
        kernel = self._worker.flow.kernel
        return Refusal.at_shared(misuse, action.number, thread, kernel, address % WINDOW_BYTES)

    def _address(self, space: str, address: int) -> int:
        """The address of an object in shared memory; bulk copies accept both kinds."""
        if not space or address >= WINDOWS["shared"]:
            address -= WINDOWS["shared"]
        return object_at(address, self._worker.shared_base, self._worker.shared_end)

    def _update(
        self, action: Action, thread: int, raw: int, operand: int | None, *, last: bool
    ) -> int:
        """Perform a thread's instruction, `last` of its warp; returns the 8 bytes before it."""
        form = action.form
        try:
            address = self._address(form["S"], raw)
            before = self._read(address)
            after = updated(form, before, operand)
        except Misuse as misuse:
            raise self._refusal(misuse, action, thread, raw) from None
        self._write(address, after)
        self._tell(action, thread, address, last=last)
        kind = form.modifiers.get("K")
        if action.operation == "mbarrier_init":
            self._announced[address // OBJECT_BYTES] = 0
            self._boxes.pop(address, None)
        elif kind == "expect_tx":
            self._announced[address // OBJECT_BYTES] += operand or 0
        if completes(form, before, after):
            self._completed(address, State.of(after))
        return before

    def _tell(self, action: Action, thread: int, address: int, *, last: bool) -> None:
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
                observer.arrived(number, thread, address)

    def _read(self, address: int) -> int:
        return int(self._words[address // OBJECT_BYTES])

    def _write(self, address: int, word: int) -> None:
        self._words[address // OBJECT_BYTES] = word

    def _completed(self, address: int, state: State) -> None:
        """Wake the lanes that wait for the phase that has completed."""
        self._announced[address // OBJECT_BYTES] = 0
        self._boxes.pop(address, None)
        if self._worker.observer is not None:
            self._worker.observer.completed(address)
        for warp, waits in enumerate(self._waits):
            for wait in waits:
                if not wait.polls and wait.awaited.get(address, state.phase) != state.phase:
                    self._wake(warp, wait)

    def _wake(self, warp: int, wait: Wait) -> None:
        """Let lanes execute their `try_wait` again."""
        self._waits[warp] = [each for each in self._waits[warp] if each is not wait]
        header, paths = self._worker.header(warp), Paths(self._worker, warp)
        if int(header[_STATUS]) != AT_PHASE:
            return
        header[_STATUS] = RUNNING
        if paths.running != wait.lanes:
            places = [place for place, lanes in paths.ready() if lanes == wait.lanes]
            paths.switch(places[0], int(header[_BLOCK]))

    def _answer(
        self, warp: int, action: Action, lanes: int, awaited: dict[int, int], *, some: bool
    ) -> None:
        """Decide how the lanes continue after they asked for phases of which these are not
        completed; `some` of the phases are."""
        self._waits[warp] = [each for each in self._waits[warp] if not each.lanes & lanes]
        expired = lanes in self._expired[warp]
        self._expired[warp].discard(lanes)
        polls = action.operation == _POLLS
        if self._worker.replay is not None:
            self._worker.replay.answered(warp, action.number, lanes, done=some or not awaited)
        if polls and awaited:
            self._worker.set_field("fuel", self._worker.field("fuel") - CALL_COST)
        if not awaited or (not polls and (some or expired)):
            return
        header, paths = self._worker.header(warp), Paths(self._worker, warp)
        block = self._block_of[action.number] + polls
        paths.stop(block, action.number)
        header[_VERDICT] = TURNED if polls else HELD
        held = 0
        for wait in self._waits[warp]:
            held |= 0 if wait.polls else wait.lanes
        self._waits[warp].append(Wait(lanes, action.number, awaited, polls))
        other = next((place for place, ready in paths.ready() if not ready & held), None)
        if other is not None:
            paths.switch(other, block)
            header[_VERDICT] = TURNED

    def expire(self) -> bool:
        """All warps have stopped: let a copy in flight take effect or, if there is none, let each
        `try_wait` return false, unless that has not helped."""
        if self._running_block == self._worker.field("block") and self._copies.land_one():
            return True
        status = self._worker.warp_fields("status")
        stopped = [warp for warp in range(self._worker.warps) if status[warp] == AT_PHASE]
        if not stopped or self._running_block != self._worker.field("block"):
            return False
        self._adopt()
        now = [
            (warp, wait.lanes, wait.number, [(at, self._read(at)) for at in wait.awaited])
            for warp in stopped
            for wait in self._waits[warp]
        ]
        self._fruitless = self._fruitless + 1 if now == self._last_stop else 0
        self._last_stop = now
        if self._fruitless == PATIENCE:
            return False
        for warp in stopped:
            self._expired[warp] = {wait.lanes for wait in self._waits[warp]}
            self._waits[warp] = []
            self._worker.header(warp)[_STATUS] = RUNNING
        if self._natively:
            publish(self._worker, self._waits, self._expired)
        return True

    def _adopt(self) -> None:
        if self._natively:
            adopt(self._worker, self._waits)

    def land(self, copy: Copy) -> bool:
        """Let a copy take effect; False if it is not in flight."""
        return self._copies.land(copy)

    def drain(self) -> None:
        """All warps have ended: copies in flight take effect."""
        self._copies.end()

    def waits(self, warp: int) -> Sequence[Wait]:
        """What lanes of a warp wait or poll for."""
        if self._running_block != self._worker.field("block"):
            return ()
        self._adopt()
        return self._waits[warp]

    def text(self, address: int) -> str:
        """An mbarrier, and what it has and expects, in words."""
        array, offset = shared_array(self._worker.flow.kernel, address)
        held = state_text(self._read(address))
        announced = int(self._announced[address // OBJECT_BYTES])
        try:
            # The tx-count is what was announced minus what has arrived.
            arrived = announced - State.of(self._read(address)).transactions
        except Misuse:
            arrived = 0
        if announced or arrived:
            held = held.partition(", ")[0]
            held += f", {arrived:,} of {announced:,} announced bytes"
            if boxes := self._boxes.get(address):
                sizes = " and ".join(f"{size:,}" for size in sorted(boxes))
                held += f", in boxes of {sizes} bytes"
        return f"the mbarrier at byte {offset} of '{array}' ({held})"
