"""A shared variable that is read before it is set, and that the optimizer replaces by a number."""

from __future__ import annotations

from pathlib import Path

import pytest

import gemmkit
from gemmkit.kernels.kernel import Kernel

# The only value that `done` is ever given is 1, so that the optimizer takes it to be 1 throughout.
SOURCE = """
__global__ void flagged(const float *A, const float *B, float *C, int M, int N, int K) {
  __shared__ int done;
  const int e = blockIdx.x * 32 + threadIdx.x;
  CLEAR
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < K; ++k) {
    if (threadIdx.x == 0 && k == K - 1) done = 1;
    __syncthreads();
    if (e < M * N) sum += A[e / N * K + k] * B[k * N + e % N];
    if (done) break;
    __syncthreads();
  }
  if (e < M * N) C[e] = sum;
}
"""


@pytest.mark.parametrize("clear", ["", "if (threadIdx.x == 0) done = 0;"])
def test_a_flag_that_is_never_cleared(tmp_path: Path, clear: str) -> None:
    path = tmp_path / "flagged.cu"
    path.write_text(SOURCE.replace("CLEAR", clear))
    kernel = Kernel.from_file(path, grid="(M*N+31)/32", block=32)
    (record,) = gemmkit.check(kernel, ["5x7x3"])
    found = [(each.check, each.kind, each.array) for each in record.findings]
    assert found == ([] if clear else [("initcheck", "uninitialized", "done")])
    if not clear:
        assert record.findings[0].here.line == 12
        assert "seen in unoptimized code (-G)" in record.findings[0].message
