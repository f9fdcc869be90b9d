"""The errors of results relative to their bounds, as histograms by powers of two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmkit.analysis.explain import Explanation
from gemmkit.bench.peers import GEMMKIT
from gemmkit.check_record import CheckRecord
from gemmkit.error_histogram import ErrorHistogram
from gemmkit.record import Record
from gemmkit.report.document import View
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.tables import kernel_label

TITLE = "Errors relative to their bounds"
_LIBRARIES: Mapping[str, str] = {"cublas": "cuBLAS", "torch": "PyTorch", "triton": "Triton"}


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one result.

    `maximum` is the largest error / bound, None if it is not finite. `results` are all elements of
    C, of which the histogram may count a part; 0 if unknown.
    """

    label: str
    problem: str
    histogram: ErrorHistogram
    maximum: float | None
    results: int


def errors_of(records: Iterable[Record | CheckRecord]) -> Iterator[Errors]:
    """The errors of records that have a histogram, and of the peers that were judged with them."""
    for each in records:
        problem, results = each.problem.shape, each.problem.results
        if isinstance(each, CheckRecord):
            if each.errors is not None:
                yield Errors(each.kernel, each.case, each.errors, each.error_ratio, results)
            continue
        if each.layer is not None:
            # Its results are not those of one product.
            problem, results = each.layer.sizes, 0
        if each.errors is not None:
            yield Errors(kernel_label(each), problem, each.errors, each.error_ratio, results)
        for peer in each.peers:
            if peer.errors is not None:
                name = _LIBRARIES.get(peer.vendor, peer.vendor)
                label = peer.name if peer.vendor == GEMMKIT else f"{name}, {peer.choice}"
                yield Errors(label, problem, peer.errors, peer.error_ratio, results)


def errors_of_explained(explained: Iterable[Explanation]) -> Iterator[Errors]:
    """The errors of the launches that explanations counted, which are compared as a whole."""
    for each in explained:
        if each.errors is not None:
            yield Errors(
                each.kernel, each.counted, each.errors, each.error_ratio, each.errors.elements
            )


def errors_view(found: Iterable[Errors]) -> View | None:
    """A histogram per result; None without any. Several problems are shown together, or one."""
    rows = list(found)
    if not rows:
        return None
    data = {"rows": [_data(each) for each in rows]}
    return View("errors", data, errors_table(rows))


def errors_table(rows: Sequence[Errors]) -> Table:
    """Median, 99th percentile and maximum of error / bound, and the bias, for each result."""
    several = len({each.problem for each in rows}) > 1
    columns = (
        Column("kernel", "left"),
        *([Column("problem", "left")] * several),
        Column("elements\ncompared", drop=3),
        Column("without\nerror", drop=2),
        Column("median"),
        Column("99th\npercentile"),
        Column("maximum"),
        Column("bias", drop=1),
    )
    notes = (
        "Error / bound against the float64 reference; a result is wrong above 1. Median and 99th "
        "percentile are read from bins of powers of two. The bias is the signed mean error in "
        "units of the mean absolute error.",
    )
    return Table(
        TITLE, columns, tuple(Row(tuple(_cells(each, several=several))) for each in rows), notes
    )


def _cells(each: Errors, *, several: bool) -> Iterator[Cell]:
    seen = each.histogram
    compared = f"{seen.elements:,}"
    if each.results and seen.elements < each.results:
        compared += f" of {each.results:,}"
    yield Cell(each.label)
    if several:
        yield Cell(each.problem)
    yield Cell(compared)
    yield Cell(f"{100 * seen.exact / seen.elements:.3g} %")
    for value in (seen.quantile(0.5), seen.quantile(0.99)):
        yield Cell(_ratio(value), "bad" if value > 1 else "plain")
    worst = math.inf if each.maximum is None else each.maximum
    yield Cell(_ratio(worst), "bad" if worst > 1 else "plain")
    yield Cell(f"{seen.bias:+.3f}" if seen.elements > seen.exact else MISSING)


def _ratio(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2g}"


def _data(each: Errors) -> dict[str, Any]:
    seen = each.histogram
    return {
        "label": each.label,
        "problem": each.problem,
        "exact": seen.exact,
        "first": seen.first,
        "counts": list(seen.counts),
        "beyond": seen.beyond,
        "elements": seen.elements,
        "results": each.results,
    }
