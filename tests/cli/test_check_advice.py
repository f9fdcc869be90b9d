"""What `gemmkit check` says of bugs beyond their place: the likeliest reason, single elements."""

from __future__ import annotations

import pytest

from gemmkit import Kernel
from gemmkit.bench.default_cases import default_cases
from gemmkit.gpu import find_board
from gemmkit.kernels.asked import Asked
from gemmkit.report.findings import summary

LAUNCH = ("--grid", "(N+15)/16,(M+15)/16", "--block", "16,16")

STRIDED = """__global__ void strided(int M, int N, int K, const float *A, int lda, const float *B,
                        int ldb, float *C, int ldc) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int p = 0; p < K; ++p) sum += A[AT] * B[BT];
  C[CT] = sum;
}
"""


def own(tmp_path, text):
    path = tmp_path / "own.cu"
    path.write_text(text)
    return path


def indexed(a, b, c):
    return STRIDED.replace("AT", a).replace("BT", b).replace("CT", c)


@pytest.mark.parametrize(
    ("places", "shape", "arrays", "layout"),
    [
        (("p * lda + row", "p * ldb + col", "row * ldc + col"), "20x24x40", "A", "TN"),
        (("row * lda + p", "col * ldb + p", "row * ldc + col"), "24x50x20", "B", "NT"),
        (("p * lda + row", "col * ldb + p", "col * ldc + row"), "24x30x50", "AC", "col"),
    ],
)
def test_reads_past_a_matrix_that_lies_the_other_way_round(
    call, tmp_path, places, shape, arrays, layout
):
    path = own(tmp_path, indexed(*places))
    result = call("check", path, *LAUNCH, "--shape", shape)
    assert result.exit_code == 1
    flat = " ".join(result.stdout.split())
    for array in arrays:
        assert f"past the end of '{array}'" in flat
        assert f"The likely reason: {array} is indexed with rows and columns exchanged" in flat
    assert f"Try --layout {layout}" in flat
    assert call("check", path, *LAUNCH, "--shape", shape, "--layout", layout).exit_code == 0


def test_an_access_out_of_bounds_that_is_no_layout_gets_no_such_advice(call, tmp_path):
    text = indexed("row * lda + p", "p * ldb + col", "row * ldc + col").replace("p < K", "p <= K")
    result = call("check", own(tmp_path, text), *LAUNCH, "--shape", "20x24x40")
    assert result.exit_code == 1
    assert "past the end" in result.stdout
    assert "--layout" not in result.stdout


def test_a_single_wrong_element_has_its_tile(call, tmp_path):
    text = indexed("row * lda + p", "p * ldb + col", "row * ldc + col").replace(
        "= sum;", "= sum + (row == M - 1 && col == N - 1 ? 1.5f : 0.0f);"
    )
    result = call("check", own(tmp_path, text), *LAUNCH, "--shape", "40x56x16")
    assert result.exit_code == 1
    flat = " ".join(result.stdout.split())
    assert "1 of 2,240 elements is wrong ([39, 55], the lower right corner)" in flat
    assert "C[39, 55] is 1.5 more than it should be." in flat
    assert "[39, 55] is element [7, 7] of the 16 × 16 tile (2, 3), a residue tile." in flat


# Blocks that loop over tiles, in numbers that do not follow M and N.
PERSISTENT = """#define T 32
__global__ void persistent(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float As[T][T], Bs[T][T + 1];
  int tx = threadIdx.x, ty = threadIdx.y, tn = (N + T - 1) / T, tm = (M + T - 1) / T;
  float s = 0;
  for (int tile = blockIdx.x; tile < tm * tn; tile += gridDim.x) {
    int r = tile / tn * T + ty, c = tile % tn * T + tx;
    CLEAR
    for (int t = 0; t < K; t += T) {
      As[ty][tx] = r < M && t + tx < K ? A[r * K + t + tx] : 0.f;
      Bs[ty][tx] = c < N && t + ty < K ? B[(t + ty) * N + c] : 0.f;
      __syncthreads();
      for (int k = 0; k < T; ++k) s += As[ty][k] * Bs[k][tx];
      BARRIER
    }
    if (r < M && c < N) C[r * N + c] = s;
  }
}
"""


def persistent(clear="s = 0;", barrier="__syncthreads();"):
    return PERSISTENT.replace("CLEAR", clear).replace("BARRIER", barrier)


@pytest.mark.parametrize(
    ("grid", "changes", "shown"),
    [
        ("min(82,((N+31)/32)*((M+31)/32))", {}, "no findings"),
        ("min(82,((N+31)/32)*((M+31)/32))", {"clear": ""}, "2 wrong; no findings"),
        ("82", {"clear": ""}, "2 wrong; no findings"),
        ("20", {"barrier": "if (t + T < K) __syncthreads();"}, "racecheck"),
    ],
)
@pytest.mark.sample(4)
def test_blocks_of_a_persistent_kernel_take_several_tiles(call, tmp_path, grid, changes, shown):
    path = own(tmp_path, persistent(**changes))
    result = call("check", path, "--grid", grid, "--block", "32,32")
    assert result.exit_code == bool(changes), result.output
    assert shown in result.stdout
    assert "several tiles per block" in result.stdout
    # Neither bug has to do with multiples.
    assert "--multiple-of" not in result.stdout
    assert "second tile" not in result.stdout


@pytest.mark.parametrize(
    ("grid", "name"),
    [(2000, "several tiles per block"), (30000, "as many tiles as fit"), ("(N+31)/32", None)],
)
def test_blocks_that_are_too_many_for_a_second_tile_are_told(tmp_path, make_check, grid, name):
    kernel = Kernel.from_file(own(tmp_path, persistent()), grid=grid, block="32,32")
    gpu = find_board("rtx3090")
    cases = default_cases(kernel, kernel.default, gpu, Asked(**kernel.types(None, None)))
    assert {each.name for each in cases if "tiles" in each.name} - {"whole tiles"} == {name} - {
        None
    }
    assert all(each.problem.m * each.problem.n <= 2**23 for each in cases)
    said = summary([make_check(case=each.name) for each in cases])
    assert ("no block may have run a second tile" in said) == (name == "as many tiles as fit")


GROUPED = """#define T 32
__global__ void grouped(int M, int N, int K, const float *A, const float *B, float *C) {
  int tm = (M + T - 1) / T, tn = (N + T - 1) / T;
  int group = blockIdx.x / (8 * SHORT), first = group * 8, height = HEIGHT;
  int p = first + (blockIdx.x % (8 * SHORT)) % height, q = (blockIdx.x % (8 * SHORT)) / height;
  int r = PM * T + threadIdx.y, c = PN * T + threadIdx.x;
  if (r >= M || c >= N) return;
  float s = 0;
  for (int k = 0; k < K; ++k) s += A[r * K + k] * B[k * N + c];
  C[r * N + c] = s;
}
"""


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize(
    ("height", "right"), [("min(LONG - first, 8)", True), ("min(LONG, 8)", False)]
)
@pytest.mark.sample
def test_grouped_rasterization_leaves_a_partial_group(call, tmp_path, rows, height, right):
    text = GROUPED.replace("HEIGHT", height)
    for word, by_rows, by_columns in (
        ("LONG", "tm", "tn"), ("SHORT", "tn", "tm"), ("PM", "p", "q"), ("PN", "q", "p")
    ):  # fmt: skip
        text = text.replace(word, by_rows if rows else by_columns)
    launch = ("--grid", "((N+31)/32)*((M+31)/32)", "--block", "32,32")
    result = call("check", own(tmp_path, text), *launch)
    assert result.exit_code == (0 if right else 1), result.output
    assert right or f"many {'rows' if rows else 'columns'}" in result.stdout
    assert "--multiple-of" not in result.stdout


def test_problems_are_those_of_the_configuration(call):
    """`gemm_small_k` takes k up to the BK that it is given."""
    result = call("check", "gemm_small_k", "--config", "BK=12")
    assert result.exit_code == 0, result.output
    assert "refused" not in result.stdout
    assert "64x128x12 " in result.stdout


def test_a_refused_problem_says_why_in_its_row(call):
    shapes = [word for shape in ("64x128x24", "60x100x24", "8x8x8") for word in ("--shape", shape)]
    result = call("check", "gemm_small_k", "--config", "BK=12", *shapes)
    assert "3 problems: 2 refused, 1 ok; no findings" in result.stdout
    assert " ".join(result.stdout.split()).count("BK = 12 is less than k = 24") == 2


def test_wrong_results_with_findings_count_as_both(call, tmp_path):
    text = indexed("row * lda + p", "p * ldb + col", "row * ldc + col")
    text = text.replace("p < K", "p <= K").replace("= 0;", "= 1;")
    result = call("check", own(tmp_path, text), *LAUNCH, "--shape", "20x24x40")
    assert "1 problem: 1 wrong and with findings; 2 distinct findings" in result.stdout
