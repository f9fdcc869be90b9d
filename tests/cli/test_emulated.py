"""The command line on the emulator, end to end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from gemmkit.dispatch.choose import choose
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record


def records(text: str) -> list[Record]:
    return [Record.from_json(line) for line in text.splitlines()]


def test_the_whole_ladder_is_correct_and_counted(call):
    result = call("ladder", "--size", "48", "--device", "emulator", "--json", "-")
    assert result.exit_code == 0
    seen = records(result.stdout)
    cube, board = GemmProblem(48, 48, 48), find_board("rtx3090")
    rungs = [each.name for each in LADDER if each.supports(cube, each.default, board) is None]
    assert len(rungs) >= sum("float32" in each.dtypes for each in LADDER) - 1
    taking = [*rungs, choose(cube, board).kernel.name]
    assert [each.kernel for each in seen] == taking
    assert all(each.correct and each.counters for each in seen)
    assert all(each.time_us is None and each.tflops is None for each in seen)
    assert [line.split()[0] for line in result.stderr.splitlines() if "48x48x48" in line] == [
        f"[1/{len(taking)}]",
        "C",
        *(f"[{number}/{len(taking)}]" for number in range(2, len(taking) + 1)),
    ]
    # A rung that takes other shapes has a row that says why it is missing here.
    rows = result.stderr.splitlines()
    (row,) = (number for number, line in enumerate(rows) if line.startswith("12  warp_reduce"))
    assert "not run" in rows[row]
    assert rows[row + 1].strip().startswith("Left out: it takes products of at most 16 rows")


def test_records_have_the_names_that_tools_read(call):
    words = ("--shape", "5x6x7", "--kernels", "naive", "--epilogue", "bias+relu")
    result = call("ladder", *words, "--alpha", "2", "--device", "emulator", "--json", "-")
    record = json.loads(result.stdout)
    assert record["problem"]["m"] == 5
    assert record["problem"]["epilogue"] == "bias+relu"
    assert record["device"] == {"kind": "emulator", "gpu": "RTX 3090"}
    assert record["config"] == {"BM": 32, "BN": 32}
    assert set(record["resources"]) == {
        *("registers", "spill_bytes", "shared_bytes", "local_bytes"),
    }
    assert set(record["occupancy"]) == {
        *("theoretical", "waves_per_sm", "blocks_per_sm", "limiter"),
    }
    assert record["time_us"] is None
    assert record["emulation_seconds"] > 0
    assert "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum" in record["counters"]


def test_kernels_that_cannot_fuse_are_left_out_and_named(call, monkeypatch):
    monkeypatch.setattr("gemmkit.kernels.catalog.LADDER", LADDER[:3])
    result = call("ladder", "--size", "8", "--epilogue", "relu", "--device", "emulator")
    assert result.exit_code == 0
    assert "naive_uncoalesced" not in result.stderr
    assert " 1  naive_uncoalesced            not run" in result.stdout
    assert "Left out: 'naive_uncoalesced' has no fused epilogue" in result.stdout
    assert "naive + relu" in result.stdout


def test_a_broken_kernel_is_seen(call, monkeypatch):
    naive = find_kernel("naive")
    monkeypatch.setitem(naive.__dict__, "source", naive.source.replace("sum +=", "sum -=", 1))
    result = call("ladder", "--size", "32", "--kernels", "naive", "--device", "emulator")
    assert result.exit_code == 1
    assert "WRONG" in result.stdout


def test_sweep_counts_each_size(call):
    result = call("sweep", "--sizes", "32,64", "--device", "emulator", "--json", "-")
    assert result.exit_code == 0
    seen = records(result.stdout)
    assert [(each.problem.m, each.problem.k, each.kernel) for each in seen] == [
        (size, 1024, kernel) for size in (32, 64) for kernel in ("naive_uncoalesced", "naive")
    ]
    assert all(each.correct for each in seen)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.usefixtures("handles_interrupts")
def test_ctrl_c_in_the_middle_of_a_launch(tmp_path):
    path = tmp_path / "records.json"
    words = ("--size", "1024", "--kernels", "naive,naive_uncoalesced", "--device", "emulator")
    process = subprocess.Popen(
        [sys.executable, "-m", "gemmkit", "ladder", *words, "--json", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        for line in process.stderr:
            if line.startswith("[2/2] naive_uncoalesced"):
                process.send_signal(signal.SIGINT)
                break
        table, rest = process.communicate()
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "interrupted"
    assert "Traceback" not in rest
    assert [each.kernel for each in records(path.read_text())] == ["naive"]
    assert "naive" in table


def test_the_production_kernel_is_the_last_row_and_there_once(call):
    result = call("ladder", "--shape", "9x10x11x3", "--device", "emulator", "--gpu", "h100")
    assert result.exit_code == 0
    assert_last_of(rows_of(result.stdout))


def rows_of(table: str) -> list[list[str]]:
    """The words of each row of a ladder's table."""
    return [line.split() for line in table.splitlines() if re.match(r" ?\d+  |  ?–  ", line)]


def assert_last_of(rows: list[list[str]]) -> None:
    """The last row is that of the production kernel, which is in no other and was run."""
    names = [row[1] for row in rows]
    assert len(names) == len(set(names))
    assert rows[-1][0] == "–"
    assert "not" not in rows[-1]


def test_settings_without_kernels_point_to_the_option(call):
    result = call("ladder", "--config", "BM=16", "--device", "emulator")
    assert result.exit_code == 2
    assert "name the kernels to configure with --kernels" in result.stderr
    words = ("--kernels", "naive:BM=16,BN=16,shared_tiling", "--size", "16", "--json", "-")
    done = call("ladder", *words, "--device", "emulator")
    first, second = records(done.stdout)
    assert (first.kernel, first.config) == ("naive", {"BM": 16, "BN": 16})
    assert second.kernel == "shared_tiling"


def test_groups_have_a_column_of_their_own(call):
    result = call("sweep", "--groups", "3x4x5", "--device", "emulator")
    heads = result.stdout.splitlines()[:5]
    assert any(line.startswith("groups  kernel") for line in heads)
    assert "M = N" not in result.stdout
    assert "occupancy" not in result.stdout
