"""Kernels whose first block waits for others are explained, and watched until it waits."""

from __future__ import annotations

from pathlib import Path

from gemmkit.analysis.explain.facts import gather
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

# Each block but the last adds what the next one has left for it.
SOURCE = """
__global__ void chain(const float *A, const float *B, float *C, int M, int N, int K,
                      float *workspace, int *semaphores) {
  const int e = blockIdx.x * 32 + threadIdx.x, parts = gridDim.y, part = blockIdx.y;
  const int size = (K + parts - 1) / parts, at = blockIdx.x * parts + part;
  float sum = 0;
  for (int k = part * size; k < min(K, (part + 1) * size); ++k)
    sum += A[e / N * K + k] * B[k * N + e % N];
  if (part + 1 < parts) {
    if (threadIdx.x == 0) while (atomicAdd(&semaphores[at + 1], 0) == 0) __nanosleep(20);
    __syncthreads();
    __threadfence();
    sum += workspace[(at + 1) * 32 + threadIdx.x];
    if (threadIdx.x == 0) semaphores[at + 1] = 0;
  }
  if (part == 0) {
    C[e] = sum;
    return;
  }
  workspace[at * 32 + threadIdx.x] = sum;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(&semaphores[at], 1);
}
"""
BOARD, PROBLEM = find_board("rtx3090"), GemmProblem(16, 16, 64)


def test_a_first_block_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "chain.cu"
    path.write_text(SOURCE)
    kernel = Kernel.from_file(
        path,
        grid="M*N/32,2",
        block=32,
        workspace="M*N/32*2*32*sizeof(float)",
        semaphores="M*N/32*2",
    )
    facts = gather(kernel, PROBLEM, BOARD)
    assert facts.verdict.correct
    assert facts.prediction is not None
    seen = [each.array for each in trace(kernel, PROBLEM, BOARD).accesses]
    assert set(seen) == {"A", "B", "semaphores"}
    assert seen.count("A") == 32
