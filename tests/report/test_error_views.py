"""Histograms of errors and conditions of measurement, as pages of runs show them."""

from __future__ import annotations

import msgspec
import pytest

from gemmkit.check_record import CheckRecord
from gemmkit.error_histogram import ErrorHistogram
from gemmkit.record import ConditionsRecord, PeerRecord, TimeRecord
from gemmkit.report.conditions import conditions_table, conditions_text
from gemmkit.report.record_page import figures_view, records_document
from gemmkit.report.tables import ladder_table
from gemmkit.report.views.errors import TITLE, errors_of, errors_view

RIGHT = ErrorHistogram(exact=96, first=-8, counts=(3000, 1000), bias=-0.25)
WRONG = ErrorHistogram(exact=0, first=-8, counts=(4000,) + (0,) * 8 + (90,), beyond=6)
TIME = TimeRecord(median=9.0, p20=8.0, p80=10.0, minimum=8.0, mean=9.0, maximum=11.0, samples=23)
READINGS = ConditionsRecord(
    sm_clock_mhz=1755.0,
    sm_clock_min_mhz=1740.0,
    sm_clock_max_mhz=1980.0,
    power_watts=612.4,
    temperature_c=None,
    samples=7,
)


def texts(table):
    return [[cell.text for cell in row.cells] for row in table.rows]


def heads(table):
    return [each.one_line for each in table.columns]


@pytest.fixture
def timed(make_record):
    def make(**changes):
        environment = {"driver": "580.1", "inputs": "normal", "compiler": "NVRTC 13.5"}
        return make_record(time_us=TIME, tflops=50.0, environment=environment, **changes)

    return make


def test_errors_as_a_table_and_as_data(make_record):
    wrong = make_record(kernel="mine", correct=False, error_ratio=None, errors=WRONG)
    view = errors_view(errors_of([make_record(errors=RIGHT, error_ratio=0.0143), wrong]))
    assert texts(view.table) == [
        ["naive", "4,096", "2.34 %", "0.0058", "0.011", "0.014", "-0.250"],
        ["mine", "4,096", "0 %", "0.0046", "2.6", "∞", "+0.000"],
    ]
    assert [cell.style for cell in view.table.rows[1].cells][-4:] == [
        "plain",
        "bad",
        "bad",
        "plain",
    ]
    right = view.data["rows"][0]
    assert (right["exact"], right["first"], right["counts"]) == (96, -8, [3000, 1000])
    assert "percentile" in view.table.to_text(80).plain


def test_sampled_results_say_how_many_elements_count(make_record):
    problem = msgspec.structs.replace(make_record().problem, m=8192, n=1024)
    (row,) = errors_view(errors_of([make_record(errors=RIGHT, problem=problem)])).table.rows
    assert row.cells[1].text == "4,096 of 8,388,608"


def test_peers_and_problems_have_rows_of_their_own(make_record):
    peer = PeerRecord(
        vendor="cublas",
        choice="best",
        name="sgemm",
        candidates=3,
        time_us=TIME,
        tflops=1.0,
        speedup=1.0,
        correct=True,
        max_error=0.0,
        error_ratio=0.01,
        errors=RIGHT,
    )
    larger = msgspec.structs.replace(make_record().problem, m=128)
    found = list(
        errors_of(
            [make_record(errors=RIGHT, peers=(peer,)), make_record(problem=larger, peers=(peer,))]
        )
    )
    assert [(each.label, each.problem) for each in found] == [
        ("naive", "64x64x64"),
        ("cuBLAS, best", "64x64x64"),
        ("cuBLAS, best", "128x64x64"),
    ]
    assert "problem" in heads(errors_view(found).table)


def test_records_without_errors_have_no_view(make_record):
    old = make_record()
    assert errors_view(errors_of([old])) is None
    titles = [each.title for each in records_document([ladder_table([old])], [old]).sections]
    assert titles == ["Results", "Figures"]


def test_a_check_names_its_cases(make_record):
    record = CheckRecord(
        kernel="mine",
        case="one row",
        problem=make_record().problem,
        config={},
        device=make_record().device,
        seed=0,
        verdict="ok",
        errors=RIGHT,
    )
    assert [(each.label, each.problem) for each in errors_of([record])] == [("mine", "one row")]


def test_conditions_have_the_columns_that_are_known(timed, make_record):
    other = timed(kernel="mine", conditions=None)
    other = msgspec.structs.replace(other, environment=other.environment | {"driver": "570.9"})
    records = [timed(conditions=READINGS), other, make_record()]
    table = conditions_table(records)
    assert heads(table) == [
        "kernel",
        "TFLOP/s",
        "samples",
        "SM clock, MHz",
        "min to max",
        "power, W",
        "readings",
        "driver",
    ]
    first, second = texts(table)
    assert first[2:] == ["23", "1,755", "1,740 to 1,980", "612", "7", "580.1"]
    assert second[3:7] == ["–"] * 4
    assert table.footnotes == ("In all rows: inputs normal; compiler NVRTC 13.5.",)
    assert conditions_table([make_record()]) is None


def test_bars_carry_clock_and_power(timed, make_record):
    assert conditions_text(timed(conditions=READINGS)) == "1,755 MHz, 612 W"
    rows = figures_view([timed(conditions=READINGS), make_record()]).data["rows"]
    assert [each["conditions"] for each in rows] == ["1,755 MHz, 612 W", ""]


def test_the_page_of_a_run_has_both(timed):
    records = [timed(conditions=READINGS, errors=RIGHT)]
    sections = records_document([ladder_table(records)], records).sections
    assert [each.title for each in sections] == ["Results", "Figures", "Conditions", TITLE]
