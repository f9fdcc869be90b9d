"""Comparisons as tables: a row per problem with the ratio to every peer, and percent of peak."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from gemmkit.bench.linear_peer import COMPILED, EAGER
from gemmkit.bench.peers import BEST, CUBLAS, DEFAULT, GEMMKIT, PLAIN
from gemmkit.bench.suites import TOPICS
from gemmkit.kernels.layouts import layout_text
from gemmkit.kernels.plan import ceil_div
from gemmkit.record import PeerRecord, ProblemRecord, Record
from gemmkit.report.groups import groups_table
from gemmkit.report.layers import layers_table
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.tables import correctness, kernel_label, number, residency_cells

_UNNAMED = "other shapes"
# The part of a cuBLAS candidate's name that identifies its algorithm; the last match counts.
_WAY = re.compile(r"heuristic \d+|cublas\w+")
# Peers besides cuBLAS: the heading of each, its library, and its choice or None for the fastest.
OTHERS = (
    ("torch", "torch", None),
    ("linear, eager", "linear", EAGER),
    ("linear, compiled", "linear", COMPILED),
    ("triton", "triton", None),
)
# The longest common tile edge.
_TILE_EDGE = 128


def by_suite(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Compared records by suite, in their original order."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record.suite].append(record)
    return dict(found)


def find_peer(record: Record, library: str, choice: str | None = None) -> PeerRecord | None:
    """A library's entry for that choice; without one, the fastest of its entries."""
    entries = [
        each for each in record.peers if each.vendor == library and choice in (None, each.choice)
    ]
    return min(entries, key=lambda each: each.time_us.median, default=None)


def others_of(records: Iterable[Record]) -> list[tuple[str, str, str | None]]:
    """Those of `OTHERS` that any record has."""
    found = list(records)
    return [each for each in OTHERS if any(find_peer(record, *each[1:]) for record in found)]


def has_types(records: Iterable[Record]) -> bool:
    """Whether any product is of other types than fp32."""
    return any(each.problem.types != "fp32" for each in records)


def ratios(records: Iterable[Record]) -> list[float]:
    """The available ratios to cuBLAS."""
    return [each.ratio_to_cublas for each in records if each.ratio_to_cublas is not None]


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of n positive values."""
    return float(np.exp(np.mean(np.log(values))))


def shape(record: Record) -> str:
    """The sizes as `MxNxK` or `MxNxKxBATCH`, or `N³` for a cube."""
    return f"{record.problem.m}³" if _is_cube(record) else record.problem.shape


def error_ratio(record: Record) -> float | None:
    """The kernel's largest error over that of cuBLAS on the same inputs; None if unknown."""
    peer = find_peer(record, CUBLAS)
    if peer is None or record.max_error is None or not peer.max_error:
        return None
    return record.max_error / peer.max_error


def fused_overhead(record: Record) -> float | None:
    """Time relative to the plain product, minus one; None without an epilogue."""
    plain = find_peer(record, GEMMKIT, PLAIN)
    return None if plain is None else 1 / plain.speedup - 1


def next_tile_share(record: Record, others: Iterable[Record]) -> float | None:
    """A cube's speed over that of the cube of the next multiple of 128, from records of one run.

    None if that cube is not among the others, or if the size is a multiple itself.
    """
    size = record.problem.m
    above = ceil_div(size, _TILE_EDGE) * _TILE_EDGE
    if above == size or not _is_cube(record) or record.tflops is None:
        return None
    found = (
        each.tflops
        for each in others
        if _is_cube(each) and each.problem.m == above and each.problem.epilogue == "none"
    )
    speed = next((each for each in found if each), None)
    return record.tflops / speed if speed else None


def _is_cube(record: Record) -> bool:
    problem = record.problem
    single = problem.batch == 1 and not problem.groups
    return single and problem.m == problem.n == problem.k


def comparison_tables(records: Sequence[Record]) -> list[Table]:
    """One table per suite, type and layout; groups and layers have tables of their own."""
    found: dict[tuple[str, str, bool], list[Record]] = defaultdict(list)
    for record in records:
        kind = _kind(record.problem) if record.layer is None else "fp32"
        found[record.suite, kind, bool(record.problem.groups)].append(record)
    tables = []
    for (suite, kind, grouped), members in found.items():
        topic = f"{suite} ({TOPICS[suite]})" if suite in TOPICS else suite or _UNNAMED
        title = f"\n{topic}, {kind}, on {members[0].device.gpu}"
        make = groups_table if grouped else _suite_table
        tables.append((make if members[0].layer is None else layers_table)(members, title))
    return tables


def _suite_table(records: Sequence[Record], title: str) -> Table:
    others = others_of(records)
    fused = any(find_peer(each, GEMMKIT, PLAIN) for each in records)
    columns = (
        Column("M×N×K"),
        Column("kernel", "left"),
        Column("max error / bound"),
        Column("median\nµs"),
        Column("p20 to p80\nµs", drop=5),
        Column("TFLOP/s"),
        *((Column("over\nplain", drop=2),) if fused else ()),
        Column("cuBLAS\nas it picks", drop=3),
        Column("cuBLAS\nbest", drop=4),
        Column("×\ncuBLAS"),
        *(Column("×\n" + heading.replace(", ", "\n")) for heading, _, _ in others),
        Column("SM\nMHz", drop=6),
        Column("W", drop=7),
    )
    rows = tuple(Row(tuple(_cells(record, others, fused=fused))) for record in records)
    return Table(title, columns, rows, tuple(_footnotes(records)))


def _kind(problem: ProblemRecord) -> str:
    """Types, and the layout if it is not row-major."""
    return " ".join([problem.types, *([layout_text(problem.layout)] * (problem.layout != "nn"))])


def _cells(
    record: Record, others: Sequence[tuple[str, str, str | None]], *, fused: bool
) -> Iterable[Cell]:
    time, seen = record.time_us, record.conditions
    yield Cell(shape(record))
    yield Cell(kernel_label(record))
    yield correctness(record)
    yield number(time.median if time else None, 1)
    yield Cell(f"{time.p20:,.1f} to {time.p80:,.1f}" if time else MISSING)
    yield number(record.tflops, 2)
    if fused:
        over = fused_overhead(record)
        yield Cell(MISSING if over is None else f"{100 * over:+.1f} %")
    for choice in (DEFAULT, BEST):
        peer = find_peer(record, CUBLAS, choice)
        yield number(peer.tflops if peer else None, 2)
    ratio = record.ratio_to_cublas
    if ratio is None:
        yield Cell(MISSING)
    else:
        yield Cell(f"{ratio:.3f}", "good" if ratio >= 1 else "bad")
    for _, library, named in others:
        peer = find_peer(record, library, named)
        yield number(peer.speedup if peer else None, 2)
    yield number(seen.sm_clock_mhz if seen else None, 0)
    yield number(seen.power_watts if seen else None, 0)


def _footnotes(records: Sequence[Record]) -> Iterable[str]:
    found = ratios(records)
    if found:
        slow = [shape(each) for each in records if (each.ratio_to_cublas or 1) < 1]
        behind = f"; below 1 at {', '.join(slow)}" if slow else ""
        yield (
            f"× cuBLAS, the fastest of its candidates: geometric mean "
            f"{geometric_mean(found):.3f}, minimum {min(found):.3f}{behind}."
        )
    errors = [each for record in records if (each := error_ratio(record)) is not None]
    if errors:
        yield f"Largest error relative to cuBLAS's on the same inputs: at most {max(errors):.2f}."
    best = Counter(
        _WAY.findall(peer.name)[-1]
        for record in records
        if (peer := find_peer(record, CUBLAS, BEST)) is not None and _WAY.search(peer.name)
    )
    if best:
        counts = (f"{name} {count} times" for name, count in best.most_common())
        yield f"Fastest cuBLAS candidate: {', '.join(counts)}."
    for record in records:
        if not record.correct:
            yield f"WRONG at {shape(record)}: {record.check}."
        for peer in record.peers:
            if not peer.correct:
                yield f"{peer.name} is wrong at {shape(record)}: {peer.check}."


def profile_table(records: Sequence[Record]) -> Table:
    """A row per problem: percent of the board's peaks, and where the rest was lost."""
    columns = (
        Column("M×N×K"),
        Column("kernel", "left"),
        Column("TFLOP/s"),
        Column("% of peak at\nthis clock", drop=2),
        Column("% of it"),
        Column("GB/s", drop=3),
        Column("% of\nDRAM"),
        Column("% of a\ncopy", drop=5),
        Column("issue\ncycles\nper FFMA", drop=4),
        Column("whole\ntiles"),
        Column("whole\nwaves"),
        Column("regs", drop=6),
        Column("occupancy", drop=7),
        Column("waves\nper SM", drop=8),
    )
    rows = tuple(
        Row((Cell(shape(record)), Cell(_configured(record)), *_shares(record)))
        for record in records
    )
    copies = {each.profile.copy_gb_per_s for each in records if each.profile is not None} - {None}
    notes = [
        "GB/s count A, B and C once each, and what an epilogue reads and writes besides. An FFMA "
        "with register-bank conflicts takes more than one issue cycle. Whole tiles and waves: how "
        "much of its tiles and waves the problem fills."
    ]
    notes += [f"A device-to-device copy reaches {copy:,.0f} GB/s." for copy in copies if copy]
    return Table("\nPercent of the board's peaks", columns, rows, tuple(notes))


def _configured(record: Record) -> str:
    tiles = [record.config.get(key) for key in ("BM", "BN", "BK")]
    shown = f" {'x'.join(map(str, tiles))}" if None not in tiles else ""
    return f"{kernel_label(record)}{shown}"


def _shares(record: Record) -> list[Cell]:
    seen = record.profile
    if seen is None:
        return [Cell(MISSING)] * 9 + [*residency_cells(record)]
    return [
        number(record.tflops, 2),
        number(seen.peak_tflops, 1),
        _percent(seen.peak_share),
        number(seen.gb_per_s, 0),
        _percent(seen.dram_share),
        _percent(seen.copy_share),
        number(seen.issue_cycles, 3),
        _percent(seen.tile_share),
        _percent(seen.wave_share),
        *residency_cells(record),
    ]


def _percent(share: float | None) -> Cell:
    return number(None if share is None else 100 * share, 1)
