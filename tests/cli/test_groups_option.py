"""`--groups` of every verb."""

from __future__ import annotations

import json

import pytest

from gemmkit.tune import predicted

TILES = "BM=16,BN=32,BK=16,WM=16,WN=32,TM=4,TN=4,stages=2,interleave=1,order=2"
GROUPS = "33x65x40*2,5x7x9,0x4x4"


def run(call, *words):
    done = call(*words)
    return done.exit_code, done.stdout, done.stderr


def test_bench_writes_records_with_the_groups(call, tmp_path):
    path = tmp_path / "records.jsonl"
    listed = tmp_path / "groups.txt"
    listed.write_text("33x65x40*2\n5x7x9  # small\n0x4x4\n")
    given = ("--groups", GROUPS, "--groups", str(listed), "--config", TILES)
    options = ("--device", "emulator", "--epilogue", "bias", "--json", str(path))
    code, out, err = run(call, "bench", "gemm_grouped", *given, *options)
    assert code == 0, err
    assert GROUPS in out
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["problem"]["groups"] for each in records] == [GROUPS] * 2
    assert all(each["correct"] and each["counters"] for each in records)
    assert (records[0]["problem"]["m"], records[0]["problem"]["k"]) == (33, 40)


def test_bench_takes_a_type_of_the_kernel(call, tmp_path):
    path = tmp_path / "records.jsonl"
    given = ("--groups", GROUPS, "--config", TYPED["grouped_mma"], "--device", "emulator")
    code, _, err = run(call, "bench", "grouped_mma", *given, "--gpu", "h100", "--json", str(path))
    assert code == 0, err
    (record,) = map(json.loads, path.read_text().splitlines())
    assert record["problem"]["dtype"] == "float16"


def test_check_looks_at_groups(call):
    code, out, err = run(
        call, "check", "gemm_grouped", "--groups", GROUPS, "--config", TILES, "--beta", "0.5"
    )
    assert code == 0, err
    assert "1 problem: 1 ok; no finding" in out


def test_which_and_show_and_explain_take_groups(call):
    code, out, err = run(call, "which", "--groups", GROUPS, "--gpu", "h100", "--no-store", "--json")
    assert code == 0, err
    decision = json.loads(out)
    assert (decision["kernel"], decision["shape"]) == ("gemm_grouped", GROUPS)
    assert decision["alternatives"]
    code, out, err = run(call, "show", "gemm_grouped", "--groups", GROUPS, "--config", TILES)
    assert code == 0, err
    assert all(name in out for name in ("groups", "group_count", "tile_count"))
    # 3 × 3 tiles of each of the two, and one.
    assert "19 × 1 × 1 = 19 blocks" in out
    code, out, err = run(
        call, "explain", "gemm_grouped", "--groups", GROUPS, "--config", TILES, "--json"
    )
    assert code == 0, err
    explained = json.loads(out)
    assert explained["problem"] == explained["counted"] == GROUPS
    assert explained["metrics"]["gemmkit__predicted_time_us"] > 0
    assert {"A", "B", "C", "groups"} <= {each["array"] for each in explained["operands"]}


TYPED = {
    "grouped_typed": "BM=16,BN=32,BK=8,WM=16,WN=32,TM=4,TN=4",
    "grouped_mma": "BM=32,BN=32,BK=16,WM=16,WN=16",
}


@pytest.mark.parametrize(("kernel", "dtype"), [("grouped_typed", "fp64"), ("grouped_mma", "bf16")])
@pytest.mark.sample(2)
def test_groups_of_other_types(kernel, dtype, call, tmp_path, monkeypatch):
    # One prediction is enough.
    monkeypatch.setattr(predicted, "usable_cores", lambda: 1)
    path = tmp_path / "records.jsonl"
    given = ("--groups", GROUPS, "--dtype", dtype)
    own = (kernel, *given, "--config", TYPED[kernel])
    code, out, err = run(call, "check", *own, "--gpu", "h100", "--beta", "0.5")
    assert code == 0, err
    assert "1 problem: 1 ok; no finding" in out
    code, out, err = run(call, "bench", *own, "--device", "emulator", "--json", str(path))
    assert code == 0, err
    (record,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert record["correct"]
    assert record["problem"]["groups"] == GROUPS
    code, out, err = run(call, "which", *given, "--gpu", "h100", "--no-store", "--json")
    assert code == 0, err
    assert json.loads(out)["kernel"] in TYPED
    code, out, err = run(call, "explain", *own, "--gpu", "h100", "--json")
    assert code == 0, err
    assert json.loads(out)["metrics"]["gemmkit__predicted_time_us"] > 0
    words = ("--device", "model", "--gpu", "h100", "--kernels", kernel, "--budget", "0s")
    code, out, err = run(call, "tune", *given, *words)
    assert code == 0, err


def test_large_groups_are_counted_in_part(call):
    code, out, err = run(
        call,
        *("explain", "gemm_grouped", "--groups", "64x64x64,2048x8x8,1024x1024x1024*3"),
        *("--config", TILES, "--json"),
    )
    assert code == 0, err
    assert json.loads(out)["counted"] == "64x64x64,1024x8x8"


@pytest.mark.parametrize("verb", ["ladder", "sweep"])
def test_ladder_and_sweep_run_the_kernels_that_take_groups(verb, call, tmp_path):
    path = tmp_path / "records.jsonl"
    given = ("--groups", GROUPS, "--device", "emulator", "--beta", "0.5", "--json", str(path))
    code, out, err = run(call, verb, *given)
    assert code == 0, err
    assert GROUPS in out
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(each["kernel"], each["problem"]["groups"]) for each in records} == {
        ("gemm_grouped", GROUPS)
    }
    assert len(records) == 1
    assert all(each["correct"] for each in records)
    code, _, err = run(call, verb, *given, "--kernels", "naive")
    assert code == 2
    assert "'naive' computes products of one shape" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench", "naive", "--groups", "5x5x5", "--device", "emulator"), "of one shape"),
        (("bench", "gemm_grouped", "--groups", "5x"), "'5x' is not a group"),
        (("which", "--groups", "5x5x5", "64"), "give a shape or --groups, not both"),
        (("which",), "which problem?"),
        (("ladder", "--groups", "5x5x5", "--shape", "64x64x64"), "give a shape or --groups"),
        (("ladder", "--groups", "5x5x5", "--size", "64"), "give a size or a shape, not both"),
        (("sweep", "--groups", "5x5x5", "--sizes", "64"), "give --sizes or --groups, not both"),
        (("show", "gemm_grouped", "--groups", "none.txt"), "none.txt cannot be read"),
        (
            ("show", "gemm_grouped", "--groups", "5x5x5", "--dtype", "fp16"),
            "is for float32, not float16; 'grouped_typed' and 'grouped_mma' take it",
        ),
        (("show", "typed", "--groups", "5"), "'gemm_grouped' and 'grouped_typed' take it"),
        (
            ("show", "grouped_mma", "--groups", "5", "--dtype", "fp32"),
            "not float32; 'gemm_grouped' and 'grouped_typed' take it",
        ),
        (("which", "--groups", ""), "'' is not a group"),
        (("which", "--groups", "5x5x5", "--layout", "XY"), "unknown layout 'XY'"),
        (("tune", "--groups", "0x5x5", "--device", "model"), "is left to predict"),
        (("tune", "--groups", "0x5x5", "--device", "model"), "it has nothing to multiply"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(arguments, words, call):
    code, _, err = run(call, *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err


def test_leading_dimensions_are_those_of_the_layout(call, tmp_path):
    path = tmp_path / "records.jsonl"
    # A is stored 40×3 and B 65×40: rows of 3 and 40 elements.
    given = ("--groups", "3x65x40:8:44:70*2,5x7x9", "--layout", "TT", "--device", "emulator")
    code, out, err = run(
        call, "bench", "gemm_grouped", *given, "--config", TILES, "--json", str(path)
    )
    assert code == 0, err
    record = json.loads(path.read_text())
    assert record["correct"]
    assert record["problem"]["groups"] == "3x65x40:8:44:70*2,5x7x9"
    assert "3x65x40:8:44:70*2" in out
    code, _, err = run(call, "which", "--layout", "TT", "--groups", "3x65x40:2:44:70")
    assert code == 2
    assert "lda = 2 is smaller than a row of 3" in err


@pytest.mark.parametrize(("verb", "rest"), [("check", ("--prepared", "b")), ("show", ())])
@pytest.mark.sample(2)
def test_groups_are_in_the_types_of_a_kernel_that_is_named(call, verb, rest):
    narrow = ("--config", "BM=64,BN=32,BK=64,stages=2,consumers=1", "--gpu", "h100")
    code, _, err = run(call, verb, "grouped_fp16x3", "--groups", "5x3x64", *narrow, *rest)
    assert code == 0, err
