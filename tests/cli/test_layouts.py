"""`--layout`: kernels for transposed and column-major matrices, on every verb that runs files."""

from __future__ import annotations

import json

import pytest

from gemmkit.bench.count import count
from gemmkit.cli.target import in_layout
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.layouts import layout_text, read_layout
from gemmkit.problem import GemmProblem

SOURCE = """
template <bool TA, bool TB, bool TC>
__global__ void own(int m, int n, int k, float alpha, const float *A, int lda, const float *B,
                    int ldb, float beta, float *C, int ldc) {
  int j = blockIdx.x * 8 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
  if (i >= m || j >= n) return;
  float sum = 0;
  for (int p = 0; p < k; ++p)
    sum += (TA ? A[p * lda + i] : A[i * lda + p]) * (TB ? B[j * ldb + p] : B[p * ldb + j]);
  float *c = TC ? &C[j * ldc + i] : &C[i * ldc + j];
  *c = alpha * sum + (beta == 0.f ? 0.f : beta * *c);
}
"""
LAUNCH = ("--grid", "ceil_div(n,8),ceil_div(m,8)", "--block", "8,8")
WRITTEN = {
    "NN": "false,false,false",
    "nt": "false,true,false",
    "TN": "true,false,false",
    "TT": "true,true,false",
    "col": "true,true,true",
    "col-NT": "true,false,true",
}


@pytest.fixture
def own(tmp_path):
    """The file, and the words that name an instance of the kernel in it."""
    path = tmp_path / "own.cu"
    path.write_text(SOURCE)
    return lambda layout: (path, "--entry", f"own<{WRITTEN[layout]}>", *LAUNCH)


@pytest.mark.parametrize(
    ("text", "layout", "shown"),
    [
        ("NN", "nn", "NN"),
        ("nt", "nt", "NT"),
        ("row-TN", "tn", "TN"),
        ("row", "nn", "NN"),
        ("col", "ttt", "col-NN"),
        ("column-major", "ttt", "col-NN"),
        ("col-NT", "tnt", "col-NT"),
        ("COL_tt", "nnt", "col-TT"),
    ],
)
def test_layouts_as_they_are_written(text, layout, shown):
    assert read_layout(text) == layout
    assert layout_text(layout) == shown
    assert read_layout(shown) == layout


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "use one of NN, NT, TN, TT, col"),
        ("diagonal", "use one of NN"),
        ("NNN", r"did you mean NN\?"),
        ("nx", "did you mean"),
        ("c", r"did you mean col\?"),
        ("col-NX", "did you mean col-TN or col-NT"),
    ],
)
def test_what_is_no_layout(text, advice):
    with pytest.raises(UsageError, match=f"unknown layout '{text}': {advice}"):
        read_layout(text)


@pytest.mark.parametrize("layout", ["NN", "nt", "TN", "TT", "col", "col-NT"])
@pytest.mark.sample(2)
def test_right_in_its_own_layout_and_wrong_in_another(call, own, layout):
    asked = ("check", *own(layout), "--shape", "9x7x5,8x8x8", "--alpha", "-1.5", "--beta", "0.5")
    right = call(*asked, "--layout", layout)
    assert right.exit_code == 0, right.output
    other = "TN" if layout == "NN" else "NN"
    wrong = call(*asked, "--layout", other)
    assert wrong.exit_code == 1
    assert "1 ok" not in wrong.stdout


def test_default_problems_pad_the_rows_that_memory_has(call, own):
    result = call("check", *own("nt"), "--layout", "NT", "--json", "-")
    assert result.exit_code == 0, result.output
    records = [json.loads(line)["problem"] for line in result.stdout.splitlines()]
    assert {each["layout"] for each in records} == {"nt"}
    assert any(each["ldb"] > max(each["k"], 1) for each in records)
    assert all(each["ldb"] >= each["k"] for each in records)


def test_bench_show_and_explain_take_it(call, own):
    words = (*own("col"), "--layout", "col", "--shape", "24x16x8")
    benched = call("bench", *words, "--device", "emulator")
    assert benched.exit_code == 0, benched.output
    assert "col-NN" in benched.stdout
    shown = call("show", *words)
    assert "24x16x8, col-NN on" in shown.stdout
    explained = call("explain", *words, "--maps")
    assert explained.exit_code == 0, explained.output
    assert "store of C" in explained.stdout


def test_counters_follow_the_layout(tmp_path):
    path = tmp_path / "own.cu"
    path.write_text(SOURCE)

    def sectors(layout):
        kernel = Kernel.from_file(
            path,
            entry=f"own<{WRITTEN[layout]}>",
            grid="ceil_div(n,8),ceil_div(m,8)",
            block="8,8",
            layout=layout,
        )
        counted = count(kernel, "32x32x32")
        assert counted.record.correct
        return counted.load_sectors

    # A request of 4 x 8 threads: B row-major is one sector, transposed it is eight.
    assert sectors("nt") > 1.5 * sectors("NN")


def test_a_rung_takes_the_layouts_that_it_reads(call):
    board = find_board("rtx3090")
    rung = in_layout(find_kernel("gemm_tiled"), "NT")
    plan = rung.plan(rung.lay_out(GemmProblem(9, 7, 5)), rung.default, board)
    plain = find_kernel("gemm_tiled")
    assert plan.entry == plain.plan(GemmProblem(9, 7, 5, transb=True), rung.default, board).entry
    refused = call("check", "naive", "--shape", "9x7x5", "--layout", "NT")
    assert refused.exit_code == 2
    assert "'naive' supports NN, not NT" in refused.stderr


def test_problems_of_another_layout_are_refused_and_plain_ones_laid_out(tmp_path):
    path = tmp_path / "own.cu"
    path.write_text(SOURCE)
    entry = "own<false,true,false>"
    kernel = Kernel.from_file(path, entry=entry, grid=1, block=1, layout="NT")
    board, plain = find_board("rtx3090"), GemmProblem(9, 7, 5, ldb=9)
    assert kernel.lay_out(plain) == GemmProblem(9, 7, 5, transb=True, ldb=7)
    assert kernel.supports(kernel.lay_out(plain), kernel.default, board) is None
    other = GemmProblem(9, 7, 5, transa=True)
    assert kernel.lay_out(other) == other
    assert "takes NT, not TN; --layout" in str(kernel.supports(other, kernel.default, board))
