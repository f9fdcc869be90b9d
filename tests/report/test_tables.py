"""What the ladder's and the sweep's tables say about records."""

from __future__ import annotations

import msgspec
import pytest

from gemmkit.record import BaselineRecord, TimeRecord
from gemmkit.report.layout import MISSING, Table
from gemmkit.report.tables import ladder_table, sweep_table


def cells(table: Table) -> list[dict[str, str]]:
    heads = [column.one_line for column in table.columns]
    return [dict(zip(heads, [cell.text for cell in row.cells], strict=True)) for row in table.rows]


@pytest.fixture
def timed(make_record):
    def make(median: float, speedup: float | None = None, **changes):
        time = TimeRecord(
            median=median, p20=median, p80=median, minimum=1.0, mean=median, maximum=2000.0,
            samples=9,
        )  # fmt: skip
        peer = None if speedup is None else BaselineRecord(
            name="cuBLAS", time_us=time, speedup=speedup
        )  # fmt: skip
        return make_record(
            time_us=time, tflops=1.25, peak_fraction=0.5, baseline=peer, counters={}, **changes
        )

    return make


def test_emulated_ladder_shows_counters_and_says_that_nothing_was_timed(make_record):
    table = ladder_table([make_record()])
    (row,) = cells(table)
    assert row["load requests"] == "16,384"
    assert row["sectors / request"] == "2.50"
    assert row["global loads per result"] == "128.0"
    assert row["shared wavefronts"] == "0"
    assert row["regs"] == "40"
    assert row["occupancy"] == "66.67 %"
    assert row["waves per SM"] == "0.05"
    assert not any("TFLOP" in head for head in row)
    assert "no times" in " ".join(table.footnotes)
    assert table.caption.endswith("on RTX 3090, emulated")


def test_timed_ladder_compares_with_the_rung_before_and_with_the_peer(timed):
    table = ladder_table([timed(200.0, 0.25), timed(50.0, 0.5)])
    first, second = cells(table)
    assert first["× previous rung"] == MISSING
    assert second["× previous rung"] == "4.00"
    assert [first["× cuBLAS"], second["× cuBLAS"]] == ["0.25", "0.50"]
    assert second["median µs"] == "50.0"
    assert second["TFLOP/s"] == "1.25"
    assert second["% of peak"] == "50.0"
    assert table.footnotes == ()


def test_a_rung_is_not_compared_across_problems(timed):
    fused = msgspec.structs.replace(timed(1.0).problem, epilogue="bias")
    rows = cells(ladder_table([timed(200.0, 1.0), timed(50.0, 1.0, problem=fused)]))
    assert rows[1]["× previous rung"] == MISSING
    assert rows[1]["kernel"] == "naive + bias"


def test_without_a_peer_the_table_says_how_to_get_one(timed):
    table = ladder_table([timed(10.0)])
    assert cells(table)[0]["× cuBLAS"] == MISSING
    assert "gemmkit[baseline]" in " ".join(table.footnotes)


def test_wrong_results_are_marked_by_a_word_and_by_color(make_record):
    table = ladder_table(
        [make_record(), make_record(correct=False), make_record(correct=False, max_error=None)]
    )
    fine, wrong, infinite = (row.cells[2] for row in table.rows)
    assert (fine.style, fine.text) == ("good", "1.5e-06 / 3.0e-05")
    assert (wrong.style, wrong.text) == ("bad", "WRONG 1.5e-06 / 3.0e-05")
    assert infinite.text == "WRONG not finite"
    assert "WRONG RESULTS: 2 of 3 (naive)." in table.footnotes


def test_spills_are_named(make_record):
    resources = msgspec.structs.replace(make_record().resources, registers=255, spill_bytes=8)
    (row,) = cells(ladder_table([make_record(resources=resources)]))
    assert row["regs"] == "255 spills"


def test_timed_sweep_has_the_spread_and_gflops(timed):
    (row,) = cells(sweep_table([timed(10.0)]))
    assert row["min µs"] == "1.0"
    assert row["avg µs"] == "10.0"
    assert row["max µs"] == "2,000.0"
    assert row["GFLOP/s"] == "1,250.0"
    assert (row["M = N"], row["K"]) == ("64", "64")


def test_emulated_sweep_has_counters_instead_of_times(make_record):
    (row,) = cells(sweep_table([make_record()]))
    assert row["load requests"] == "16,384"
    assert row["emulated in s"] == "0.01"
    assert not any("µs" in head for head in row)


def test_no_record_is_an_empty_table():
    assert ladder_table([]).rows == ()
    assert "nothing was run" in ladder_table([]).to_text().plain


def test_unknown_registers_and_occupancy_are_dashes(make_record):
    known, unknown = make_record(), make_record(resources=None, occupancy=None)
    rows = [[cell.text for cell in row.cells] for row in ladder_table([known, unknown]).rows]
    assert rows[0][-3] == "40"
    assert rows[1][-3:] == [MISSING] * 3
    assert rows[1][:-3] == rows[0][:-3]
