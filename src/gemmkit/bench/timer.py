"""Times launches on a GPU: CUDA graphs over rotating buffers, replayed in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from gemmkit.devices.device import Replay, Work
from gemmkit.record import TimeRecord

# Long enough that reading the clock and starting the graph are a fraction of a percent.
GRAPH_US = 2000.0
MAX_LAUNCHES = 2048
# What CUDA events tell apart; a shorter time may read as none.
RESOLUTION_US = 0.5

# An idle GPU needs this long at most to raise its clocks.
WARM_UP_S = 0.2
SECONDS = 1.0
MIN_SAMPLES, MAX_SAMPLES = 5, 200

# To find the fastest of many: what is that much slower at a first look is out. Single launches
# that take long differ little from look to look.
LOOK_MARGIN, LONG_LOOK_MARGIN, LONG_US = 1.25, 1.08, 2e4
LEAST_SAMPLES = 3


class Recorder(Protocol):
    """What the timer needs of a device: a stream, and launches recorded to be replayed."""

    @property
    def stream(self) -> Any:
        """Where works are put that are not recorded."""

    def record(self, works: Sequence[Work], kept: Sequence[object] = ()) -> Replay:
        """As of `TimedDevice`."""


# The same launch on each of several sets of buffers, through which a measurement rotates.
Rotation = Sequence[Work]


def time_in_turn(
    device: Recorder,
    rotations: Sequence[Rotation],
    *,
    seconds: float = SECONDS,
    kept: Sequence[object] = (),
    during: AbstractContextManager[object] | None = None,
) -> list[TimeRecord]:
    """Microseconds per launch of each rotation, all measured in one run.

    A sample is the time of a graph of launches over their number, so gaps between launches count
    and starting the graph hardly does. They are sampled in turn, back and forth, so that
    clocks and temperature treat them alike. The number of samples follows from `seconds` (of all
    rotations together, warm-up apart), within 5 and 200.

    Args:
        device: where to run.
        rotations: for each the launches to rotate through.
        seconds: time to spend on samples.
        kept: the buffers that the launches use.
        during: entered while samples are taken, warm-up apart.
    """
    recorded = [RecordedRotation(device, rotation, kept) for rotation in rotations]
    for each in recorded:
        each.lengthen()
    return _sample_in_turn(recorded, seconds, MIN_SAMPLES, during)


def fastest_first(
    device: Recorder,
    rotations: Sequence[Rotation],
    *,
    seconds: float,
    kept: Sequence[object] = (),
) -> list[int]:
    """The rotations' numbers, the fastest first, for less time than `time_in_turn` takes.

    Those that a first look finds near the fastest are timed in turn, for `seconds` each, or three
    times where that is longer; the others follow in the order of that look.
    """
    recorded = [RecordedRotation(device, rotation, kept) for rotation in rotations]
    _warm_up(recorded[:1])
    looks = [each.look() for each in recorded]
    order = sorted(range(len(looks)), key=looks.__getitem__)
    margin = LOOK_MARGIN if looks[order[0]] < LONG_US else LONG_LOOK_MARGIN
    near = [number for number in order if looks[number] <= margin * looks[order[0]]]
    if len(near) > 1:
        for number in near:
            recorded[number].lengthen()
        budget = seconds * len(near)
        times = _sample_in_turn([recorded[number] for number in near], budget, LEAST_SAMPLES)
        medians = {number: each.median for number, each in zip(near, times, strict=True)}
        order[: len(near)] = sorted(near, key=medians.__getitem__)
    return order


class RecordedRotation:
    """A rotation as a graph: at first of one launch on each set of buffers."""

    def __init__(self, device: Recorder, rotation: Rotation, kept: Sequence[object]) -> None:
        self._device, self._rotation, self._kept = device, rotation, kept
        # Once outside of a recording: libraries load code and take workspaces on first use.
        rotation[0](device.stream)
        self.launches = len(rotation)
        self.replay: Replay = device.record(rotation, kept)

    def look(self) -> float:
        """Microseconds of one launch, roughly; long ones are timed once only."""
        first = self.replay.microseconds()
        if first < LONG_US:
            first = min(first, self.replay.microseconds())
        return max(RESOLUTION_US, first) / self.launches

    def lengthen(self, microseconds: float = GRAPH_US) -> None:
        """Repeat the launches until one replay takes so long; by default, to be timed well."""
        times = math.ceil(microseconds / (self.look() * self.launches))
        times = max(1, min(times, MAX_LAUNCHES // self.launches))
        if times > 1:
            self.replay = self._device.record(list(self._rotation) * times, self._kept)
            self.launches *= times


def _sample_in_turn(
    recorded: Sequence[RecordedRotation],
    seconds: float,
    least: int,
    during: AbstractContextManager[object] | None = None,
) -> list[TimeRecord]:
    round_us = max(RESOLUTION_US, _warm_up(recorded))
    rounds = min(MAX_SAMPLES, max(least, int(seconds * 1e6 / round_us)))
    samples: list[list[float]] = [[] for _ in recorded]
    with during or nullcontext():
        for number in range(rounds):
            order = range(len(recorded))
            for index in order if number % 2 == 0 else reversed(order):
                each = recorded[index]
                samples[index].append(each.replay.microseconds() / each.launches)
    return [summary(each) for each in samples]


def _warm_up(recorded: Sequence[RecordedRotation]) -> float:
    """Replay until the clocks are up; the microseconds of the last round."""
    end = time.monotonic() + WARM_UP_S
    while True:
        round_us = sum(each.replay.microseconds() for each in recorded)
        if time.monotonic() >= end:
            return round_us


def summary(samples: Sequence[float]) -> TimeRecord:
    """What is reported of some samples of one candidate, in microseconds per launch."""
    p20, median, p80 = (float(each) for each in np.percentile(samples, (20, 50, 80)))
    return TimeRecord(
        median=median,
        p20=p20,
        p80=p80,
        minimum=min(samples),
        mean=float(np.mean(samples)),
        maximum=max(samples),
        samples=len(samples),
    )
