"""What `gemmkit check` says of bugs beyond their place: the likeliest reason, single elements."""

from __future__ import annotations

import pytest

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
