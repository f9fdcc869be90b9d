"""Times launches on a GPU: CUDA graphs over rotating buffers, replayed in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from gemmkit.devices.device import Replay, TimedDevice, Work
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

# One contender: the same launch on each of several sets of buffers, which it takes in rotation.
Contender = Sequence[Work]


def time_in_turn(
    device: TimedDevice,
    contenders: Sequence[Contender],
    *,
    seconds: float = SECONDS,
    kept: Sequence[object] = (),
) -> list[TimeRecord]:
    """Microseconds per launch of each contender, all measured in one run.

    A sample is the time of a graph of launches over their number, so gaps between launches count
    and starting the graph hardly does. Contenders are sampled in turn, back and forth, so that
    clocks and temperature treat them alike. The number of samples follows from `seconds` (of all
    contenders together, warm-up apart), within 5 and 200.

    Args:
        device: where to run.
        contenders: for each the launches to rotate through.
        seconds: time to spend on samples.
        kept: the buffers that the launches use.
    """
    recorded = [_Recorded(device, contender, kept) for contender in contenders]
    round_us = max(RESOLUTION_US, _warm_up(recorded))
    rounds = min(MAX_SAMPLES, max(MIN_SAMPLES, int(seconds * 1e6 / round_us)))
    samples: list[list[float]] = [[] for _ in recorded]
    for number in range(rounds):
        order = range(len(recorded))
        for index in order if number % 2 == 0 else reversed(order):
            each = recorded[index]
            samples[index].append(each.replay.microseconds() / each.launches)
    return [_summary(each) for each in samples]


class _Recorded:
    """A contender as a graph of `launches` launches."""

    def __init__(self, device: TimedDevice, contender: Contender, kept: Sequence[object]) -> None:
        # Once outside of a recording: libraries load code and take workspaces on first use.
        contender[0](device.stream)
        once_each = device.record(contender, kept)
        estimate = max(RESOLUTION_US, min(once_each.microseconds() for _ in range(2)))
        times = math.ceil(GRAPH_US / estimate)
        times = max(1, min(times, MAX_LAUNCHES // len(contender)))
        self.launches = times * len(contender)
        self.replay: Replay = once_each
        if times > 1:
            self.replay = device.record(list(contender) * times, kept)


def _warm_up(recorded: Sequence[_Recorded]) -> float:
    """Replay until the clocks are up; the microseconds of the last round."""
    end = time.monotonic() + WARM_UP_S
    while True:
        round_us = sum(each.replay.microseconds() for each in recorded)
        if time.monotonic() >= end:
            return round_us


def _summary(samples: Sequence[float]) -> TimeRecord:
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
