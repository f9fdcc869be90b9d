"""Records as tables: the ladder and the sweep, measured on a GPU or counted without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmkit.analysis import count_loads
from gemmkit.bench.peers import HOW_TO_GET
from gemmkit.kernels.layouts import layout_text
from gemmkit.record import Record
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.wrong_result import bound_notes, wrong_result

_COUNTED = (
    "Emulated, so there are no times; with an NVIDIA GPU, `--device cuda` measures them. Requests "
    "and sectors are those of global loads, including cp.async; shared wavefronts are those after "
    "ptxas's merging of adjacent loads."
)
_RESIDENT = "Registers are the compiler's; occupancy and waves follow from the board's limits."
_INTERPRETED = "`gemmkit explain KERNEL` interprets a kernel's figures."

# Rows are printed one at a time: widths reserved for figures that are not known yet.
_CORRECT = Column("max error / bound", drop=5, reserve=17)
_KERNEL = Column("kernel", "left", reserve=17)
_LADDER_HEAD = (Column("#", reserve=2), _KERNEL, _CORRECT)
_TIMED = (
    Column("median\nµs", reserve=9),
    Column("TFLOP/s"),
    Column("% of\npeak", drop=2, reserve=5),
    Column("× previous\nrung", drop=3, reserve=6),
    Column("× cuBLAS"),
)
_COUNTERS = (
    Column("load\nrequests", drop=4, reserve=10),
    Column("sectors /\nrequest"),
    Column("shared\nwavefronts", drop=3, reserve=10),
    Column("global\nloads per\nresult", drop=1, reserve=9),
    Column("shared\nloads per\nresult", drop=2, reserve=9),
)
_RESIDENCY = (
    Column("regs", drop=6),
    Column("occupancy", drop=7),
    Column("waves\nper SM", drop=8),
)
_BENCH_HEAD = (Column("M×N×K", reserve=14), _KERNEL, _CORRECT)
_BENCHED = (
    Column("median\nµs", reserve=9),
    Column("p20 to p80\nµs", drop=5, reserve=16),
    *_TIMED[1:3],
    Column("cuBLAS\nµs", drop=4, reserve=9),
    Column("× cuBLAS"),
)
_SWEEP_HEAD = (Column("M = N", reserve=5), Column("K", reserve=4), _KERNEL, _CORRECT)
_SPREAD = (
    Column("min\nµs", drop=3, reserve=11),
    Column("avg\nµs", reserve=11),
    Column("max\nµs", drop=2, reserve=11),
    Column("GFLOP/s", reserve=8),
)
_EMULATED = (*_COUNTERS[:3], Column("emulated\nin s"))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A kernel that refuses the problem of a ladder, with the reason."""

    kernel: str
    rung: int | None
    reason: str


def ladder_table(
    records: Sequence[Record], left_out: Sequence[LeftOut] = (), *, complete: bool = True
) -> Table:
    """One row per record, in order: times if any record has one, otherwise counters.

    A rung that was left out has a row with the reason, in its place; what is not a rung comes below
    all rungs. While the ladder is running, rungs past the last record have no row yet.
    """
    timed = any(record.time_us for record in records)
    columns = (*_LADDER_HEAD, *(_TIMED if timed else _COUNTERS), *_RESIDENCY)
    before: list[Record | None] = [None, *records]
    rows: list[Row] = []
    waiting = sorted((each for each in left_out if each.rung is not None), key=_rung)
    for previous, record in zip(before, records, strict=False):
        # What is not a rung follows all of them.
        while waiting and (record.rung is None or _rung(waiting[0]) < record.rung):
            rows.append(_left_out_row(waiting.pop(0), len(columns)))
        rows.append(
            Row(
                (
                    Cell(str(record.rung) if record.rung is not None else MISSING),
                    Cell(kernel_label(record)),
                    correctness(record),
                    *(_timed_cells(record, previous) if timed else _counter_cells(record)),
                    *residency_cells(record),
                ),
                note=_note(record),
            )
        )
    if complete:
        rows += [_left_out_row(each, len(columns)) for each in waiting]
    notes = _footnotes(records, timed)
    if timed and all(record.baseline is None for record in records):
        notes += (f"{MISSING}: {HOW_TO_GET}.",)
    if _ends_with_production(records):
        notes = (f"Below the rungs: {records[-1].kernel}, which the library launches here.", *notes)
    return Table(_caption(records), columns, tuple(rows), notes)


def _ends_with_production(records: Sequence[Record]) -> bool:
    """Whether the production kernel that dispatch chooses follows the rungs."""
    if len(records) < 2:
        return False
    *rungs, last = records
    return last.rung is None and all(each.rung is not None for each in rungs)


def _rung(left_out: LeftOut) -> int:
    assert left_out.rung is not None
    return left_out.rung


def _left_out_row(left_out: LeftOut, columns: int) -> Row:
    cells = (Cell(str(left_out.rung)), Cell(left_out.kernel), Cell("not run"))
    missing = (Cell(MISSING),) * (columns - len(cells))
    # The refusal starts with the kernel and its configuration, which the row has already.
    reason = left_out.reason.rpartition("): ")[2]
    return Row((*cells, *missing), note=f"Left out: {reason}.")


def bench_table(records: Sequence[Record]) -> Table:
    """One row per problem for one kernel: time and ratio to cuBLAS if it was timed, otherwise
    counters."""
    timed = any(record.time_us for record in records)
    rows = tuple(
        Row(
            (
                Cell(each.problem.shape),
                Cell(kernel_label(each)),
                correctness(each),
                *(_bench_cells(each) if timed else _counter_cells(each)),
                *residency_cells(each),
            )
        )
        for each in records
    )
    columns = (*_BENCH_HEAD, *(_BENCHED if timed else _COUNTERS), *_RESIDENCY)
    notes = _footnotes(records, timed)
    plain = any(record.problem.layout == "nn" for record in records)
    if timed and plain and all(record.baseline is None for record in records):
        notes += (f"{MISSING}: {HOW_TO_GET}.",)
    wrong = tuple(
        f"{each.problem.shape}: {wrong_result(each.diagnosis, each.check)}."
        for each in records
        if not each.correct
    )
    return Table(_caption(records, shape=False), columns, rows, wrong + notes)


def sweep_table(records: Sequence[Record]) -> Table:
    """One row per record: sizes, error, and minimum, mean and maximum time, or counters."""
    timed = any(record.time_us for record in records)
    grouped = all(record.problem.groups for record in records)
    rows = tuple(
        Row(
            (
                *_size_cells(record)[: 1 if grouped else 2],
                Cell(kernel_label(record)),
                correctness(record),
                *(_spread_cells(record) if timed else _emulated_cells(record)),
            )
        )
        for record in records
    )
    head = (Column("groups", "left", reserve=5), *_SWEEP_HEAD[2:]) if grouped else _SWEEP_HEAD
    columns = (*head, *(_SPREAD if timed else _EMULATED))
    notes = _footnotes(records, timed, resident=False)
    return Table(_caption(records, shape=False), columns, rows, notes)


def kernel_label(record: Record) -> str:
    """The kernel's name, with its epilogue, and the layout if it is not row-major."""
    epilogue, layout = record.problem.epilogue, record.problem.layout
    fused = record.kernel if epilogue == "none" else f"{record.kernel} + {epilogue}"
    return fused if layout == "nn" else f"{fused}, {layout_text(layout)}"


def correctness(record: Record) -> Cell:
    """Error and bound of the element nearest its bound; a wrong result is also marked by a word."""
    error, bound = record.ratio_error, record.ratio_bound
    if bound is None:
        # Records of older versions have only the pair of the largest error.
        error, bound = record.max_error, record.error_bound
    if record.correct and bound is None:
        # Those of other makers say only that it is right.
        return Cell(MISSING, "good")
    figures = "not finite" if error is None or bound is None else f"{error:.1e} / {bound:.1e}"
    return Cell(figures, "good") if record.correct else Cell(f"WRONG {figures}", "bad")


def _timed_cells(record: Record, previous: Record | None) -> tuple[Cell, ...]:
    time = record.time_us
    faster = (
        previous.time_us.median / time.median
        if time and previous and previous.time_us and previous.problem == record.problem
        else None
    )
    percent = None if record.peak_fraction is None else 100 * record.peak_fraction
    return (
        number(time.median if time else None, 1),
        number(record.tflops, 2),
        number(percent, 1),
        number(faster, 2),
        number(record.baseline.speedup if record.baseline else None, 2),
    )


def _bench_cells(record: Record) -> tuple[Cell, ...]:
    time, peer = record.time_us, record.baseline
    median, tflops, percent, _, speedup = _timed_cells(record, None)
    spread = Cell(f"{time.p20:,.1f} to {time.p80:,.1f}" if time else MISSING)
    theirs = number(peer.time_us.median if peer else None, 1)
    return median, spread, tflops, percent, theirs, speedup


def _size_cells(record: Record) -> tuple[Cell, Cell]:
    problem = record.problem
    if problem.groups:
        return Cell(problem.shape), Cell(MISSING)
    size = f"{problem.m}" if problem.m == problem.n else f"{problem.m}x{problem.n}"
    return Cell(size), Cell(str(problem.k))


def _spread_cells(record: Record) -> tuple[Cell, ...]:
    time = record.time_us
    return (
        number(time.minimum if time else None, 1),
        number(time.mean if time else None, 1),
        number(time.maximum if time else None, 1),
        number(None if record.tflops is None else 1000 * record.tflops, 1),
    )


def _emulated_cells(record: Record) -> tuple[Cell, ...]:
    requests, sectors, wavefronts, *_ = _counter_cells(record)
    return requests, sectors, wavefronts, number(record.emulation_seconds, 2)


def _counter_cells(record: Record) -> tuple[Cell, ...]:
    loads = count_loads(record.counters, record.problem.results)
    if loads is None:
        return (Cell(MISSING),) * len(_COUNTERS)
    return (
        number(loads.global_requests, 0),
        number(loads.sectors_per_request, 2),
        number(loads.shared_wavefronts, 0),
        number(loads.global_per_result, 1),
        number(loads.shared_per_result, 1),
    )


def residency_cells(record: Record) -> tuple[Cell, ...]:
    """Registers, theoretical occupancy, waves."""
    if record.resources is None or record.occupancy is None:
        return (Cell(MISSING),) * len(_RESIDENCY)
    spilled = record.resources.spill_bytes > 0
    return (
        Cell(f"{record.resources.registers}{' spills' if spilled else ''}"),
        Cell(f"{100 * record.occupancy.theoretical:.4g} %"),
        number(record.occupancy.waves_per_sm, 2),
    )


def number(value: float | None, decimals: int) -> Cell:
    """A number with thousands separators, or the mark for a missing one."""
    return Cell(MISSING if value is None else f"{value:,.{decimals}f}")


def _note(record: Record) -> str:
    config = " ".join(f"{key}={value}" for key, value in record.config.items())
    return f"{record.idea} [{config}]" if config else record.idea


def _caption(records: Sequence[Record], *, shape: bool = True) -> str:
    """Device, α and β and, unless each row has its own, the shape: from the first record."""
    if not records:
        return "nothing was run"
    first = records[0]
    where = first.device.gpu
    if first.device.kind == "emulator":
        where = f"{where}, emulated"
    problem = first.problem
    size = f" {problem.shape}," if shape else ""
    scale = f"α = {problem.alpha:g}, β = {problem.beta:g}"
    types = ", ".join(dict.fromkeys(each.problem.types for each in records))
    return f"C = αAB + βC,{size} {types}, {scale}, on {where}"


def _footnotes(records: Sequence[Record], timed: bool, *, resident: bool = True) -> tuple[str, ...]:
    """What explains the columns; `resident` says whether those of `_RESIDENCY` are among them."""
    wrong = [each for each in records if not each.correct]
    notes = []
    if wrong:
        names = ", ".join(dict.fromkeys(each.kernel for each in wrong))
        notes.append(f"WRONG RESULTS: {len(wrong)} of {len(records)} ({names}).")
    notes += bound_notes(each.arithmetic for each in records)
    if records and not timed:
        notes.append(" ".join((_COUNTED, *(_RESIDENT,) * resident, _INTERPRETED)))
    return tuple(notes)
