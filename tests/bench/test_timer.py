from contextlib import contextmanager

import pytest

from gemmkit.bench import timer
from gemmkit.bench.timer import (
    GRAPH_US,
    MAX_LAUNCHES,
    MAX_SAMPLES,
    MIN_SAMPLES,
    fastest_first,
    time_in_turn,
)


@pytest.fixture
def device(fakes):
    return fakes["FakeTimedDevice"]()


@pytest.fixture
def rotation(fakes, device):
    def make(name, microseconds, sets=1):
        return [fakes["FakeWork"](device, f"{name}{i}", microseconds) for i in range(sets)]

    return make


def test_time_is_per_launch(device, rotation):
    (found,) = time_in_turn(device, [rotation("a", 30.0, sets=4)])
    assert found.median == found.p20 == found.p80 == found.mean == pytest.approx(30.0)
    assert found.minimum == found.maximum == pytest.approx(30.0)


def test_percentiles_are_of_the_samples():
    found = timer.summary([5.0, 1.0, 2.0, 3.0, 4.0, 6.0])
    assert (found.minimum, found.maximum, found.samples) == (1.0, 6.0, 6)
    assert found.median == found.mean == 3.5
    assert (found.p20, found.p80) == (2.0, 5.0)


def test_short_launches_share_a_long_graph(device, rotation):
    works = rotation("a", 30.0, sets=4)
    time_in_turn(device, [works])
    graph = device.recorded[-1]
    assert len(graph) * 30.0 >= GRAPH_US
    assert graph == works * (len(graph) // 4), "the sets of buffers must rotate"


def test_tiny_launches_are_capped(device, rotation):
    time_in_turn(device, [rotation("a", 0.0, sets=3)])
    assert len(device.recorded[-1]) == MAX_LAUNCHES // 3 * 3


def test_long_launches_run_alone(device, rotation):
    (found,) = time_in_turn(device, [rotation("a", 2e6)], seconds=1.0)
    assert [len(graph) for graph in device.recorded] == [1]
    assert found.samples == MIN_SAMPLES


def test_samples_follow_the_budget(device, rotation):
    pair = [rotation("a", 5e3), rotation("b", 15e3)]
    found = time_in_turn(device, pair, seconds=0.4)
    assert [each.samples for each in found] == [20, 20]
    found = time_in_turn(device, pair, seconds=1e6)
    assert [each.samples for each in found] == [MAX_SAMPLES, MAX_SAMPLES]


def test_rotations_run_in_turn_back_and_forth(device, rotation):
    time_in_turn(device, [rotation("a", 5e5), rotation("b", 5e5)], seconds=0.1)
    samples = device.log[-2 * MIN_SAMPLES :]
    assert samples[:4] == ["a0", "b0", "b0", "a0"]
    assert device.log[0] == "eager a0", "libraries set themselves up before a recording"


def test_fastest_first_samples_only_what_is_near_the_fastest(device, rotation):
    times = {"a": 40.0, "b": 90.0, "c": 30.0, "d": 35.0, "e": 60.0}
    order = fastest_first(device, [rotation(*each) for each in times.items()], seconds=0.01)
    assert order == [2, 3, 0, 4, 1]
    far = [name for name in device.log if name in ("a0", "b0", "e0")]
    assert len(far) == 2 * 3 + 1, "a look is the faster of two, and the first one warms up"


def test_long_launches_are_looked_at_once(device, rotation):
    assert fastest_first(device, [rotation("a", 2e5), rotation("b", 1e5)], seconds=0.1) == [1, 0]
    assert device.log.count("b0") == 1
    assert device.log.count("a0") == 2, "one to warm up"


def test_what_surrounds_the_samples_is_entered_after_the_warm_up(device, rotation):
    entered = []

    @contextmanager
    def during():
        entered.append(len(device.log))
        yield
        entered.append(len(device.log))

    time_in_turn(device, [rotation("a", 5e5)], during=during())
    assert entered[1] - entered[0] == MIN_SAMPLES
    assert entered[0] > 1
