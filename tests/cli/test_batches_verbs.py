"""Batches on the command line: run, check, which, and what cannot be meant."""

from __future__ import annotations

import json

import pytest

from gemmkit.check_record import CheckRecord
from gemmkit.record import Record

TILES = "BM=32,BN=32,BK=8,WM=16,WN=32,TM=4,TN=4,stages=2,interleave=1"


def test_a_batch_is_run_and_counted_on_the_emulator(call):
    words = ("bench", "gemm_tiled", "--config", TILES, "--device", "emulator", "--json", "-")
    several, one = (call(*words, "--shape", shape) for shape in ("40x36x20x5", "40x36x20"))
    assert several.exit_code == one.exit_code == 0, several.output
    record, single = (Record.from_json(each.stdout) for each in (several, one))
    assert record.correct
    assert record.check == "every element of 5 products"
    assert (record.problem.batch, record.problem.stride_c) == (5, 40 * 36)
    assert "40x36x20x5" in several.stderr
    # What the blocks of one product do, five times.
    stores = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
    assert record.counters[stores] == 5 * single.counters[stores]


def test_a_batch_is_checked(call):
    shapes = "33x36x9x3"
    words = ("--config", TILES, "--shape", shapes, "--gpu", "h100")
    done = call("check", "gemm_tiled", *words, "--json", "-")
    assert done.exit_code == 0, done.output
    record = CheckRecord.from_json(done.stdout)
    assert (record.verdict, record.problem.shape) == ("ok", shapes)
    assert shapes in done.stderr


def test_which_kernel_a_batch_gets(call):
    done = call("which", "64x64x64x2048", "--gpu", "h100", "--no-store")
    assert done.exit_code == 0, done.output
    assert "64x64x64x2048 on H100" in done.stdout
    told = json.loads(call("which", "8x8x8x9", "--gpu", "h100", "--no-store", "--json").stdout)
    assert told["shape"] == "8x8x8x9"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("which", "64x64x64*2048"), "write MxNxK, for example 512x300x200, or MxNxKxBATCH"),
        (
            ("explain", "naive", "--shape", "8x8x8x9"),
            "computes one product per launch, not a batch; 'gemm_tiled' and 'gemm_split_k' take it",
        ),
        (
            ("check", "naive", "--shape", "8x8x8x9"),
            "computes one product per launch, not a batch; 'gemm_tiled' and 'gemm_split_k' take it",
        ),
    ],
)
def test_what_batches_cannot_do_is_one_clear_message(call, words, said):
    done = call(*words)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())


def test_a_board_without_async_copies_gets_the_kernel_for_all_types(call):
    done = call("which", "8x8x8x9", "--gpu", "t4", "--no-store")
    assert done.exit_code == 0, done.output
    assert "kernel typed" in " ".join(done.output.split())
