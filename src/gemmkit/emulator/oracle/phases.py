"""mbarriers in the oracle: their instructions, and the warps of a block that wait for phases.

The order of execution is the engine's: see `machine.phases`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gemmkit.emulator.isa.cluster import ClusterBarrier, divided, reaches_peers
from gemmkit.emulator.isa.expiries import Expiries
from gemmkit.emulator.isa.mbarriers import (
    OBJECT_BYTES,
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
from gemmkit.emulator.oracle.replay import Replay, Transfer
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.ptx.shared_names import shared_array
from gemmkit.emulator.watching import SignalKind
from gemmkit.errors import DeviceError

# An mbarrier: the number of its block in the chunk (its rank in a cluster), and its address there.
Place = tuple[int, int]
# Stands for the cluster's barrier.
_CLUSTER: Place = (-1, 0)
_ARRIVES = frozenset(["mbarrier_arrive", "mbarrier_arrive_copies"])


@dataclass(frozen=True, slots=True)
class _Wait:
    """Lanes that wait, and for which phase of which mbarrier."""

    lanes: Mask
    step: Step
    awaited: dict[Place, int]


class Phases:
    """The mbarriers of a chunk of one cluster, and its barrier; `turn_over` ends a warp's turn, and
    `polled` that of its block."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self.turn_over = self.polled = False
        self._cluster = ClusterBarrier(chunk.count)
        self._waits: list[list[_Wait]] = [[] for _ in range(chunk.count)]
        self._expired: list[list[Mask]] = [[] for _ in range(chunk.count)]
        self.replay: Replay | None = None
        self._expiries = Expiries()

    def update(self, group: Group, step: Step, lanes: Mask) -> None:
        """An instruction that changes mbarriers, one lane after the other."""
        tokens = np.zeros(lanes.shape, np.uint64)
        for row, lane, place, operand in self._each(group, step, lanes):
            before = self._read(place)
            try:
                after = updated(step.form, before, operand)
            except Misuse as misuse:
                raise self._refused(group, step, row, lane, place[1], misuse) from None
            self._write(place, after)
            tokens[row, lane] = before
            if step.form.operation in _ARRIVES:
                self._signal("arrive", int(group.rows[row]), place)
            if completes(step.form, before, after):
                self._completed(place, State.of(after).phase)
        if step.dests:
            group.write(*step.dests[0], tokens, lanes)

    def ask(self, group: Group, step: Step, lanes: Mask, block: int) -> bool:
        """`test_wait` or `try_wait` of one warp; False if it waits, and has no result yet."""
        done = np.zeros(lanes.shape, bool)
        awaited: dict[Place, int] = {}
        reached: set[Place] = set()
        for row, lane, place, operand in self._each(group, step, lanes):
            try:
                phase = awaited_phase(step.form, operand or 0)
                done[row, lane] = State.of(self._read(place)).phase != phase
            except Misuse as misuse:
                raise self._refused(group, step, row, lane, place[1], misuse) from None
            if done[row, lane]:
                reached.add(place)
            else:
                awaited[place] = phase
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
        for place in sorted(reached):
            self._signal("wait", row, place)
        group.write(*step.dests[0], done, lanes)
        if awaited and not tries:
            self.turn_over = True
            self.polled = self._chunk.cluster_blocks > 1
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

    def _signal(self, kind: SignalKind, row: int, place: Place) -> None:
        if self._chunk.watch is not None:
            self._chunk.watch.signal(kind, row, [place])

    def _completed(self, place: Place, phase: int) -> None:
        warps = self._chunk.warps
        self._signal("complete", -1, place)
        for row, waits in enumerate(self._waits):
            for wait in waits:
                if wait.awaited.get(place, phase) == phase:
                    continue
                self._waits[row] = [each for each in self._waits[row] if each is not wait]
                if warps.status[row] != AT_PHASE:
                    continue
                warps.status[row] = RUNNING
                if (warps.mask[row] != wait.lanes).any():
                    places = [at for at, lanes in warps.ready(row) if (lanes == wait.lanes).all()]
                    warps.switch(row, places[0], int(warps.block[row]))

    def expire(self) -> bool:
        """All warps have stopped: let each `try_wait` return false, unless that has not helped.

        A wait for the cluster's barrier has no limit.
        """
        if self._settle():
            return True
        waiting = [
            row
            for row in np.flatnonzero(self._chunk.warps.status == AT_PHASE).tolist()
            if any(_CLUSTER not in each.awaited for each in self._waits[row])
        ]
        now = [
            (row, wait.lanes.tobytes(), wait.step.number, [*map(self._held, wait.awaited)])
            for row in waiting
            for wait in self._waits[row]
        ]
        if not waiting or self._expiries.in_vain(now, [self._chunk.spaces["shared"].held]):
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
                    self._cluster.text(self._living())
                    if place == _CLUSTER
                    else f"the phase of parity {phase} of {self._name(place[1])} "
                    f"({state_text(self._read(place))})"
                    for place, phase in wait.awaited.items()
                ]
                found.append((row, wait.step.instruction.where, " and ".join(barriers)))
        return found

    def _name(self, address: int) -> str:
        array, offset = shared_array(self._chunk.kernel, address)
        return f"the mbarrier at byte {offset} of '{array}'"

    @property
    def _shared(self) -> PrivateSpace:
        return self._chunk.spaces["shared"]

    def _read(self, place: Place) -> int:
        return int.from_bytes(self._shared.text(*place, OBJECT_BYTES), "little")

    def _held(self, place: Place) -> int:
        return -1 if place == _CLUSTER else self._read(place)

    def _write(self, place: Place, word: int) -> None:
        data = np.frombuffer(word.to_bytes(OBJECT_BYTES, "little"), np.uint8)
        self._shared.view(*place, OBJECT_BYTES)[:] = data

    def signaled(
        self, group: Group, step: Step, row: int, lane: int, targets: Iterable[tuple[int, ...]]
    ) -> list[Place]:
        """The mbarriers of a bulk copy, one for each target if it has any; all must be valid.
        Targets are addresses of what is copied and of the mbarrier."""
        return [
            self._check(group, step, row, lane, each) for _, *barrier in targets for each in barrier
        ]

    def _check(self, group: Group, step: Step, row: int, lane: int, address: int) -> Place:
        try:
            place = self._place(group, step, row, address % SHARED_WINDOW)
            State.of(self._read(place))
        except Misuse as misuse:
            raise self._refused(group, step, row, lane, address, misuse) from None
        return place

    def _place(self, group: Group, step: Step, row: int, address: int) -> Place:
        """The block that has an mbarrier, and its address there."""
        chunk, space = self._chunk, self._shared
        own = int(group.rows[row]) // chunk.warps_per_block
        rank = own % chunk.cluster_blocks
        if reaches_peers(step.form):
            rank, address = divided(address, rank)
            if rank >= chunk.cluster_blocks:
                raise Misuse(
                    "invalid mbarrier",
                    f"uses an mbarrier of rank {rank}, of which its cluster has no block",
                )
        owner = own if chunk.cluster_blocks == 1 else rank
        return owner, object_at(address, space.base, space.base + space.nbytes)

    # The cluster's barrier

    def arrive_in_cluster(self, group: Group, step: Step, lanes: Mask) -> None:
        """`barrier.cluster.arrive` of one warp."""
        (row,) = group.rows.tolist()
        if not lanes.any():
            return
        try:
            self._cluster.arrive(row, _mask(lanes[0]))
        except Misuse as misuse:
            raise self._refused(group, step, 0, int(lanes[0].argmax()), None, misuse) from None
        self._signal("arrive", row, _CLUSTER)
        self._settle()

    def wait_in_cluster(self, group: Group, step: Step, lanes: Mask, block: int) -> bool:
        """`barrier.cluster.wait` of one warp; False if it waits."""
        (row,), mine = group.rows.tolist(), lanes[0]
        self._waits[row] = [each for each in self._waits[row] if not (each.lanes & mine).any()]
        try:
            passes = self._cluster.wait(row, _mask(mine))
        except Misuse as misuse:
            raise self._refused(group, step, 0, int(mine.argmax()), None, misuse) from None
        if self.replay is not None:
            self.replay.answered(row, step, mine, done=passes)
        if passes:
            self._signal("wait", row, _CLUSTER)
            self._chunk.warps.go(group.rows, block + 1)
            return True
        self._waits[row].append(_Wait(mine.copy(), step, {_CLUSTER: self._cluster.phase}))
        if not self._run_others(row, block):
            self._chunk.warps.status[row] = AT_PHASE
        return False

    def _settle(self) -> bool:
        """Whether all threads of the cluster that have not exited have arrived at its barrier."""
        settled = self._cluster.settle(self._living())
        if settled:
            self._completed(_CLUSTER, self._cluster.phase)
        return settled

    def _living(self) -> list[int]:
        return [_mask(each) for each in self._chunk.warps.living()]

    def perform(self, group: Group, row: int, lane: int, moved: Transfer) -> None:
        """Perform a thread's copy, or keep it for a step of the schedule."""
        if self.replay is None:
            moved.perform()
        else:
            self.replay.issued(int(group.rows[row]), lane, moved)

    def deliver(
        self, group: Group, step: Step, row: int, lane: int, address: int, nbytes: int
    ) -> None:
        """Bytes of a bulk copy have arrived."""
        place = self._check(group, step, row, lane, address)
        before = State.of(self._read(place))
        try:
            after = before.expect(-nbytes).settled()
        except Misuse as misuse:
            raise self._refused(group, step, row, lane, address, misuse) from None
        self._write(place, after.word)
        if before.phase != after.phase:
            self._completed(place, after.phase)

    def _each(
        self, group: Group, step: Step, lanes: Mask
    ) -> Iterator[tuple[int, int, Place, int | None]]:
        """(row in the group, lane, the object, operand) of each active lane."""
        addresses = np.broadcast_to(group.address(step.addresses[0]), lanes.shape)
        operands = None
        if step.sources:
            operands = np.broadcast_to(group.read(*step.sources[0]), lanes.shape)
        for row, lane in np.argwhere(lanes).tolist():
            address = int(addresses[row, lane]) - SHARED_WINDOW * (not step.form["S"])
            try:
                place = self._place(group, step, row, address)
            except Misuse as misuse:
                raise self._refused(group, step, row, lane, address, misuse) from None
            yield row, lane, place, None if operands is None else int(operands[row, lane])

    def _refused(
        self, group: Group, step: Step, row: int, lane: int, address: int | None, misuse: Misuse
    ) -> DeviceError:
        chunk = self._chunk
        x, y, _ = chunk.request.block
        thread = int(chunk.thread[group.rows[row], lane])
        where = ""
        if address is not None:
            within = divided(address % WINDOW_BYTES, 0)[1]
            array, offset = shared_array(chunk.kernel, within)
            where = f", at byte {offset} of '{array}'"
        return DeviceError(
            f"kernel '{chunk.kernel.source_name}': {misuse.kind}: thread "
            f"{(thread % x, thread // x % y, thread // (x * y))} of block "
            f"{chunk.block_of(int(group.rows[row]))} {misuse.what}{where}, "
            f"by '{step.form.opcode}' at {step.instruction.where}"
        )


def _mask(lanes: Mask) -> int:
    return sum(1 << lane for lane in np.flatnonzero(lanes).tolist())
