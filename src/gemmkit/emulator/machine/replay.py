"""`Replay`: makes the warps of one block follow a schedule on the engine, or records their course.

Native code calls it wherever a schedule could stop a warp. While a warp is chosen, the others are
parked when their turn comes.
"""

from __future__ import annotations

import ctypes

from gemmkit.emulator.codegen.layout import (
    AT_BARRIER,
    AT_PHASE,
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
    """What happens in one block of a worker: it follows a schedule or, with a recorder, takes its
    own course.

    Raises:
        DeviceError: a step is not possible.
    """

    def __init__(
        self, worker: Worker, schedule: Schedule | None, block: int, recorder: Recorder | None
    ) -> None:
        self._worker, self._block, self._recorder = worker, block, recorder
        self._body = worker.flow.kernel.body
        self._stepper: Stepper | None = None
        if schedule is not None:
            self._stepper = Stepper(
                schedule,
                worker.warps,
                self._body,
                status=self._status,
                land=self._land,
                release=self._release,
            )
        self._callback = _Stop(self._on_stop)
        worker.set_field("stop_function", ctypes.cast(self._callback, ctypes.c_void_p).value or 0)
        worker.set_field("scheduled_block", block)
        worker.set_field("first_chosen", RECORDED if schedule is None else HOLD)

    @property
    def _here(self) -> bool:
        return self._worker.field("block") == self._block

    def _on_stop(self, address: int, number: int, lanes: int) -> int:
        try:
            warp = self._worker.warp_number(address)
            if self._recorder is not None and number >= 0:
                self._recorder.begin(warp, number, lanes)
            if self._stepper is None:
                return 0
            if number < 0:
                stops = self._stepper.after(warp, -1 - number)
            else:
                stops = self._stepper.before(warp, number, lanes)
            self._choose()
            return int(stops)
        except BaseException as error:
            self._worker.fail(error)
            return 1

    def _choose(self) -> None:
        assert self._stepper is not None
        values = {Stepper.HOLD: HOLD, Stepper.FREE: FREE}
        chosen = self._stepper.chosen
        self._worker.set_field("chosen", values.get(chosen, chosen))
        if chosen >= 0 and self._worker.warp_fields("status")[chosen] == PARKED:
            self._worker.warp_fields("status")[chosen] = RUNNING

    def _status(self, warp: int) -> int:
        status = int(self._worker.warp_fields("status")[warp])
        return {AT_BARRIER: WAITS, AT_PHASE: WAITS, DONE: ENDED}.get(status, GOES)

    def _release(self) -> None:
        status = self._worker.warp_fields("status")
        status[status == PARKED] = RUNNING

    def _land(self, copy: object) -> bool:
        assert isinstance(copy, Copy)
        return self._worker.phases is not None and self._worker.phases.land(copy)

    def _place(self, warp: int) -> str:
        number = int(self._worker.warp_fields("instruction")[warp])
        return "{}:{}".format(*place_of(self._body[number]))

    # What the machine asks

    def advance(self) -> bool:
        """No warp runs: go on with the next step of the schedule; False if there is none.

        Raises:
            DeviceError: a step is not possible.
        """
        if self._stepper is None or not self._here or not self._stepper.advance(self._place):
            return False
        self._choose()
        return True

    def finish(self) -> None:
        """The launch has ended.

        Raises:
            DeviceError: steps of the schedule are left.
        """
        if self._stepper is not None:
            self._stepper.finish()

    def holds(self, copy: Copy) -> bool:
        """Whether the schedule says when a copy takes effect, which is issued now."""
        held = self._stepper is not None and self._here
        return held and self._stepper is not None and self._stepper.holds(copy.thread, copy)

    def answered(self, warp: int, number: int, lanes: int, *, done: bool) -> None:
        """Lanes have asked for the phase of an mbarrier."""
        if self._recorder is not None and self._here:
            self._recorder.answered(warp, number, lanes, done=done)
        if self._stepper is not None and self._here:
            self._stepper.answered(warp, number, lanes, done=done)
