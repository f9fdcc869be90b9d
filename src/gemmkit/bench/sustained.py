"""Speed at the board's power limit: bursts after a rest, then turns of a second without one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmkit.bench.conditions import Conditions, Probe, watched
from gemmkit.bench.timer import GRAPH_US, RecordedRotation, Recorder, Rotation, summary
from gemmkit.record import SustainedRecord

# Long enough for the board's power average to fall to that of an idle board.
REST_S = 5.0
BURST_S = 0.1
# In the first half of a turn the clock adapts to the candidate; the second half is measured.
TURN_S = 1.0
# The host is in the way between two replays. In longer ones the board rests less.
REPLAY_US = 5 * GRAPH_US
ENERGY = "energy_joules"

# Seconds, and joules or launches until then.
Reading = tuple[float, float]


def time_sustained(
    device: Recorder,
    rotations: Sequence[Rotation],
    *,
    seconds: float,
    kept: Sequence[object] = (),
    probes: Mapping[str, Probe] | None = None,
) -> list[SustainedRecord]:
    """Burst, sustained speed and energy of each rotation, all measured in one run.

    First each runs for a tenth of a second after five seconds of rest. Then they follow each other
    without a rest, for a second each, back and forth, so that clocks and temperature treat them
    alike; the second half of each turn is measured.

    Args:
        device: where to run.
        rotations: for each the launches to rotate through.
        seconds: that each rotation runs in the second part, rounded up to whole turns.
        kept: the buffers that the launches use.
        probes: what NVML answers, as of `management_probes`.
    """
    found = [_Measured(RecordedRotation(device, each, kept), probes or {}) for each in rotations]
    for each in found:
        each.recorded.lengthen(REPLAY_US)
    for each in found:
        time.sleep(REST_S)
        each.burst += each.replays(BURST_S)
    for number in range(max(1, round(seconds / TURN_S))):
        for each in found if number % 2 == 0 else reversed(found):
            each.turn()
    return [each.record() for each in found]


@dataclass(eq=False)
class _Measured:
    """A rotation and what was seen of it."""

    recorded: RecordedRotation
    probes: Mapping[str, Probe]
    burst: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    conditions: Conditions = field(default_factory=Conditions)
    joules: float = 0.0
    launches: float = 0.0

    def replays(self, seconds: float) -> Iterator[float]:
        """Microseconds per launch of replays for so long, at least one."""
        end = time.monotonic() + seconds
        while True:
            yield self.recorded.replay.microseconds() / self.recorded.launches
            if time.monotonic() >= end:
                return

    def turn(self) -> None:
        """A turn, the second half of which is measured."""
        for _ in self.replays(TURN_S / 2):
            pass
        changes: list[Reading] = []
        progress: list[Reading] = [(time.monotonic(), 0.0)]
        with watched(self._noting(changes), self.conditions):
            for number, each in enumerate(self.replays(TURN_S / 2), 1):
                self.late.append(each)
                progress.append((time.monotonic(), number * self.recorded.launches))
        joules, launches = energy(changes, progress)
        self.joules += joules
        self.launches += launches

    def _noting(self, changes: list[Reading]) -> dict[str, Probe]:
        """The probes, of which that of the energy notes when its value has changed."""
        probes = dict(self.probes)
        counter = probes.pop(ENERGY, None)
        if counter is not None:
            last: list[float] = []

            def noted() -> float:
                value = counter()
                if last and value != last[-1]:
                    changes.append((time.monotonic(), value))
                last.append(value)
                return value

            probes[ENERGY] = noted
        return probes

    def record(self) -> SustainedRecord:
        """What was seen."""
        sustained, conditions = summary(self.late), self.conditions.record()
        joules = self.joules / self.launches if self.launches else None
        if joules is None and conditions is not None and conditions.power_watts is not None:
            joules = conditions.power_watts * sustained.median / 1e6
        return SustainedRecord(
            burst_us=summary(self.burst),
            sustained_us=sustained,
            joules=joules,
            conditions=conditions,
        )


def energy(changes: Sequence[Reading], progress: Sequence[Reading]) -> tuple[float, float]:
    """Joules, and launches in the same time; both 0 where the counter did not change twice.

    NVML's counter advances a few times in a second only, so what counts is the time between the
    first and the last reading at which it had just changed.

    Args:
        changes: seconds and joules of readings that differ from the one before.
        progress: seconds, and how many launches had ended by then.
    """
    if len(changes) < 2:
        return 0.0, 0.0
    (begin, first), (end, last) = changes[0], changes[-1]
    times, launches = zip(*progress, strict=True)
    before, after = np.interp([begin, end], times, launches)
    return last - first, float(after - before)
