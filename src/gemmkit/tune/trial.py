"""`Bench`: where candidates are checked and timed, all on the same matrices of one device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from gemmkit.bench.timer import Rotation, summary, time_in_turn
from gemmkit.bench.workload import Case, Workload
from gemmkit.devices.device import TimedDevice
from gemmkit.errors import DeviceError, TuningError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.record import TimeRecord
from gemmkit.storage import Stored
from gemmkit.tune.space import Candidate

# A first look takes a few graphs of launches as long as this, in microseconds.
LOOK_US = 1000.0
LOOK_SAMPLES = 4
MOST_LAUNCHES = 1024
# A candidate that takes that many times as long as the leader is not looked at again.
FAR_BEHIND = 1.4
# Launches that start one by one are timed with what starting a graph takes.
GRAPH_START_US = 5.0


@dataclass(frozen=True)
class Planned:
    """A candidate, its place in the space, and how it is launched for the problem."""

    number: int
    candidate: Candidate
    plan: LaunchPlan


@dataclass(frozen=True)
class Compiled:
    """A planned candidate that is ready to be launched."""

    planned: Planned
    binary: Binary

    @property
    def plan(self) -> LaunchPlan:
        """How it is launched."""
        return self.planned.plan


class Bench:
    """Checks and times candidates for one problem.

    The inputs of the quick check are small integers whose product fp32 represents exactly, in any
    order of summation: once one kernel's result has passed the reference's check, every other
    right kernel must give the very same numbers, at every element.

    Raises:
        DeviceError: the matrices do not fit on the device.
    """

    def __init__(self, workload: Workload, device: TimedDevice) -> None:
        self.workload, self.device = workload, device
        self.problem = workload.problem
        exact = [case for case in workload.cases if case.inputs.kind == "integer"]
        self._case = (
            exact[0] if exact else Case.make(self.problem, device, workload.seed, "integer")
        )
        self._expected: list[Stored] | None = None

    def check(self, compiled: Compiled) -> str:
        """What is wrong with the result of a launch on poisoned output, or nothing.

        Raises:
            DeviceError: the launch failed; the device still works.
            TuningError: the launch failed, and the device does not work any more.
        """
        with _Alive(self.device):
            _, result = self._case.result(self.problem, self.device, compiled.binary, compiled.plan)
        bits = [each.view(f"u{each.itemsize}") for each in result if each is not None]
        if self._expected is not None and all(map(np.array_equal, bits, self._expected)):
            return ""
        # A zero may have another sign and be right all the same.
        verdict = self._case.reference.check(*result)
        if verdict.correct and self._expected is None:
            self._expected = bits
        return verdict.detail

    def check_thoroughly(self, compiled: Compiled) -> str:
        """The same for random normal inputs, as every benchmark checks.

        Raises:
            DeviceError, TuningError: as `check`.
        """
        with _Alive(self.device):
            _, verdict = self.workload.run(compiled.binary, compiled.plan)
        return verdict.detail

    def look(self, compiled: Compiled, to_beat: float | None) -> TimeRecord:
        """Time a candidate, as briefly as will do to tell whether it is among the leaders.

        Args:
            compiled: what to launch.
            to_beat: the leader's microseconds; one far behind is launched a few times only.

        Raises:
            DeviceError, TuningError: as `check`.
        """
        with _Alive(self.device):
            rotation, kept = self._rotation(compiled)
            rotation[0](self.device.stream)
            once_each = self.device.record(rotation, kept)
            first = min(once_each.microseconds() for _ in range(2))
            launches = len(rotation)
            estimate = max(first - GRAPH_START_US, first / 2) / launches
            if to_beat is not None and estimate > FAR_BEHIND * to_beat:
                return summary([first / launches])
            rounds = min(math.ceil(LOOK_US / max(first, 1.0)), MOST_LAUNCHES // launches)
            replay = once_each
            if rounds > 1:
                launches *= rounds
                replay = self.device.record(list(rotation) * rounds, kept)
                replay.microseconds()
            return summary([replay.microseconds() / launches for _ in range(LOOK_SAMPLES)])

    def in_turn(
        self, compiled: Sequence[Compiled], seconds: float, others: Sequence[Rotation] = ()
    ) -> list[TimeRecord]:
        """Time leaders in turn with `others`, so that the clock's drift treats all alike.

        Raises:
            DeviceError, TuningError: as `check`.
        """
        with _Alive(self.device):
            pairs = [self._rotation(each) for each in compiled]
            kept = [each for _, some in pairs for each in some]
            rotations = [*(rotation for rotation, _ in pairs), *others]
            return time_in_turn(self.device, rotations, seconds=seconds, kept=kept)

    def _rotation(self, compiled: Compiled) -> tuple[Rotation, list[object]]:
        """The launch on each set of buffers, and what must be kept for it."""
        works, kept = self.workload.works(self.device, compiled.binary, compiled.plan)
        return works, [*self.workload.kept, *kept]


class _Alive:
    """Tells a launch that failed from a device that is lost."""

    def __init__(self, device: TimedDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, DeviceError):
            return
        with suppress(DeviceError):
            self._device.upload(np.zeros(1, np.int32))
            return
        raise TuningError(
            f"{error}; the GPU must be opened anew. What was tried is kept: the same command goes "
            "on with the rest"
        ) from error
