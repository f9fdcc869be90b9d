"""SM clock, power, energy and temperature of a GPU right now, as NVML tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

# NVML_TEMPERATURE_GPU; the bindings have named it differently over time.
_GPU_DIE = 0

Probe = Callable[[], float]


def management_probes(stream: Any) -> Mapping[str, Probe]:
    """Functions that ask NVML about a cuda.core stream's device: those that answer, by topic.

    "sm_clock_mhz", "power_watts" (of the board, at this instant where the driver tells it, else
    over the last second), "energy_joules" (of the board since the driver was loaded) and
    "temperature_c". Containers and old drivers lack some or all.
    """
    with suppress(Exception):
        from cuda.bindings import nvml

        nvml.init_v2()
        handle = nvml.device_get_handle_by_pci_bus_id_v2(stream.device.pci_bus_id)
        return _answering(_probes(nvml, handle))
    return {}


def _probes(nvml: Any, handle: int) -> dict[str, tuple[Probe, ...]]:
    """Ways to ask for each thing, the best first."""

    def power_now() -> float:
        fields = nvml.FieldValue(1)
        fields.field_id = int(nvml.FieldId.DEV_POWER_INSTANT)
        nvml.device_get_field_values(handle, fields)
        (value,) = fields.value
        return float(value["ui_val"]) / 1e3

    return {
        "sm_clock_mhz": (
            lambda: float(nvml.device_get_clock_info(handle, nvml.ClockType.CLOCK_SM)),
        ),
        "power_watts": (power_now, lambda: nvml.device_get_power_usage(handle) / 1e3),
        "energy_joules": (lambda: nvml.device_get_total_energy_consumption(handle) / 1e3,),
        "temperature_c": (lambda: float(nvml.device_get_temperature_v(handle, _GPU_DIE)),),
    }


def _answering(probes: Mapping[str, tuple[Probe, ...]]) -> dict[str, Probe]:
    """The first way of each that gives a sensible number."""
    found: dict[str, Probe] = {}
    for name, ways in probes.items():
        for way in ways:
            with suppress(Exception):
                if way() > 0:
                    found[name] = way
                    break
    return found
