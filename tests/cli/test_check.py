"""`gemmkit check`: what it asks for, prints, writes and exits with."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import msgspec
import pytest

from gemmkit.check_record import CheckRecord
from gemmkit.errors import DeviceError
from gemmkit.findings import AccessSite, Finding
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

DEVICE = SimpleNamespace(kind="emulator", spec=find_board("rtx3090"))

GUARD = next(
    number
    for number, line in enumerate(find_kernel("naive").source.splitlines(), 1)
    if "return;" in line
)
HERE = AccessSite(file="naive.cu", line=GUARD, instruction="ld.global.f32", thread=(3, 0, 0))
THERE = AccessSite(file="epilogue.cuh", line=1, instruction="st.global.f32", thread=(4, 0, 0))
RACE = Finding(
    check="racecheck",
    kind="read after write",
    message="Thread (3, 0, 0) reads what (4, 0, 0) writes.",
    block=(0, 0, 0),
    here=HERE,
    other=THERE,
    array="C",
    offset=0,
    count=5,
)


@pytest.fixture
def fake(monkeypatch, make_check):
    """Replace the check behind the verb by one that gives the records put in `fake.records`."""
    state = SimpleNamespace(
        records=[make_check()], kernel=None, shapes=None, asked=None, error=None
    )

    def check(kernel, shapes, progress, **asked):
        state.kernel, state.shapes, state.asked = kernel, shapes, asked
        progress.opened(DEVICE, "")
        progress.checking(state.records)
        for done, record in enumerate(state.records):
            progress.started(kernel, GemmProblem(33, 20, 5), done, len(state.records))
            progress.checked(record)
        if state.error is not None:
            raise state.error
        return state.records

    monkeypatch.setattr("gemmkit.bench.check.check", check)
    return state


def test_clean_kernel(call, fake):
    result = call("check", "naive")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "naive (BM=32,BN=32), checked on the emulator for RTX 3090"
    assert lines[-3].split() == ["33x20x5", "–", "ok", "0.12", "–"]
    assert lines[-1] == "1 problem: 1 ok; no findings"
    assert "[1/1] naive 33x20x5" in result.stderr
    assert fake.shapes is None


def test_columns_are_as_wide_as_the_rows_to_come_need(call, fake, make_check):
    """Rows are printed one by one; what few problems have does not make all of them long."""
    plain = make_check().problem
    scaled = msgspec.structs.replace(plain, alpha=-1.3, beta=0.333333)
    padded = msgspec.structs.replace(scaled, lda=8, ldb=24, ldc=28)
    fake.records = [
        make_check(case="whole tiles"),
        make_check(case="several tiles, more steps"),
        make_check(case="inexact scales", problem=scaled),
        make_check(case="padded, alpha, beta", problem=padded),
    ]
    lines = call("check", "naive").stdout.splitlines()
    rows = [line for line in lines if "33x20x5" in line and "0.12" in line]
    places = [line.index(" ok ") for line in rows]
    assert len(rows) == 4
    assert places[:3] == [places[0]] * 3
    assert places[3] > places[0]
    assert {line.index("33x20x5") for line in rows} == {len("several tiles, more steps") + 2}


def test_everything_asked_for_arrives(call, fake):
    call(
        "check", "naive", "--shape", "1x2x3, 4x5x6", "--shape", "7x8x9", "--only",
        "memcheck,racecheck", "--config", "BM=16", "--epilogue", "relu", "--alpha", "2", "--beta",
        "0.5", "--gpu", "h100", "--dtype", "fp32", "--out-dtype", "fp16", "--precision", "TF32",
        "--seed", "7", "--max-steps", "99", "--limit", "registers < 99", "--limit-at", "8x8x8",
        "--allow-forgiven", "--schedule", "b0.0.0,w1@end", "--not-written-before", "B,bias",
    )  # fmt: skip
    assert fake.kernel is find_kernel("naive")
    assert fake.shapes == ("1x2x3", "4x5x6", "7x8x9")
    assert fake.asked == {
        "checks": ("memcheck", "racecheck"),
        "config": {"BM": 16},
        "epilogue": "relu",
        "alpha": 2.0,
        "beta": 0.5,
        "dtype": "fp32",
        "out_dtype": "fp16",
        "precision": "tf32",
        "scales": None,
        "prepared": None,
        "gpu": "h100",
        "seed": 7,
        "max_steps": 99,
        "limits": ("registers < 99",),
        "limits_at": "8x8x8",
        "schedule": "b0.0.0,w1@end",
        "allow_forgiven": True,
        "not_written_before": ("B", "bias"),
    }


def test_findings_are_quoted_once_with_both_source_lines(call, fake, make_check):
    problem = msgspec.structs.replace(make_check().problem, n=21, beta=0.5, ldc=24)
    fake.records = [
        make_check(verdict="findings", findings=(RACE,), case="one"),
        make_check(verdict="findings", findings=(RACE,), case="two", problem=problem),
    ]
    result = call("check", "naive")
    assert result.exit_code == 1
    assert re.search(r"^two +33x21x5 +β=0\.5 ldb=20 ldc=24 +findings", result.stdout, re.MULTILINE)
    assert result.stdout.count(RACE.message) == 1
    assert f"\n1. racecheck: {RACE.message}\n" in result.stdout
    assert f"  --> naive.cu:{GUARD}\n" in result.stdout
    assert f"    >{GUARD:5} |   if (row >= M || col >= N) return;" in result.stdout
    assert "  --> epilogue.cuh:1\n" in result.stdout
    assert "seen 10 times, at 33x20x5, 33x21x5 β=0.5 ldb=20 ldc=24" in result.stdout
    assert result.stdout.endswith("2 problems: 2 with findings; 1 distinct finding (1 racecheck)\n")


def test_a_page_has_the_findings_first(call, fake, make_check, tmp_path):
    page = tmp_path / "page.html"
    fake.records = [make_check(verdict="findings", findings=(RACE,)), make_check()]
    result = call("check", "naive", "--html", page)
    assert result.exit_code == 1
    assert f"wrote {page}" in result.stdout
    text = page.read_text("utf-8")
    assert "2 problems: 1 with findings, 1 ok" in text
    assert "1. racecheck: Thread (3, 0, 0) reads what (4, 0, 0) writes." in text
    assert f"<figcaption>naive.cu:{GUARD}</figcaption>" in text
    assert text.index("racecheck:") < text.index('id="problems-title"')
    assert "<title>naive: findings (gemmkit check)</title>" in text
    fake.records = [make_check()]
    assert call("check", "naive", "--html", page).exit_code == 0
    text = page.read_text("utf-8")
    assert ">Findings<" not in text
    assert "<title>naive: no findings (gemmkit check)</title>" in text


@pytest.mark.parametrize(
    ("verdicts", "title"),
    [
        (("ok", "limit missed"), "limits missed"),
        (("limit missed", "wrong result", "ok"), "wrong results"),
        (("failed", "limit missed"), "failed launches"),
        (("refused", "ok"), "no findings"),
    ],
)
def test_the_title_of_a_page_is_the_worst_verdict(
    call, fake, make_check, tmp_path, verdicts, title
):
    page = tmp_path / "page.html"
    fake.records = [make_check(verdict=each) for each in verdicts]
    call("check", "naive", "--html", page)
    assert f"<title>naive: {title} (gemmkit check)</title>" in page.read_text("utf-8")


def test_one_line_that_races_with_itself_is_quoted_once(call, fake, make_check):
    finding = msgspec.structs.replace(RACE, other=msgspec.structs.replace(HERE, thread=(9, 0, 0)))
    fake.records = [make_check(verdict="findings", findings=(finding,))]
    assert call("check", "naive").stdout.count("--> ") == 1


def test_calls_that_lead_to_a_line_are_quoted_and_told_apart(call, fake, make_check):
    calls = (f"naive.cu:{GUARD}", "gone.cu:7")
    inner = msgspec.structs.replace(THERE, called_from=calls)
    first = msgspec.structs.replace(RACE, here=inner, other=None)
    second = msgspec.structs.replace(RACE, here=THERE, other=None)
    fake.records = [make_check(verdict="findings", findings=(first, second))]
    shown = call("check", "naive").stdout
    assert f"      called from {calls[0]}: if (row >= M || col >= N) return;\n" in shown
    assert "      called from gone.cu:7\n" in shown
    assert "2 distinct findings" in shown


def test_long_lists_are_cut(call, fake, make_check):
    sites = [msgspec.structs.replace(HERE, line=line) for line in range(1, 24)]
    findings = tuple(msgspec.structs.replace(RACE, here=site) for site in sites)
    fake.records = [make_check(verdict="findings", findings=findings)]
    shown = call("check", "naive").stdout
    assert "\n20. racecheck" in shown
    assert "\n21. racecheck" not in shown
    assert "… and 3 more; --json lists them\n" in shown
    assert "23 distinct findings (23 racecheck)" in shown


def test_memory_that_counts_as_never_written_is_explained(call, fake, make_check):
    finding = msgspec.structs.replace(RACE, check="initcheck", kind="uninitialized", other=None)
    fake.records = [make_check(verdict="findings", findings=(finding,))]
    assert "C is not read if β = 0" in call("check", "naive").stdout


def test_a_source_that_is_not_at_hand_is_named_only(call, fake, make_check):
    elsewhere = msgspec.structs.replace(HERE, file="gone.cu")
    finding = msgspec.structs.replace(RACE, here=elsewhere, other=None, count=1)
    fake.records = [make_check(verdict="findings", findings=(finding,))]
    result = call("check", "naive")
    assert f"  --> gone.cu:{GUARD}\n  seen once, at 33x20x5\n" in result.stdout


@pytest.mark.parametrize(
    ("changes", "status", "shown"),
    [
        ({"verdict": "wrong result", "correct": False, "detail": "C[0, 0] is 1, not 2"}, 1, "C[0"),
        ({"verdict": "failed", "correct": None, "detail": "it trapped"}, 1, "it trapped"),
        ({"verdict": "refused", "correct": None, "detail": "n must be even"}, 0, "n must be even"),
        (
            {"verdict": "findings", "correct": False, "error_ratio": None, "findings": (RACE,)},
            1,
            "wrong result        ∞  1 racecheck",
        ),
    ],
)
def test_what_is_not_right_is_explained(call, fake, make_check, changes, status, shown):
    fake.records = [make_check(**changes)]
    result = call("check", "naive")
    assert result.exit_code == status
    assert shown in result.stdout


def test_json_lines_alone_on_stdout(call, fake, make_check):
    fake.records = [make_check(verdict="findings", findings=(RACE,))]
    result = call("check", "naive", "--json", "-")
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert CheckRecord.from_json(line) == fake.records[0]
    assert json.loads(line)["findings"][0]["other"]["file"] == "epilogue.cuh"
    assert "1 distinct finding" in result.stderr


def test_error_in_the_middle_still_shows_what_was_found(call, fake):
    fake.error = DeviceError("the host has no memory")
    result = call("check", "naive")
    assert result.exit_code == 2
    assert "1 problem: 1 ok" in result.stdout
    assert "gemmkit: the host has no memory" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "naive", "--shape", "8x8"), "'8x8' is not a valid shape"),
        (("check", "naive", "--only", "memcheck,"), "empty part"),
        (("check", "naive", "--only", "leakcheck"), "unknown check 'leakcheck'"),
        (("check", "nave"), "unknown kernel 'nave'"),
    ],
)
def test_bad_usage(call, words, message):
    result = call(*words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_what_problems_without_products_cannot_show_is_said(call):
    empty = " ".join(call("check", "naive", "--shape", "0x4x4,4x4x0").stdout.split())
    assert "C is empty: there was no result to compare." in empty
    assert "K = 0: only the write-back was checked, without a product." in empty
    assert "no multiplication was checked" in empty
    assert "no multiplication" not in call("check", "naive", "--shape", "4x4x4,4x4x0").stdout
