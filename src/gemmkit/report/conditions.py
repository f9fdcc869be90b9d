"""What each time was measured under: clock, power, temperature, inputs, driver and compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmkit.record import ConditionsRecord, Record
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.tables import kernel_label

_Reading = Callable[[ConditionsRecord], str | None]


def _mhz(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _range(seen: ConditionsRecord) -> str | None:
    least, most = _mhz(seen.sm_clock_min_mhz), _mhz(seen.sm_clock_max_mhz)
    return None if least is None or most is None else f"{least} to {most}"


_READINGS: Mapping[str, _Reading] = {
    "SM clock,\nMHz": lambda seen: _mhz(seen.sm_clock_mhz),
    "min to max": _range,
    "power,\nW": lambda seen: None if seen.power_watts is None else f"{seen.power_watts:,.0f}",
    "temperature,\n°C": lambda seen: (
        None if seen.temperature_c is None else f"{seen.temperature_c:.0f}"
    ),
    "readings": lambda seen: str(seen.samples),
}
# Columns whose values are of the environment, by its key.
_ENVIRONMENT: Mapping[str, str] = {
    "highest clock,\nMHz": "sm_clock_max_mhz",
    "inputs": "inputs",
    "driver": "driver",
    "compiler": "compiler",
}


def conditions_table(records: Sequence[Record]) -> Table | None:
    """A row per timed record, with the columns that some of them fill; None if nothing was timed.

    What is the same in all of several rows stands below the table. The clock is the median of
    NVML's readings while samples were taken, the power their mean.
    """
    timed = [each for each in records if each.time_us is not None]
    if not timed:
        return None
    several = len({each.problem.shape for each in timed}) > 1
    columns: dict[Column, list[str | None]] = {
        Column("kernel", "left"): [kernel_label(each) for each in timed],
    }
    if several:
        columns[Column("problem", "left")] = [each.problem.shape for each in timed]
    columns[Column("TFLOP/s")] = [
        None if each.tflops is None else f"{each.tflops:,.2f}" for each in timed
    ]
    columns[Column("samples")] = [str(each.time_us.samples) for each in timed if each.time_us]
    for title, reading in _READINGS.items():
        columns[Column(title)] = [
            None if each.conditions is None else reading(each.conditions) for each in timed
        ]
    common = []
    for title, key in _ENVIRONMENT.items():
        values = [_text(each.environment.get(key)) for each in timed]
        if len(timed) > 1 and len(set(values)) == 1 and values[0] is not None:
            common.append(_told(title, values[0]))
        else:
            columns[Column(title, "right" if "MHz" in title else "left")] = values
    shown = {column: values for column, values in columns.items() if any(values)}
    rows = zip(*shown.values(), strict=True)
    return Table(
        "Conditions",
        tuple(shown),
        tuple(Row(tuple(Cell(value or MISSING) for value in row)) for row in rows),
        (f"In all rows: {'; '.join(common)}.",) if common else (),
    )


def conditions_text(record: Record) -> str:
    """Clock and power of a record in a few words, empty if unknown."""
    seen = record.conditions
    if seen is None:
        return ""
    parts = []
    if seen.sm_clock_mhz is not None:
        parts.append(f"{seen.sm_clock_mhz:,.0f} MHz")
    if seen.power_watts is not None:
        parts.append(f"{seen.power_watts:,.0f} W")
    return ", ".join(parts)


def _told(title: str, value: str) -> str:
    name, _, unit = title.partition(",\n")
    return f"{name} {value} {unit}".strip()


def _text(value: object) -> str | None:
    return None if value is None else f"{value:,}" if isinstance(value, int) else str(value)
