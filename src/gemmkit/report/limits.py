"""Limits for counters as a table: what was counted, what is allowed, and by how much it misses."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.check_record import CheckRecord, LimitRecord
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table

# Digits of a value that is not a whole number.
_DIGITS = 6


def limits_tables(records: Sequence[CheckRecord]) -> tuple[Table, ...]:
    """A table for each problem at which limits were tested; none without limits."""
    return tuple(_table(record) for record in records if record.limits)


def _table(record: CheckRecord) -> Table:
    columns = (
        Column("limit", "left"),
        Column("counted"),
        Column("allowed", drop=1),
        Column("", "left"),
    )
    rows = tuple(
        Row(
            (
                Cell(each.limit),
                Cell(_number(each.value)),
                Cell(MISSING if each.bound is None else f"{each.relation} {_number(each.bound)}"),
                Cell(_outcome(each), "good" if each.met else "bad"),
            )
        )
        for each in record.limits
    )
    wrong = () if record.correct else ("The result is wrong, so its counters say little.",)
    return Table(f"Limits at {record.problem.shape}", columns, rows, wrong)


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value == round(value) else f"{value:,.{_DIGITS}g}"


def _outcome(each: LimitRecord) -> str:
    """Whether it is met; if not, by how much it is missed."""
    if each.met:
        return "met"
    if each.value is None or each.bound is None:
        return "missed: the kernel has no such figure"
    if each.bound > 0 and each.value > 0 and each.relation != "==":
        return f"missed: {each.value / each.bound:.3g} times the limit"
    return f"missed: off by {_number(abs(each.value - each.bound))}"
