"""mbarriers in the oracle: their instructions, and the warps of a block that wait for phases.

The order of execution is the engine's: see `machine.phases`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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
from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.oracle.chunk import WARP, Chunk, Group
from gemmkit.emulator.oracle.control import AT_PHASE, RUNNING
from gemmkit.emulator.oracle.memory import SHARED_WINDOW, WINDOW_BYTES, PrivateSpace
from gemmkit.emulator.oracle.replay import Effect, Replay
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.ptx.shared_names import shared_array
from gemmkit.errors import DeviceError


@dataclass(frozen=True, slots=True)
class _Wait:
    """Lanes that wait, and for which phase of which mbarrier."""

    lanes: Mask
    step: Step
    awaited: dict[int, int]


class Phases:
    """The mbarriers of a chunk of one block; `turn_over` ends a warp's turn."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self.turn_over = False
        self._waits: list[list[_Wait]] = [[] for _ in range(chunk.count)]
        self._expired: list[list[Mask]] = [[] for _ in range(chunk.count)]
        self._last_stop: object = None
        self.replay: Replay | None = None
        self._fruitless = 0

    def update(self, group: Group, step: Step, lanes: Mask) -> None:
        """An instruction that changes mbarriers, one lane after the other."""
        tokens = np.zeros(lanes.shape, np.uint64)
        for row, lane, address, operand in self._each(group, step, lanes):
            before = self._read(address)
            try:
                after = updated(step.form, before, operand)
            except Misuse as misuse:
                raise self._refused(group, step, row, lane, address, misuse) from None
            self._write(address, after)
            tokens[row, lane] = before
            if completes(step.form, before, after):
                self._completed(address, State.of(after).phase)
        if step.dests:
            group.write(*step.dests[0], tokens, lanes)

    def ask(self, group: Group, step: Step, lanes: Mask, block: int) -> bool:
        """`test_wait` or `try_wait` of one warp; False if it waits, and has no result yet."""
        done, awaited = np.zeros(lanes.shape, bool), {}
        for row, lane, address, operand in self._each(group, step, lanes):
            try:
                phase = awaited_phase(step.form, operand or 0)
                done[row, lane] = State.of(self._read(address)).phase != phase
            except Misuse as misuse:
                raise self._refused(group, step, row, lane, address, misuse) from None
            if not done[row, lane]:
                awaited[address] = phase
        (row,), mine = group.rows.tolist(), lanes[0]
        self._waits[row] = [each for each in self._waits[row] if not (each.lanes & mine).any()]
        expired = any((each == mine).all() for each in self._expired[row])
        self._expired[row] = [each for each in self._expired[row] if (each != mine).any()]
        if self.replay is not None:
            self.replay.answered(row, step, mine, done=bool(done.any()) or not awaited)
        tries = step.form.operation == "mbarrier_try"
        if awaited and tries and not done.any() and not expired:
            wait = _Wait(mine.copy(), step, awaited)
            self._waits[row].append(wait)
            if not self._run_others(row, block):
                self._chunk.warps.status[row] = AT_PHASE
            return False
        group.write(*step.dests[0], done, lanes)
        if awaited and not tries:
            self.turn_over = True
            if self._run_others(row, block + 1):
                return True
        self._chunk.warps.go(group.rows, block + 1)
        return True

    def _run_others(self, row: int, block: int) -> bool:
        """Run other lanes of a warp that do not wait, if there are any; those that run go on at
        `block` later."""
        held = np.zeros(WARP, bool)
        for wait in self._waits[row]:
            held |= wait.lanes
        for place, lanes in self._chunk.warps.ready(row):
            if not (lanes & held).any():
                self._chunk.warps.switch(row, place, block)
                return True
        return False

    def _completed(self, address: int, phase: int) -> None:
        warps = self._chunk.warps
        for row, waits in enumerate(self._waits):
            for wait in waits:
                if wait.awaited.get(address, phase) == phase:
                    continue
                self._waits[row] = [each for each in self._waits[row] if each is not wait]
                if warps.status[row] != AT_PHASE:
                    continue
                warps.status[row] = RUNNING
                if (warps.mask[row] != wait.lanes).any():
                    places = [at for at, lanes in warps.ready(row) if (lanes == wait.lanes).all()]
                    warps.switch(row, places[0], int(warps.block[row]))

    def expire(self) -> bool:
        """All warps have stopped: let each `try_wait` return false, unless that has not helped."""
        waiting = np.flatnonzero(self._chunk.warps.status == AT_PHASE).tolist()
        now = [
            (row, wait.lanes.tobytes(), wait.step.number, [*map(self._read, wait.awaited)])
            for row in waiting
            for wait in self._waits[row]
        ]
        self._fruitless = self._fruitless + 1 if now == self._last_stop else 0
        self._last_stop = now
        if not waiting or self._fruitless == PATIENCE:
            return False
        for row in waiting:
            self._expired[row] = [wait.lanes for wait in self._waits[row]]
            self._waits[row] = []
            self._chunk.warps.status[row] = RUNNING
        return True

    def stuck(self) -> list[tuple[int, str, str]]:
        """What lanes wait for: the warp's row, the source position, and the mbarriers in words."""
        found = []
        for row, waits in enumerate(self._waits):
            for wait in waits:
                barriers = [
                    f"the phase of parity {phase} of {self._name(address)} "
                    f"({state_text(self._read(address))})"
                    for address, phase in wait.awaited.items()
                ]
                found.append((row, wait.step.instruction.where, " and ".join(barriers)))
        return found

    def _name(self, address: int) -> str:
        array, offset = shared_array(self._chunk.kernel, address)
        return f"the mbarrier at byte {offset} of '{array}'"

    @property
    def _shared(self) -> PrivateSpace:
        return self._chunk.spaces["shared"]

    def _read(self, address: int) -> int:
        return int.from_bytes(self._shared.text(0, address, OBJECT_BYTES), "little")

    def _write(self, address: int, word: int) -> None:
        data = np.frombuffer(word.to_bytes(OBJECT_BYTES, "little"), np.uint8)
        self._shared.view(0, address, OBJECT_BYTES)[:] = data

    def check(self, group: Group, step: Step, row: int, lane: int, address: int) -> int:
        """The address of a bulk copy's mbarrier, which must be valid."""
        address %= SHARED_WINDOW
        space = self._shared
        try:
            object_at(address, space.base, space.base + space.nbytes)
            State.of(self._read(address))
        except Misuse as misuse:
            raise self._refused(group, step, row, lane, address, misuse) from None
        return address

    def perform(self, group: Group, row: int, lane: int, effect: Effect, *, grouped: bool) -> None:
        """Perform a thread's copy, or keep it for a step of the schedule."""
        if self.replay is None:
            shared = self._shared
            effect(shared.view(0, shared.base, shared.nbytes))
        else:
            self.replay.issued(int(group.rows[row]) * WARP + lane, effect, grouped=grouped)

    def deliver(
        self, group: Group, step: Step, row: int, lane: int, address: int, nbytes: int
    ) -> None:
        """Bytes of a bulk copy have arrived."""
        address = self.check(group, step, row, lane, address)
        before = State.of(self._read(address))
        try:
            after = before.expect(-nbytes).settled()
        except Misuse as misuse:
            raise self._refused(group, step, row, lane, address, misuse) from None
        self._write(address, after.word)
        if before.phase != after.phase:
            self._completed(address, after.phase)

    def _each(
        self, group: Group, step: Step, lanes: Mask
    ) -> Iterator[tuple[int, int, int, int | None]]:
        """(row in the group, lane, address of the object, operand) of each active lane."""
        addresses = np.broadcast_to(group.address(step.addresses[0]), lanes.shape)
        operands = None
        if step.sources:
            operands = np.broadcast_to(group.read(*step.sources[0]), lanes.shape)
        space = self._shared
        for row, lane in np.argwhere(lanes).tolist():
            address = int(addresses[row, lane]) - SHARED_WINDOW * (not step.form["S"])
            try:
                object_at(address, space.base, space.base + space.nbytes)
            except Misuse as misuse:
                raise self._refused(group, step, row, lane, address, misuse) from None
            yield row, lane, address, None if operands is None else int(operands[row, lane])

    def _refused(
        self, group: Group, step: Step, row: int, lane: int, address: int, misuse: Misuse
    ) -> DeviceError:
        chunk = self._chunk
        x, y, _ = chunk.request.block
        thread = int(chunk.thread[group.rows[row], lane])
        array, offset = shared_array(chunk.kernel, address % WINDOW_BYTES)
        return DeviceError(
            f"kernel '{chunk.kernel.source_name}': {misuse.kind}: thread "
            f"{(thread % x, thread // x % y, thread // (x * y))} of block "
            f"{chunk.block_of(int(group.rows[row]))} {misuse.what}, at byte {offset} of '{array}', "
            f"by '{step.form.opcode}' at {step.instruction.where}"
        )
