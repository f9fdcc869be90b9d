"""`WaitingLanes`: the lanes of a block's warps that wait for phases, and how they go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.emulator.codegen.layout import AT_PHASE, HELD, RUNNING, TURNED, WARP
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.runtime.blocks import CALL_COST
from gemmkit.emulator.isa.cluster import CLUSTER_BARRIER
from gemmkit.emulator.machine.asynchronous import Wait
from gemmkit.emulator.machine.native_waits import adopt, publish
from gemmkit.emulator.machine.paths import Paths
from gemmkit.emulator.machine.worker import Worker

_POLLS = "mbarrier_test"
_STATUS, _VERDICT, _BLOCK, _MASK = (
    WARP[name] // 4 for name in ("status", "verdict", "block", "mask")
)


class WaitingLanes:
    """The waiting lanes of the block that a worker runs."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        # Where native code executes instructions too, it keeps what warps wait for.
        self._natively = not worker.grid.through_python
        self._block_of: dict[int, int] = {}
        for block, each in enumerate(worker.flow.blocks):
            self._block_of |= dict.fromkeys(range(each.start, each.end), block)
        self.begin()

    def begin(self) -> None:
        """A block begins: nothing waits."""
        self._waits: list[list[Wait]] = [[] for _ in range(self._worker.warps)]
        self._expired: list[set[int]] = [set() for _ in range(self._worker.warps)]

    def adopt(self) -> None:
        """Take over what native code knows of the waits."""
        if self._natively:
            adopt(self._worker, self._waits)

    def publish(self) -> None:
        """Tell native code of the waits."""
        if self._natively:
            publish(self._worker, self._waits, self._expired)

    def of(self, warp: int) -> Sequence[Wait]:
        """What lanes of a warp wait or poll for."""
        self.adopt()
        return self._waits[warp]

    def wake(self, address: int, phase: int) -> None:
        """Wake the lanes that wait for the end of a phase other than this one of an mbarrier."""
        # What completes the phase may be an instruction of another block.
        self.adopt()
        for warp, waits in enumerate(self._waits):
            for wait in waits:
                if not wait.polls and wait.awaited.get(address, phase) != phase:
                    self._wake(warp, wait)
        self.publish()

    def _wake(self, warp: int, wait: Wait) -> None:
        """Let lanes execute their `try_wait` again."""
        self._waits[warp] = [each for each in self._waits[warp] if each is not wait]
        header = self._worker.header(warp)
        if int(header[_STATUS]) != AT_PHASE:
            return
        header[_STATUS] = RUNNING
        if int(header[_MASK]) != wait.lanes:
            paths = Paths(self._worker, warp)
            places = [place for place, lanes in paths.ready() if lanes == wait.lanes]
            paths.switch(places[0], int(header[_BLOCK]))

    def answer(
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
            self._worker.end_turn()
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

    def stopped(self) -> list[int]:
        """The warps whose waits may expire, as those for the cluster's barrier do not."""
        self.adopt()
        status = self._worker.warp_fields("status")
        return [
            warp
            for warp in range(self._worker.warps)
            if status[warp] == AT_PHASE
            and any(CLUSTER_BARRIER not in each.awaited for each in self._waits[warp])
        ]

    def resume(self, stopped: Iterable[int]) -> None:
        """Let the `try_wait` of these warps return false."""
        for warp in stopped:
            self._expired[warp] = {wait.lanes for wait in self._waits[warp]}
            self._waits[warp] = []
            self._worker.header(warp)[_STATUS] = RUNNING
        self.publish()
