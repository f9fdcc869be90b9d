"""Speed and energy at the board's power limit as a table: a row per product and library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gemmkit.bench.peers import BEST, DEFAULT, GEMMKIT
from gemmkit.kernels.layouts import layout_text
from gemmkit.record import Record, SustainedRecord
from gemmkit.report.comparison import geometric_mean
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.tables import kernel_label, number

_COLUMNS = (
    Column("product", "left"),
    Column("who", "left"),
    Column("burst\nTFLOP/s"),
    Column("sustained\nTFLOP/s"),
    Column("SM\nMHz", drop=3),
    Column("W", drop=2),
    Column("mJ per\nproduct", drop=1),
    Column("pJ per\nflop"),
    Column("× burst"),
    Column("× sustained"),
    Column("× energy"),
)
# How a library came to the way that is measured.
_CHOICES = {DEFAULT: ", as it picks", BEST: ", best"}


def sustained_tables(records: Sequence[Record]) -> list[Table]:
    """The table of those that were measured at the power limit; none if there are none."""
    found = [each for each in records if each.sustained is not None]
    if not found:
        return []
    rows = [row for record in found for row in _rows(record)]
    title = f"\nAfter a rest, and at the power limit, on {found[0].device.gpu}"
    return [Table(title, _COLUMNS, tuple(rows), tuple(_footnotes(found)))]


def fastest_sustained(record: Record) -> SustainedRecord | None:
    """The library that is fastest at the power limit; None without one."""
    theirs = (
        each.sustained
        for each in record.peers
        if each.vendor != GEMMKIT and each.sustained is not None
    )
    return min(theirs, key=lambda each: each.sustained_us.median, default=None)


def _rows(record: Record) -> Iterator[Row]:
    ours = record.sustained
    assert ours is not None
    problem = record.problem
    name = f"{problem.shape} {problem.types} {layout_text(problem.layout)}"
    yield Row((Cell(name), Cell(kernel_label(record)), *_figures(record, ours, None)))
    for peer in record.peers:
        if peer.sustained is not None:
            library = f"{peer.name.partition(' (')[0]}{_CHOICES.get(peer.choice, '')}"
            yield Row((Cell(name), Cell(library), *_figures(record, peer.sustained, ours)))


def _figures(record: Record, seen: SustainedRecord, ours: SustainedRecord | None) -> Iterable[Cell]:
    """The columns after the names; ratios are of a library's time and energy to gemmkit's."""
    flops = _flops(record)
    for times in (seen.burst_us, seen.sustained_us):
        yield number(flops / times.median / 1e6, 1)
    conditions = seen.conditions
    yield number(conditions.sm_clock_mhz if conditions else None, 0)
    yield number(_watts(seen), 0)
    yield number(None if seen.joules is None else 1e3 * seen.joules, 2)
    yield number(None if seen.joules is None else 1e12 * seen.joules / flops, 3)
    if ours is None:
        yield from [Cell(MISSING)] * 3
        return
    for ratio in (
        seen.burst_us.median / ours.burst_us.median,
        seen.sustained_us.median / ours.sustained_us.median,
        _energy_ratio(seen, ours),
    ):
        if ratio is None:
            yield Cell(MISSING)
        else:
            yield Cell(f"{ratio:.3f}", "good" if ratio >= 1 else "bad")


def _watts(seen: SustainedRecord) -> float | None:
    """Power by energy and time; NVML's own readings lag behind, on some boards by minutes."""
    if seen.joules is None:
        return seen.conditions.power_watts if seen.conditions else None
    return 1e6 * seen.joules / seen.sustained_us.median


def _energy_ratio(seen: SustainedRecord, ours: SustainedRecord) -> float | None:
    return seen.joules / ours.joules if seen.joules and ours.joules else None


def _flops(record: Record) -> float:
    """Of the problem, from the speed and the time of the same record."""
    if record.tflops is None or record.time_us is None:
        raise ValueError("a record with a sustained speed has a time")
    return record.tflops * record.time_us.median * 1e6


def _footnotes(records: Sequence[Record]) -> Iterable[str]:
    pairs = [
        (peer, each.sustained)
        for each in records
        if (peer := fastest_sustained(each)) is not None and each.sustained is not None
    ]
    if pairs:
        speed = [its.sustained_us.median / own.sustained_us.median for its, own in pairs]
        yield (
            f"× sustained of the fastest library: geometric mean {geometric_mean(speed):.3f}, "
            f"minimum {min(speed):.3f}."
        )
        energy = [each for its, own in pairs if (each := _energy_ratio(its, own)) is not None]
        if energy:
            yield f"× energy of the same: geometric mean {geometric_mean(energy):.3f}."
    yield (
        "Burst: the first 0.1 s after 5 s of rest. Sustained: the second halves of turns of a "
        "second, in turn. Ratios are the library's time or energy to gemmkit's."
    )
