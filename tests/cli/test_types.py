"""Types, layouts and epilogues of a problem are options of every verb, by the same names."""

from __future__ import annotations

import json
import re

import pytest

from gemmkit.kernels.catalog import LADDER


def records(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


EMULATED = ("--gpu", "h100", "--device", "emulator", "--json", "-")


@pytest.mark.parametrize(
    ("dtype", "out", "layout"),
    [("bfloat16", "float32", "NT"), ("fp16", None, "NN"), ("float64", None, "TT")],
)
@pytest.mark.sample(3)
def test_ladder_and_sweep_of_other_types(call, dtype, out, layout):
    full = {"fp16": "float16"}.get(dtype, dtype)
    words = ["--dtype", dtype, "--layout", layout, *(["--out-dtype", out] if out else [])]
    ladder = call("ladder", "--shape", "40x48x56", *words, *EMULATED)
    seen = records(ladder)
    rows = [
        line.split() for line in ladder.stderr.splitlines() if re.match(r" ?\d+  |  ?–  ", line)
    ]
    names = [row[1] for row in rows]
    assert len(names) == len(set(names))
    assert rows[-1][0] == "–"
    assert "not" not in rows[-1]
    seen += records(call("sweep", "--sizes", "48", "--kernels", "typed", *words, *EMULATED))
    expected = {"typed", "typed_mma"} if dtype == "float64" else {"gemm_wgmma"}
    if (full, layout) == ("float16", "NN"):
        expected |= {kernel.name for kernel in LADDER if full in kernel.dtypes}
    assert {each["kernel"] for each in seen[:-1]} == expected
    for each in seen:
        problem = each["problem"]
        assert each["correct"]
        assert (problem["dtype"], problem["out_dtype"]) == (full, out or full)
        assert problem["layout"] == layout.lower()


def test_every_epilogue_of_the_library_on_the_ladder(call):
    words = ("--epilogue", "row_bias+silu+residual", "--layout", "TN", "--kernels", "typed")
    (seen,) = records(call("ladder", "--size", "48", *words, *EMULATED))
    assert seen["correct"]
    assert seen["problem"]["epilogue"] == "row_bias+silu+residual"


@pytest.mark.parametrize("verb", ["bench", "check", "explain"])
@pytest.mark.sample(3)
def test_a_kernel_of_the_library(call, verb):
    words = ("--shape", "40x48x56", "--dtype", "bf16", "--layout", "NT", "--epilogue", "bias+gelu")
    result = call(verb, "typed_mma", *words, "--gpu", "h100")
    assert result.exit_code == 0, result.output
    if verb == "check":
        assert "bf16 NT bias+gelu" in " ".join(result.output.split())


def test_a_kernel_is_run_on_the_first_type_that_it_takes(call):
    (seen,) = records(call("bench", "typed_mma", "--shape", "32x40x48", *EMULATED))
    assert (seen["problem"]["dtype"], seen["problem"]["epilogue"]) == ("float16", "none")


@pytest.mark.parametrize("verb", ["bench", "check", "explain", "show"])
def test_a_kernel_serves_where_a_lower_precision_is_allowed(call, verb):
    result = call(verb, "naive", "--shape", "24x32x16", "--precision", "TF32", "--gpu", "h100")
    assert result.exit_code == 0, result.output
    told = "fp32 (precision tf32)" in " ".join(result.output.split())
    assert told == (verb != "explain")


@pytest.mark.parametrize("verb", ["which", "ladder", "tune"])
def test_what_is_no_precision_is_refused(call, verb):
    place = "24x32x16" if verb == "which" else "--shape=24x32x16"
    result = call(verb, place, "--precision", "tf23")
    assert result.exit_code == 2
    assert "unknown precision 'tf23'" in result.output
    result = call(verb, place, "--precision", "tf32", "--dtype", "bf16")
    assert result.exit_code == 2
    assert "A and B are of bfloat16: leave it out" in " ".join(result.output.split())


def test_ladder_and_sweep_of_a_precision(call):
    words = ("--kernels", "naive", "--precision", "tf32")
    seen = records(call("ladder", "--shape", "24x32x16", *words, *EMULATED))
    seen += records(call("sweep", "--sizes", "16", *words, *EMULATED))
    assert [each["problem"]["precision"] for each in seen] == ["tf32", "tf32"]
    assert all(each["correct"] for each in seen)


def test_which_tells_layouts_and_types_apart(call):
    words = ("--gpu", "h100", "--no-store", "--json")
    plain, turned, half, unlike = (
        json.loads(call("which", *more, *words).stdout)
        for more in (
            ("6144",),
            ("6144", "--layout", "NT"),
            ("6144", "--dtype", "fp16"),
            ("7000x6000x5000", "--layout", "NT"),
        )
    )
    assert plain["source"] == turned["source"] == "shipped table"
    assert plain["time_us"] != turned["time_us"]
    assert "6144x6144x6144 NT" in turned["reason"]
    assert (half["dtype"], half["source"]) == ("float16", "shipped table")
    assert "6144x6144x6144, bf16, measured with" in half["reason"]
    assert not half["measured"]
    assert "estimated" in unlike["reason"]


@pytest.mark.slow
def test_a_model_of_times_ranks_other_layouts(call):
    words = ("--layout", "NT", "--device", "model", "--gpu", "h100", "--budget", "1s")
    result = call("tune", "--shape", "256", "--kernels", "gemm_split_k", *words)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ladder", "--dtype", "fp12"), "unknown dtype 'fp12'"),
        (("which", "64", "--out-dtype", "int8"), "unknown out_dtype 'int8'"),
        (("sweep", "--layout", "NM"), "unknown layout 'NM'"),
        (("ladder", "--epilogue", "relux"), "did you mean relu"),
    ],
)
def test_unknown_words(call, words, message):
    result = call(*words)
    assert result.exit_code == 2
    assert message in result.output
