"""The two short runs of a profile differ by a step along k at least."""

from __future__ import annotations

import pytest

from gemmkit.analysis.block_profile import profile_block
from gemmkit.analysis.demand import multiplies
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

H100 = find_board("h100")

UNROLLED = """
__device__ float step(float sum, int first, const float* a, const float* b, int N) {
#pragma unroll 1
  for (int k = first; k < first + 64; ++k) sum += a[k] * b[k * N];
  return sum;
}
__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x, steps = K / 64;
  const float *a = A + row * K, *b = B + col;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i + 1 < steps; i += 2) {
    sum = step(sum, i * 64, a, b, N);
    sum = step(sum, i * 64 + 64, a, b, N);
  }
  if (steps % 2) sum = step(sum, (steps - 1) * 64, a, b, N);
  C[row * N + col] = sum;
}
"""


@pytest.mark.parametrize(
    ("name", "dtype", "keys", "apart"),
    [
        ("gemm_wgmma", "bfloat16", {"BK": 64}, 64),
        ("gemm_wgmma", "bfloat16", {"BK": 128}, 128),
        ("gemm_fp8", "float8_e4m3", {}, 128),
    ],
)
def test_a_long_step_multiplies_as_much_as_a_short_one(name, dtype, keys, apart):
    kernel = find_kernel(name)
    tile = {"BM": 64, "BN": 64, "consumers": 1, "stages": 2, "cluster_m": 1}
    config = kernel.configure({**tile, **keys})
    problem = GemmProblem(64, 128, 1024, dtype=dtype, out_dtype="float32", transb=True)
    profile = profile_block(kernel, problem, H100, config=config)
    assert profile.depths == (apart, 2 * apart)
    executed = profile.executed(problem.k)
    products = [multiplies(form) for form in profile.flow.forms]
    found = sum(
        float(executed[number]) * amount
        for number, (pipe, amount) in enumerate(products)
        if pipe is not None and pipe.tensor
    )
    assert found == pytest.approx(64 * 64 * problem.k)


def test_an_unrolled_loop_multiplies_as_often_as_its_steps(tmp_path):
    """Two steps of 64 in a turn, and one after the last turn where their number is odd."""
    path = tmp_path / "gemm.cu"
    path.write_text(UNROLLED)
    kernel = Kernel.from_file(path, grid="N/32,M", block=32)
    profile = profile_block(kernel, GemmProblem(4, 64, 1024), H100)
    executed = profile.executed(1024)
    products = [multiplies(form)[0] is not None for form in profile.flow.forms]
    assert float(executed[products].sum()) == pytest.approx(1024)


def test_a_kernel_may_take_multiples_of_a_longer_step_alone(tmp_path):
    path = tmp_path / "gemm.cu"
    path.write_text(UNROLLED)
    made = {"grid": "N/32,M", "block": 32}
    kernel = Kernel.from_file(path, **made, multiple_of=(1, 32, 256))
    profile = profile_block(kernel, GemmProblem(4, 64, 1024), H100)
    assert profile.depths == (256, 512)
    kernel = Kernel.from_file(path, **made, multiple_of=(1, 32, 1000))
    with pytest.raises(UnsupportedProblem, match="not 120"):
        profile_block(kernel, GemmProblem(4, 64, 3000), H100)
