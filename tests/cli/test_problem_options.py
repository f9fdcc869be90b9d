"""`check`, `bench`, `explain` and `show` take the same words for a kernel of one's own."""

from __future__ import annotations

import pytest

LAUNCH = ("--grid", "ceil_div(N,16),ceil_div(M,16)", "--block", "16,16", "--shape", "40x24x20")

BIASED = """__global__ void biased(int M, int N, int K, float alpha, const float *A, int lda,
                       const float *B, int ldb, float beta, float *C, int ldc, const float *bias) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int p = 0; p < K; ++p) sum += A[row * lda + p] * B[p * ldb + col];
  C[row * ldc + col] = alpha * sum + (beta != 0 ? beta * C[row * ldc + col] : 0.f) + bias[col];
}
"""

# Right for A · B + C alone, with a factor that host code sets.
ADDING = """__constant__ float scale;
__global__ void adding(int n, const float *left, const float *right, float *out) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= n || col >= n) return;
  float sum = 0;
  for (int p = 0; p < n; ++p) sum += left[p * n + row] * right[p * n + col];
  out[row * n + col] += scale * sum;
}
"""

VERBS = [("check",), ("bench", "--device", "emulator"), ("explain",), ("show",)]


@pytest.fixture
def own(call, tmp_path):
    """Run a verb on a file of one's own."""

    def run(verb, text, *words):
        path = tmp_path / "own.cu"
        path.write_text(text)
        return call(*verb, path, *words)

    return run


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_bias_among_the_parameters_needs_no_option(own, verb):
    result = own(verb, BIASED, *LAUNCH, "--alpha", "2", "--beta", "-0.5")
    assert result.exit_code == 0, result.output
    refused = own(verb, BIASED, *LAUNCH, "--epilogue", "none")
    assert refused.exit_code == 2
    assert "choose an epilogue with a bias" in refused.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_everything_that_tells_of_a_kernel_is_taken(own, verb):
    words = ("--grid", "n/16,n/16", "--block", "16,16", "--shape", "32", "--args", "N,A,B,C")
    words += ("--constant", "scale=1", "--layout", "TN", "--beta", "1", "--compute-dtype", "fp32")
    words += ("--tolerance", "1e-5", "--multiple-of", "16", "--gpu", "h100", "--option", "-DX=1")
    result = own(verb, ADDING, *words)
    assert result.exit_code == 0, result.output


def test_explain_judges_by_what_was_asked_for(own):
    words = ("--grid", "n/16,n/16", "--block", "16,16", "--shape", "32", "--args", "N,A,B,C")
    words += ("--layout", "TN", "--constant", "scale=1")
    assert own(("explain",), ADDING, *words, "--beta", "1").exit_code == 0
    assert own(("explain",), ADDING, *words).exit_code == 1


def test_explain_ends_a_kernel_that_does_not(own):
    endless = BIASED.replace("p < K; ++p", "p < K + 1; p += K < 0")
    result = own(("explain",), endless, *LAUNCH, "--max-steps", "10000")
    assert result.exit_code == 2
    assert "10,000 steps" in result.stderr
