"""Clock and power while something is timed, from probes that answer, fail, or are not there."""

from __future__ import annotations

import itertools
import sys
import types

import pytest

from gemmkit.bench import conditions as conditions_module
from gemmkit.bench.conditions import Conditions, watched
from gemmkit.devices.management import management_probes


def test_what_is_recorded():
    clock = itertools.cycle([1900.0, 1980.0, 1700.0])
    power = itertools.count(100.0, 10.0)
    seen = Conditions()
    for _ in range(3):
        seen.ask({"sm_clock_mhz": clock.__next__, "power_watts": power.__next__})
    found = seen.record()
    assert (found.sm_clock_mhz, found.sm_clock_min_mhz, found.sm_clock_max_mhz) == (
        1900.0,
        1700.0,
        1980.0,
    )
    assert found.power_watts == pytest.approx(110.0)
    assert found.temperature_c is None
    assert found.samples == 3


def test_a_probe_that_fails_does_not_matter():
    def broken():
        raise RuntimeError("the driver is gone")

    seen = Conditions()
    with watched({"sm_clock_mhz": broken, "temperature_c": lambda: 50.0}, seen):
        pass
    assert seen.record().sm_clock_mhz is None
    assert seen.record().temperature_c == 50.0


def test_they_are_asked_again_and_again_until_the_end(monkeypatch):
    monkeypatch.setattr(conditions_module, "INTERVAL_S", 0.0001)
    seen, asked = Conditions(), itertools.count()
    enough = conditions_module.threading.Event()

    def probe():
        if next(asked) == 3:
            enough.set()
        return 1.0

    with watched({"power_watts": probe}, seen):
        assert enough.wait(60)
    count = len(seen.seen["power_watts"])
    assert count >= 4
    assert len(seen.seen["power_watts"]) == count, "the thread has ended"


def test_nothing_to_ask():
    seen = Conditions()
    with watched({}, seen):
        pass
    assert seen.record() is None


class Stream:
    device = types.SimpleNamespace(pci_bus_id="0000:01:00.0")


def test_no_nvml_no_probes(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", None)
    assert management_probes(Stream()) == {}


def test_the_second_way_is_taken_where_the_first_fails(monkeypatch):
    nvml = types.ModuleType("cuda.bindings.nvml")
    nvml.init_v2 = lambda: None
    nvml.device_get_handle_by_pci_bus_id_v2 = lambda bus: bus == "0000:01:00.0"
    nvml.ClockType = types.SimpleNamespace(CLOCK_SM=1)
    nvml.device_get_clock_info = lambda handle, clock: 1980
    nvml.device_get_power_usage = lambda handle: 654_321
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", nvml)
    import cuda.bindings

    monkeypatch.setattr(cuda.bindings, "nvml", nvml, raising=False)
    probes = management_probes(Stream())
    assert {name: probe() for name, probe in probes.items()} == {
        "sm_clock_mhz": 1980.0,
        "power_watts": pytest.approx(654.321),
    }
