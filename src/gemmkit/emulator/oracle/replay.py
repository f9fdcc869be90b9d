"""A schedule in the oracle: which warp runs, and copies that wait for their step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.machine.stepping import ENDED, GOES, WAITS, Stepper
from gemmkit.emulator.oracle.chunk import WARP, Chunk, Group
from gemmkit.emulator.oracle.control import DONE, RUNNING, Rows
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.schedule import Schedule


@dataclass(slots=True, eq=False)
class Transfer:
    """A bulk copy: how it reads its source, writes, and counts its bytes at an mbarrier, if there
    is one; `data` is what it has read."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    deliver: Callable[[], None] | None
    data: Any = None

    def fetch(self) -> None:
        """Read the source, once."""
        if self.data is None:
            self.data = self.read()

    def perform(self) -> None:
        """Take effect."""
        self.fetch()
        self.write(self.data)
        if self.deliver is not None:
            self.deliver()


@dataclass(slots=True)
class _Groups:
    open: list[Transfer] = field(default_factory=list)
    committed: list[list[Transfer]] = field(default_factory=list)


class Replay:
    """The schedule of the only cluster of a chunk."""

    def __init__(
        self, schedule: Schedule, chunk: Chunk, flow: ControlFlow, where: Callable[[int], str]
    ) -> None:
        self._chunk, self._flow, self._where = chunk, flow, where
        self._groups: defaultdict[int, _Groups] = defaultdict(_Groups)
        self._in_flight: list[Transfer] = []
        self._stepper = Stepper(
            schedule,
            chunk.warps_per_block,
            chunk.count // chunk.warps_per_block,
            flow.kernel.body,
            status=self._status,
            land=self._land,
            release=lambda: None,
        )

    def _status(self, warp: int) -> int:
        status = int(self._chunk.warps.status[warp])
        return {RUNNING: GOES, DONE: ENDED}.get(status, WAITS)

    @property
    def free(self) -> bool:
        """Whether all steps are done."""
        return self._stepper.chosen == Stepper.FREE

    def allowed(self, runnable: Rows) -> Rows:
        """Those of the warps that may run now."""
        return runnable if self.free else runnable[runnable == self._stepper.chosen]

    def advance(self) -> bool:
        """Go on with the next step; False if there is none.

        Raises:
            DeviceError: a step is not possible.
        """
        return self._stepper.advance(self._where)

    def finish(self) -> None:
        """All warps have ended: what is in flight takes effect.

        Raises:
            DeviceError: steps are left.
        """
        self._stepper.finish()
        while self._in_flight:
            self._land(self._in_flight[0])

    def stops(self, row: int, block: int, lanes: Mask) -> bool:
        """Whether a warp stops at the start of a basic block; `lanes` execute its first
        instruction."""
        start, found = self._flow.blocks[block].start, False
        if start - 1 in self._flow.stops:
            found = self._stepper.after(row, start - 1)
        if not found and start in self._flow.stops and lanes.any():
            found = self._stepper.before(row, start, _number(lanes))
        return found

    def answered(self, row: int, step: Step, lanes: Mask, *, done: bool) -> None:
        """Lanes have asked for the phase of an mbarrier."""
        self._stepper.answered(row, step.number, _number(lanes), done=done)

    # Copies

    def issued(self, row: int, lane: int, copy: Transfer) -> None:
        """A thread issues a copy, which takes effect now unless a later step says when."""
        rank, warp = divmod(row, self._chunk.warps_per_block)
        if not self._stepper.holds(rank, warp * WARP + lane, copy):
            copy.perform()
            return
        self._in_flight.append(copy)
        if copy.deliver is None:
            self._groups[row * WARP + lane].open.append(copy)

    def _land(self, copy: object) -> bool:
        if copy not in self._in_flight:
            return False
        assert isinstance(copy, Transfer)
        self._in_flight.remove(copy)
        copy.perform()
        return True

    def group(self, group: Group, step: Step, lanes: Mask) -> None:
        """`cp.async.bulk.commit_group` and `cp.async.bulk.wait_group`."""
        for row, lane in np.argwhere(lanes).tolist():
            groups = self._groups[int(group.rows[row]) * WARP + lane]
            if step.form.operation == "bulk_commit":
                groups.committed.append(groups.open)
                groups.open = []
                continue
            going = step.immediates[0]
            done = groups.committed[: max(len(groups.committed) - going, 0)]
            for copy in (each for some in done for each in some):
                if step.form["K"] != "read":
                    self._land(copy)
                else:
                    copy.fetch()
            if step.form["K"] != "read":
                del groups.committed[: len(done)]


def _number(lanes: Mask) -> int:
    return sum(1 << lane for lane in np.flatnonzero(lanes).tolist())
