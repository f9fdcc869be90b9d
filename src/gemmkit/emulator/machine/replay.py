"""`Replay`: makes the warps of one block or cluster follow a schedule on the engine, or records
their course.

Native code calls it wherever a schedule could stop a warp. While a warp is chosen, the others are
parked when their turn comes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from gemmkit.emulator.codegen.layout import (
    AT_BARRIER,
    AT_PHASE,
    AT_PRODUCTS,
    DONE,
    FREE,
    HOLD,
    PARKED,
    RECORDED,
    RUNNING,
)
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.stepping import ENDED, GOES, WAITS, Recorder, Stepper
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.places import place_of
from gemmkit.emulator.schedule import Schedule

_Stop = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32)


class Replay:
    """What happens in one cluster, or block: it follows a schedule or, with recorders, takes its
    own course.

    Args:
        workers: those that run its blocks, by rank.
        schedule: the steps.
        blocks: the numbers of these blocks in the grid, by rank.
        recorders: by rank, if it is recorded.

    Raises:
        DeviceError: a step is not possible.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        schedule: Schedule | None,
        blocks: Sequence[int],
        recorders: Sequence[Recorder],
    ) -> None:
        self.workers, self._body = workers, workers[0].flow.kernel.body
        self.stepper: Stepper | None = None
        if schedule is not None:
            self.stepper = Stepper(
                schedule,
                workers[0].warps,
                len(workers),
                self._body,
                status=self._status,
                land=self._land,
                release=self._release,
            )
        for rank, (worker, block) in enumerate(zip(workers, blocks, strict=True)):
            recorder = recorders[rank] if recorders else None
            worker.replay = BlockReplay(self, rank, block, recorder)
            worker.set_field("scheduled_block", block)
            worker.set_field("first_chosen", RECORDED if schedule is None else HOLD)

    def _warp(self, number: int) -> tuple[Worker, int]:
        rank, warp = divmod(number, self.workers[0].warps)
        return self.workers[rank], warp

    def choose(self) -> None:
        """Tell native code which warp may run."""
        assert self.stepper is not None
        chosen = self.stepper.chosen
        for worker in self.workers:
            worker.set_field("chosen", FREE if chosen == Stepper.FREE else HOLD)
        if chosen >= 0:
            worker, warp = self._warp(chosen)
            worker.set_field("chosen", warp)
            if worker.warp_fields("status")[warp] == PARKED:
                worker.warp_fields("status")[warp] = RUNNING

    def _status(self, number: int) -> int:
        worker, warp = self._warp(number)
        status = int(worker.warp_fields("status")[warp])
        waits = dict.fromkeys((AT_BARRIER, AT_PHASE, AT_PRODUCTS), WAITS)
        return {**waits, DONE: ENDED}.get(status, GOES)

    def _release(self) -> None:
        for worker in self.workers:
            status = worker.warp_fields("status")
            status[status == PARKED] = RUNNING

    def _land(self, held: object) -> bool:
        assert isinstance(held, tuple)
        worker, copy = held
        return worker.phases is not None and bool(worker.phases.land(copy))

    def _place(self, number: int) -> str:
        worker, warp = self._warp(number)
        at = int(worker.warp_fields("instruction")[warp])
        return "{}:{}".format(*place_of(self._body[at]))

    def advance(self) -> bool:
        """No warp runs: go on with the next step of the schedule; False if there is none.

        Raises:
            DeviceError: a step is not possible.
            Refusal: a copy is not valid when it takes effect.
        """
        if self.stepper is None or not self.stepper.advance(self._place):
            return False
        self.choose()
        return True


class BlockReplay:
    """The part of a replay in one block."""

    def __init__(self, whole: Replay, rank: int, block: int, recorder: Recorder | None) -> None:
        self._whole, self._worker = whole, whole.workers[rank]
        self._rank, self._block, self._recorder = rank, block, recorder
        self._first = rank * self._worker.warps
        self._callback = _Stop(self._on_stop)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self._worker.set_field("stop_function", address)

    @property
    def _here(self) -> bool:
        return self._worker.number == self._block

    def _on_stop(self, address: int, number: int, lanes: int) -> int:
        try:
            warp, stepper = self._worker.warp_number(address), self._whole.stepper
            if self._recorder is not None and number >= 0:
                self._recorder.begin(warp, number, lanes)
            if stepper is None:
                return 0
            if number < 0:
                stops = stepper.after(self._first + warp, -1 - number)
            else:
                stops = stepper.before(self._first + warp, number, lanes)
            self._whole.choose()
            return int(stops)
        except BaseException as error:
            self._worker.fail(error)
            return 1

    # What the machine asks

    def advance(self) -> bool:
        """No warp runs: go on with the next step of the schedule; False if there is none.

        Raises:
            DeviceError: a step is not possible.
            Refusal: a copy is not valid when it takes effect.
        """
        return self._here and self._whole.advance()

    @property
    def holding(self) -> bool:
        """Whether steps of the schedule are left."""
        stepper = self._whole.stepper
        return stepper is not None and self._here and stepper.chosen != Stepper.FREE

    def finish(self) -> None:
        """The launch has ended.

        Raises:
            DeviceError: steps of the schedule are left.
        """
        if self._whole.stepper is not None:
            self._whole.stepper.finish()

    def holds(self, copy: Copy) -> bool:
        """Whether the schedule says when a copy takes effect, which is issued now."""
        stepper = self._whole.stepper
        if stepper is None or not self._here:
            return False
        return stepper.holds(self._rank, copy.thread, (self._worker, copy))

    def answered(self, warp: int, number: int, lanes: int, *, done: bool) -> None:
        """Lanes have asked for the phase of an mbarrier, or waited for the cluster's barrier."""
        if not self._here:
            return
        if self._recorder is not None:
            self._recorder.answered(warp, number, lanes, done=done)
        if self._whole.stepper is not None:
            self._whole.stepper.answered(self._first + warp, number, lanes, done=done)
