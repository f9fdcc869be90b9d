"""The share of a product that a block of a user's kernel has, where its grid does not say."""

from __future__ import annotations

import pytest

from gemmkit.analysis.block_profile import profile_block
from gemmkit.analysis.explain import explain
from gemmkit.analysis.model import predict_profile
from gemmkit.gpu import find_board
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
TILES = "((M+15)/16)*((N+15)/16)"

# A block takes the tiles from its number on, the number of blocks apart, or one.
TILED = """
constexpr int T = 16;
__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[T][T], Bs[T][T];
  const int wide = (N + T - 1) / T, tiles = (M + T - 1) / T * wide;
  for (int tile = blockIdx.x; tile < tiles; tile += NEXT) {
    const int row = tile / wide * T + threadIdx.y, col = tile % wide * T + threadIdx.x;
    float sum = 0;
    for (int k0 = 0; k0 < K; k0 += T) {
      const int a = k0 + threadIdx.x, b = k0 + threadIdx.y;
      As[threadIdx.y][threadIdx.x] = row < M && a < K ? A[row * K + a] : 0;
      Bs[threadIdx.y][threadIdx.x] = b < K && col < N ? B[b * N + col] : 0;
      __syncthreads();
      for (int k = 0; k < T; ++k) sum += As[threadIdx.y][k] * Bs[k][threadIdx.x];
      __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = sum;
  }
}
"""

# Each block along z adds the sum over 128 steps of k.
SPLIT = """
__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  const int end = min(K, (int(blockIdx.z) + 1) * DEPTH);
  float sum = 0;
  for (int k = blockIdx.z * DEPTH; k < end; ++k) sum += A[row * K + k] * B[k * N + col];
  atomicAdd(&C[row * N + col], sum);
}
"""


@pytest.fixture
def kernel(tmp_path):
    def made(text, grid, option):
        path = tmp_path / "gemm.cu"
        path.write_text(text)
        return Kernel.from_file(path, grid=grid, block="16,16", options=[option])

    return made


def multiply_adds(profile, k):
    """Those of all blocks."""
    executed = profile.executed(k)
    fma = [number for number, form in enumerate(profile.flow.forms) if form.opcode_class == "fma"]
    return 32 * profile.plan.blocks * sum(float(executed[number]) for number in fma)


@pytest.mark.parametrize("grid", ["96", f"min(96,{TILES})"])
def test_blocks_of_a_persistent_kernel_take_many_tiles(kernel, grid):
    problem = GemmProblem(1024, 768, 512)
    one = profile_block(kernel(TILED, TILES, "-DNEXT=tiles"), problem, H100)
    many = profile_block(kernel(TILED, grid, "-DNEXT=gridDim.x"), problem, H100)
    # Of 256 tiles in the short runs, the first block takes three, which count as one here.
    assert (one.tiles, one.rows, one.columns) == (1, 16, 16)
    assert (many.tiles, many.rows, many.columns) == (32 / 3, 48, 16)
    assert multiply_adds(many, 512) == pytest.approx(problem.flops / 2)
    assert multiply_adds(one, 512) == pytest.approx(problem.flops / 2)
    assert many.stored_bytes == 4 * 1024 * 768 / 96


def test_a_fixed_number_of_blocks_along_k_shares_a_tile(kernel):
    """In the short runs, whose k has fewer steps than there are blocks, the first has too many."""
    problem = GemmProblem(512, 512, 2048, beta=1.0)
    rounded = "-DDEPTH=((K/16+63)/64*64)"
    split = profile_block(kernel(SPLIT, "N/16,M/16,16", rounded), problem, H100)
    assert (split.tiles, split.rows, split.columns) == (1 / 16, 16, 16)
    assert multiply_adds(split, 2048) == pytest.approx(problem.flops / 2)
    # 16 elements of A and 16 of B in each step.
    assert split.loaded_bytes(2048) == pytest.approx(2 * 16 * 4 * 2048 / 16)


def test_the_first_of_the_blocks_along_k_may_have_nothing_of_a_short_one(kernel):
    """Whole steps are divided evenly, and a short k has fewer than there are blocks."""
    problem = GemmProblem(512, 512, 2048, beta=1.0)
    first = "-DFIRST(z)=(K/64*(z)/16*64)"
    text = SPLIT.replace("(int(blockIdx.z) + 1) * DEPTH", "FIRST(int(blockIdx.z) + 1)")
    text = text.replace("int k = blockIdx.z * DEPTH", "int k = FIRST(int(blockIdx.z))")
    split = profile_block(kernel(text, "N/16,M/16,16", first), problem, H100)
    assert split.tiles == 1 / 16
    assert multiply_adds(split, 2048) == pytest.approx(problem.flops / 2)
    assert split.loaded_bytes(2048) == pytest.approx(2 * 16 * 4 * 2048 / 16)


def test_a_persistent_kernel_is_about_as_fast_as_one_with_a_block_per_tile(kernel):
    problem = GemmProblem(1024, 1024, 512)
    one = profile_block(kernel(TILED, TILES, "-DNEXT=tiles"), problem, H100)
    resident = profile_block(kernel(TILED, "1056", "-DNEXT=gridDim.x"), problem, H100)
    assert resident.tiles == pytest.approx(64 * 64 / 1056)
    speeds = [predict_profile(each, problem, H100).tflops for each in (resident, one)]
    assert speeds[0] == pytest.approx(speeds[1], rel=0.2)


def test_blocks_along_k_share_a_tile(kernel):
    problem = GemmProblem(512, 512, 2048, beta=1.0)
    grid = "N/16,M/16,(K+DEPTH-1)/DEPTH"
    split = profile_block(kernel(SPLIT, grid.replace("DEPTH", "128"), "-DDEPTH=128"), problem, H100)
    whole = profile_block(kernel(SPLIT, "N/16,M/16,1", "-DDEPTH=K"), problem, H100)
    assert (split.tiles, whole.tiles) == (1 / 16, 1)
    assert multiply_adds(split, 2048) == pytest.approx(problem.flops / 2)
    assert multiply_adds(whole, 2048) == pytest.approx(problem.flops / 2)
    assert split.loaded_bytes(2048) == pytest.approx(whole.loaded_bytes(2048) / 16, rel=0.1)


def test_results_at_once_are_those_of_a_tile(kernel):
    explained = explain(kernel(TILED, "256", "-DNEXT=gridDim.x"), "1024x768x64", gpu="h100")
    assert explained.metrics["gemmkit__results_per_thread"] == pytest.approx(1)
