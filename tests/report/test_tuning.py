import pytest

from gemmkit.analysis.explain import Sentence
from gemmkit.report import tuning
from gemmkit.trials.entry import Entry, ProblemClass
from gemmkit.tune.result import Tuned


def entry(BM=32, **changes):
    fields = {
        "gpu": "h100-132sm",
        "problem": ProblemClass(m=64, n=64, k=64, aligned=True),
        "kernel": "naive",
        "config": {"BM": BM, "BN": 32},
        "outcome": "ok",
        "source": "0",
        "compiler": "13.5",
        "time_us": 10.0,
        "predicted_us": 8.0,
    }
    return Entry(**(fields | changes))


def tuned(**changes):
    fields = {
        "problem": ProblemClass(m=64, n=64, k=64, aligned=True),
        "epilogue": "none",
        "gpu": "h100-132sm",
        "board": "H100",
        "best": entry(time_us=10.0),
        "runner_up": entry(BM=16, time_us=10.5),
        "tried": {"ok": 40, "wrong": 2},
        "known": 3,
        "untried": 1200,
        "left_out": {"refused by the kernel's rule": 5000},
        "total": 6245,
        "ended": "budget",
        "seconds": 59.6,
        "budget_seconds": 60.0,
        "strategy": "model",
        "seed": 0,
        "store": "/tmp/store.sqlite3",
    }
    return Tuned(**(fields | changes))


def test_a_line_for_each_problem():
    table = tuning.tuned_table([tuned(), tuned(epilogue="relu", best=None, runner_up=None)])
    first, second = ([cell.text for cell in row.cells] for row in table.rows)
    assert first == ["64x64x64", "naive:BM=32,BN=32", "10.00", "0.05", "+5.0 %", "42", "3", "60"]
    assert second[:3] == ["64x64x64 relu", "–", "–"]
    assert table.rows[1].note == "Nothing was timed: use a longer --budget."
    assert "5,000 refused by the kernel's rule; 1,200 not tried" in table.footnotes[0]
    assert "/tmp/store.sqlite3" in table.footnotes[-1]


def test_what_is_left_out_has_its_reason():
    unfit = "refused for this problem's layout or types"
    result = tuned(
        left_out={unfit: 7},
        examples={unfit: "gemm_tiled:BM=32: 48 threads cannot share the B tile evenly"},
        excluded={"gemm_skinny": "it takes products of at most 16 rows or columns"},
    )
    note = tuning.space_note(result)
    assert "; 1,200 not tried within the budget. No configuration of gemm_skinny: it takes" in note
    assert f"For example {unfit}: gemm_tiled:BM=32: 48 threads cannot share" in note


@pytest.mark.parametrize(
    ("ended", "note"),
    [
        ("budget", ""),
        ("all tried", "All configurations were tried."),
        ("interrupted", "Interrupted: the same command continues from here."),
    ],
)
def test_how_it_ended_is_told(ended, note):
    assert tuning.tuned_table([tuned(ended=ended)]).rows[0].note == note


def test_what_was_tried_is_counted():
    entries = [entry(final=True), entry(BM=8), entry(BM=4, outcome="uncompiled", time_us=None)]
    lines = {
        row.cells[0].text.strip(): row.cells[1].text
        for row in tuning.tried_table("64x64x64", entries, 1200).rows
    }
    assert lines == {
        "timed": "2",
        "of these, in the finals": "1",
        "did not compile": "1",
        "stale: the kernel or the compiler has changed": "1,200",
    }


def test_failures_come_with_their_reason():
    assert tuning.failures_table([entry()]) is None
    failed = [entry(BM=n, outcome="wrong", reason=f"C[0, {n}] is 1\nmore") for n in range(1, 13)]
    table = tuning.failures_table(failed)
    assert len(table.rows) == 10
    assert table.rows[0].note == "C[0, 1] is 1"
    assert table.footnotes == ("And 2 more.",)


def test_leaders_stand_beside_their_estimates():
    table = tuning.leaders_table([entry(BM=8, time_us=12.0), entry(p20_us=9.0, p80_us=11.0)])
    rows = [[cell.text for cell in row.cells] for row in table.rows]
    assert rows[0][1:5] == ["10.00", "9.00 to 11.00", "0.05", "0.0 %"]
    assert rows[1][1:5] == ["12.00", "–", "0.04", "20.0 %"]
    assert rows[1][5:] == ["8.0", "alone"]


def test_estimates_are_held_against_times():
    entries = [entry(BM=n, predicted_us=float(n), time_us=1.25 * n) for n in range(1, 21)]
    entries += [entry(BM=30, outcome="wrong", time_us=None), entry(BM=31, predicted_us=None)]
    rows = tuning.predicted_rows(entries, "H100")
    assert len(rows) == 20
    table = tuning.estimates_table(rows)
    cells = [[cell.text for cell in row.cells] for row in table.rows]
    assert cells[0] == ["1.0 to 4.0", "4", "1.2", "3.1"]
    assert len(cells) == 5
    (note,) = table.footnotes
    assert "The median error of the estimates is 20 %, their rank correlation 1.00" in note


def test_reasons_are_the_strongest():
    reasons = [Sentence(text=f"Reason {n}.", evidence=()) for n in range(9)]
    text = tuning.reasons_text("runner-up", 10.0, 10.5, reasons)
    assert text.startswith("The winner vs. the runner-up: measured 10.00 µs vs. 10.50 µs.")
    assert text.count("- Reason") == 6
    assert tuning.reasons_text("by default", 10.0, None, []).startswith(
        "The winner vs. its default."
    )


def test_a_store_is_listed_with_what_is_stale():
    table = tuning.store_table([entry(origin="imported")], {"other source": 4}, "/tmp/s")
    assert [cell.text for cell in table.rows[0].cells][-1] == "imported"
    assert table.footnotes == ("Stale trials, kept but not used: 4 of other source.",)
