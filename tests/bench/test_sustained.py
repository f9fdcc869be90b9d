"""Bursts, sustained speed and energy, on a device without hardware and a clock that it drives."""

import pytest

from gemmkit.bench import sustained as module
from gemmkit.bench.sustained import REST_S, TURN_S, energy, time_sustained


class Clock:
    """Time that passes with replays and rests only."""

    def __init__(self):
        self.now, self.rests = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.rests.append(self.now)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


class Replay:
    """Launches slow down by half as soon as 0.3 s have passed without a rest."""

    def __init__(self, device, works):
        self.device, self.works = device, works

    def microseconds(self):
        clock = self.device.clock
        rested = bool(clock.rests) and clock.now - (clock.rests[-1] + REST_S) < 0.3
        slow = 1.0 if rested else 1.5
        took = sum(each.microseconds for each in self.works) * slow
        clock.now += took / 1e6
        self.device.replayed.append((clock.now, self.works[0].name))
        return took


@pytest.fixture
def device(fakes, clock):
    found = fakes["FakeTimedDevice"]()
    found.clock, found.replayed = clock, []
    found.record = lambda works, kept=(): Replay(found, list(works))
    return found


def rotation(fakes, device, name, microseconds):
    return [fakes["FakeWork"](device, name, microseconds)]


def test_a_burst_is_faster_than_what_is_sustained(fakes, device):
    pair = [rotation(fakes, device, "a", 1000.0), rotation(fakes, device, "b", 2000.0)]
    first, second = time_sustained(device, pair, seconds=2.0)
    assert first.burst_us.median == pytest.approx(1000.0)
    assert second.burst_us.median == pytest.approx(2000.0)
    assert first.sustained_us.median == pytest.approx(1500.0)
    assert second.sustained_us.median == pytest.approx(3000.0)
    assert first.joules is None
    assert first.conditions is None


def test_turns_go_back_and_forth_without_a_rest(fakes, device, clock):
    pair = [rotation(fakes, device, "a", 1000.0), rotation(fakes, device, "b", 1000.0)]
    time_sustained(device, pair, seconds=2 * TURN_S)
    late = [name for when, name in device.replayed if when > clock.rests[-1] + REST_S + 0.2]
    turns = [name for name, before in zip(late, ["", *late], strict=False) if name != before]
    assert turns[-3:] == ["a", "b", "a"], "the turns of b follow each other"
    assert len(clock.rests) == 2


def test_long_launches_run_at_least_once_in_each_half(fakes, device):
    (found,) = time_sustained(device, [rotation(fakes, device, "a", 3e6)], seconds=1.0)
    assert found.burst_us.samples == 1
    assert found.sustained_us.samples == 1


def test_energy_without_a_counter_is_power_times_time(fakes, device):
    probes = {"power_watts": lambda: 600.0}
    (found,) = time_sustained(
        device, [rotation(fakes, device, "a", 1000.0)], seconds=1.0, probes=probes
    )
    assert found.joules == pytest.approx(600.0 * 1.5e-3)
    assert found.conditions.power_watts == 600.0


def test_energy_is_that_between_changes_of_the_counter():
    progress = [(second / 10, 100 * second) for second in range(11)]
    changes = [(0.25, 1000.0), (0.5, 1100.0), (0.75, 1300.0)]
    assert energy(changes, progress) == (pytest.approx(300.0), pytest.approx(500.0))


def test_a_counter_that_changes_once_tells_nothing():
    assert energy([(0.3, 10.0)], [(0.0, 0.0), (1.0, 5.0)]) == (0.0, 0.0)
    assert energy([], [(0.0, 0.0), (1.0, 5.0)]) == (0.0, 0.0)
