"""`gemmkit check` on files of one's own, for real: bugs come out as what they are."""

from __future__ import annotations

import pytest

LAUNCH = ("--grid", "(N+15)/16,(M+15)/16", "--block", "16,16")

# Right for multiples of 16 only.
TILED = """__global__ void tiled(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float As[16][16], Bs[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k0 = 0; k0 < K; k0 += 16) {
    As[threadIdx.y][threadIdx.x] = A[row * K + k0 + threadIdx.x];
    Bs[threadIdx.y][threadIdx.x] = B[(k0 + threadIdx.y) * N + col];
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    __syncthreads();
  }
  C[row * N + col] = sum;
}
"""


@pytest.fixture
def check_file(call, tmp_path):
    """Write a file and check its only kernel on 32x32x32, or on other shapes."""

    def run(text, *words, shape="32x32x32", launch=LAUNCH):
        path = tmp_path / "own.cu"
        path.write_text(text)
        return call("check", path, *launch, "--shape", shape, *words)

    return run


def test_sizes_that_the_kernel_is_made_for_are_clean(check_file):
    result = check_file(TILED)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("1 problem: 1 ok; no finding\n")


def test_out_of_bounds_at_another_size_is_a_finding(check_file):
    result = check_file(TILED, shape="32x32x32,24x32x32")
    assert result.exit_code == 1
    assert "memcheck: out of bounds: load of 4 bytes" in result.stdout
    assert "of 'A'" in result.stdout
    assert "-> own.cu:6\n" in result.stdout
    assert ">    6 |     As[threadIdx.y][threadIdx.x] = A[row * K + k0" in result.stdout
    assert "2 problems: 1 ok, 1 with findings" in result.stdout


def test_missing_barrier_is_a_race_between_two_lines(check_file):
    result = check_file(
        TILED.replace("    __syncthreads();\n    for", "    for"), "--only", "racecheck"
    )
    assert result.exit_code == 1
    assert "racecheck: read after write" in result.stdout
    assert "-> own.cu:8\n" in result.stdout
    assert "-> own.cu:6\n" in result.stdout


def test_finding_that_was_not_asked_for_is_left_out(check_file):
    result = check_file(TILED, "--only", "racecheck", shape="32x16x24")
    assert "memcheck" not in result.stdout


def test_kernel_that_never_ends_is_told_where_it_was(check_file):
    endless = """__global__ void endless(int M, int N, const float *A, const float *B, float *C) {
  while (*(volatile const float *)A < 1e30f) {
  }
  C[0] = 1;
}
"""
    result = check_file(endless, "--max-steps", "10000", launch=("--grid", "1", "--block", "32"))
    assert result.exit_code == 1
    assert "did not end within 10,000 steps" in result.stdout
    assert "-> own.cu:2\n" in result.stdout


def test_kernel_that_refuses_all_that_was_asked_for_is_an_error(check_file):
    result = check_file(TILED, "--beta", "0.5")
    assert result.exit_code == 2
    assert "nothing to check" in result.stderr
    assert "beta" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--entry", "other"), "other"),
        (("--args", "M,N,K,A,B,D"), "'D'"),
        (("--block", "16,x"), "x"),
    ],
)
def test_bad_usage(check_file, words, message):
    result = check_file(TILED, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "unexpected" not in result.stderr
