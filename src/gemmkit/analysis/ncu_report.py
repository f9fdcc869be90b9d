"""Reads Nsight Compute's exports: the metrics of each launch from `ncu --csv --page raw`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmkit.errors import UsageError

_NAME = "Kernel Name"
# Columns that identify the launch and are not metrics.
_ABOUT = frozenset([
    *("ID", "Process ID", "Process Name", "Host Name", "thread Domain:Push/Pop_Range:PL_Type"),
    *("Context", "Stream", "Device", "CC", "Block Size", "Grid Size", "Section Name", _NAME),
])  # fmt: skip
_OTHER_PAGES = frozenset(["Metric Name", "Metric Value", "Source", "SASS", "#"])
# ncu's units in the base units of gemmkit's metrics.
_SCALES = {
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "Kbyte/block": 1e3,
    "ns": 1e-3,
    "nsecond": 1e-3,
    "ms": 1e3,
    "msecond": 1e3,
    "s": 1e6,
    "second": 1e6,
}


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """One launch that Nsight Compute measured: metric name to value, in base units."""

    kernel: str
    metrics: Mapping[str, float]


def read_report(path: Path) -> tuple[MeasuredLaunch, ...]:
    """The launches of an export, in order; metrics that are not numbers are left out.

    Lines of ncu's own messages around the table are skipped. Times become microseconds, byte
    counts bytes.

    Raises:
        UsageError: the file cannot be read, or holds no such table.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: use an export of ncu") from error
    rows = list(csv.reader(line for line in lines if line.startswith('"')))
    # Other pages of a report have several rows per launch.
    if not rows or _NAME not in rows[0] or _OTHER_PAGES & {*rows[0]}:
        raise UsageError(
            f"{path} has no table of raw metrics: write one with `ncu --csv --page raw`"
        )
    head, units, launches = rows[0], rows[1:2], rows[2:]
    if units and units[0][0]:
        raise UsageError(f"{path} has no row of units: write it with `ncu --csv --page raw`")
    if not launches:
        raise UsageError(f"{path} has no launch below the names and units of its metrics")
    found = []
    for row in launches:
        metrics = {}
        for name, unit, text in zip(head, units[0], row, strict=False):
            value = _number(text)
            if name not in _ABOUT and value is not None:
                metrics[name] = value * _SCALES.get(unit, 1.0)
        found.append(MeasuredLaunch(row[head.index(_NAME)], metrics))
    return tuple(found)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
