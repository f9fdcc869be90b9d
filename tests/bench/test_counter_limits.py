"""Limits for counters: how they are read, judged, and shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import gemmkit
from gemmkit.bench.check import check
from gemmkit.bench.limits import Limit
from gemmkit.bench.progress import Progress
from gemmkit.check_record import CheckRecord
from gemmkit.cli import gemmkit as command
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.report.limits import limits_tables

ROOT = Path(__file__).resolve().parents[2]
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
SIZES = {"M": 256.0, "N": 128.0, "K": 10.0}


@pytest.mark.parametrize(
    ("text", "met", "value", "bound"),
    [
        ("load_sectors <= 5*M*N*K/32", True, 51200, 51200),
        ("load_sectors < 5*M*N*K/32", False, 51200, 51200),
        # Quotients are not cut off as in C, also between integers.
        ("load_sectors*(1/2) == 25600", True, 25600, 25600),
        ("bank_conflicts==0", True, 0, 0),
        (f"{SECTORS}/M >= 2*N", False, 200, 256),
        ("min(load_sectors, M) > 255", True, 256, 255),
    ],
)
def test_limits_compare_formulas_over_counters_and_sizes(text, met, value, bound):
    values = {**SIZES, "load_sectors": 51200.0, SECTORS: 51200.0, "bank_conflicts": 0.0}
    judged = Limit.parse(text).against(values)
    assert (judged.met, judged.value, judged.bound) == (met, value, bound)


def test_a_counter_without_a_value_does_not_meet_a_limit():
    judged = Limit.parse("gemmkit__cp_async_share_pct >= 0").against(SIZES)
    assert not judged.met
    assert judged.value is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("load_sectors", "is not a limit: write a counter, one of <= >= == < >, and a value"),
        ("load_sectors <=", "is not a limit"),
        ("1 <= load_sectors <= 2", "is not a limit"),
        ("load_sectors <= 5 M", "'5 M' is not an expression"),
        ("load_sector <= 5", "no counter 'load_sector': did you mean load_sectors"),
        ("load_sectors <= 5*L", "no counter 'L'"),
        ("M*N <= 5*K", "names no counter"),
    ],
)
def test_what_is_not_a_limit_is_refused(text, words):
    with pytest.raises(UsageError) as refusal:
        Limit.parse(text)
    assert words in str(refusal.value)


def test_limits_are_the_last_record_of_a_check():
    limits = ["sectors_per_request <= 2.5", "load_sectors <= 5*M*N*K/32", "occupancy == 1"]
    given = {"shapes": ["33x20x5"], "limits": limits, "limits_at": "64x32x96", "gpu": "h100"}
    clean, counted = gemmkit.check("naive", **given)
    assert clean.limits == ()
    assert (counted.case, counted.problem.shape) == ("", "64x32x96")
    assert counted.clean
    assert counted.errors is not None
    assert [each.value for each in counted.limits] == [2.5, 5 * 64 * 32 * 96 / 32, 1]
    assert CheckRecord.from_json(counted.to_json()) == counted

    missed = gemmkit.check("naive_uncoalesced", **given)[-1]
    assert (missed.verdict, missed.clean, missed.correct) == ("limit missed", False, True)
    assert [each.met for each in missed.limits] == [False, False, True]
    assert missed.limits[0].value == 16.5
    table = limits_tables([clean, missed])[0].to_text(78).plain
    assert "missed: 6.6 times the limit" in table


def test_counters_of_a_prediction_and_of_the_compiler():
    limits = ["gemmkit__predicted_tflops > 0.1", "registers >= 16", "shared_bytes == 0"]
    record = gemmkit.check("naive", ["8x8x8"], limits=limits)[-1]
    assert record.problem.shape == "256x256x256"
    assert record.clean


def test_the_problem_of_limits_must_be_one_that_the_kernel_accepts():
    with pytest.raises(UnsupportedProblem, match="rows or columns"):
        gemmkit.check(
            "warp_reduce", ["8x8x8"], limits=["bank_conflicts == 0"], limits_at="64x64x64"
        )
    # Without one it is the nearest.
    record = gemmkit.check("warp_reduce", ["8x8x8"], limits=["bank_conflicts >= 0"])[-1]
    assert min(record.problem.m, record.problem.n) <= 16
    with pytest.raises(UsageError, match="limits_at is for limits"):
        gemmkit.check("naive", ["8x8x8"], limits_at="64x64x64")


def test_a_wrong_result_and_a_failed_launch_say_more_than_a_limit(tmp_path):
    source = """
    __global__ void gemm(int M, int N, int K, const float *A, const float *B, float *C) {
      int row = blockIdx.y, col = threadIdx.x;
      C[row * N + col + (M > 32 ? FAR : 0)] = A[row * K] * B[col];
    }"""
    path = tmp_path / "own.cu"
    path.write_text(source.replace("FAR", "0"))
    limits = {"limits": ["load_requests >= 0"], "limits_at": "64x32x2"}
    launch = {"grid": "1,M", "block": "N"}
    record = gemmkit.check(gemmkit.Kernel.from_file(path, **launch), ["32x32x1"], **limits)[-1]
    assert record.verdict == "wrong result"
    assert record.diagnosis is not None
    path.write_text(source.replace("FAR", "1 << 28"))
    record = gemmkit.check(gemmkit.Kernel.from_file(path, **launch), ["32x32x1"], **limits)[-1]
    assert record.verdict == "failed"
    assert record.limits == ()


def test_the_command_shows_limits_in_text_page_and_records(tmp_path):
    page, records = tmp_path / "page.html", tmp_path / "records.jsonl"
    words = ["check", "naive", "--shape", "33x20x5", "--limit-at", "64x64x64"]
    words += ["--limit", "sectors_per_request <= 2.5", "--limit", "store_requests <= M*N/64"]
    found = CliRunner().invoke(command, [*words, "--html", str(page), "--json", str(records)])
    assert found.exit_code == 1, found.output
    assert "Limits at 64x64x64" in found.stdout
    assert "2 problems: 1 ok, 1 with a limit missed; no findings" in found.stdout
    assert "missed: 2 times the limit" in page.read_text("utf-8")
    last = CheckRecord.from_json(records.read_text().splitlines()[-1])
    assert [each.met for each in last.limits] == [True, False]

    met = CliRunner().invoke(command, [*words[:-2]])
    assert met.exit_code == 0, met.output
    alone = CliRunner().invoke(command, ["check", "naive", "--limit-at", "64x64x64"])
    assert alone.exit_code == 2
    assert "--limit-at names the problem of --limit" in alone.output


def test_the_guide_shows_what_its_command_prints(monkeypatch):
    guide = (ROOT / "docs" / "check-your-kernel-in-ci.md").read_text("utf-8")
    part = guide.partition("## Limits on the command line")[2].partition("\n## ")[0]
    words, shown = re.findall(r"^```\w+\n(.*?)^```$", part, re.M | re.S)
    monkeypatch.chdir(ROOT / "examples")
    asked = shlex.split(words.removeprefix("$ gemmkit ").replace("\\\n", " "))
    found = CliRunner().invoke(command, [*asked, "--shape", "8x8x8"])
    assert found.exit_code == 1
    assert shown.strip() in found.stdout


class Planned(Progress):
    """The runs that are announced, and those that start."""

    def __init__(self):
        self.seconds, self.totals = [], []

    def planned(self, seconds):
        self.seconds = seconds

    def started(self, kernel, problem, done, total):
        self.totals.append(total)


def test_the_launch_for_limits_is_among_the_planned_ones():
    seen = Planned()
    check("naive", ["17x18x19"], limits=["bank_conflicts == 0"], limits_at="32", progress=seen)
    assert len(seen.seconds) == len(seen.totals) == 2
    assert set(seen.totals) == {2}
    assert all(seen.seconds)
