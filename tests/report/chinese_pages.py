"""Kernels with planted bugs, whose pages have findings of all sanitizers and wrong results."""

from __future__ import annotations

from pathlib import Path

from gemmkit.bench.check import check
from gemmkit.kernels.kernel import Kernel
from gemmkit.report.check_page import check_document
from gemmkit.report.document import Document

SOURCE = r"""
constexpr int T = 16;

__global__ void race(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[T][T], Bs[T][T];
  int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < K; k += T) {
    int p = k + threadIdx.x, q = k + threadIdx.y;
    As[threadIdx.y][threadIdx.x] = row < M && p < K ? A[row * K + p] : 0;
    Bs[threadIdx.y][threadIdx.x] = q < K && col < N ? B[q * N + col] : 0;
    __syncthreads();
    for (int i = 0; i < T; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];
  }
  if (row < M && col < N) C[row * N + col] = sum;
}

__device__ float product(int K, const float* a, const float* b) {
  float sum = 0;
  for (int p = 0; p < K; ++p) sum += a[p] * b[p];
  return sum;
}

__global__ void bounds(int M, int N, int K, const float* A, const float* B, float beta, float* C) {
  int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
  if (row > M || col >= N) return;
  float sum = product(K, A + row * K, B + col * K);
  C[row * N + col] = sum + beta * C[row * N + col];
}

__global__ void diverges(int M, int N, int K, const float* A, const float* B, float* C) {
  int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
  float sum;
  if (threadIdx.x % 2) {
    sum = 0;
    __syncthreads();
  }
  for (int p = 0; p < K - K % 4; ++p) sum += A[row * K + p] * B[p * N + col];
  if (row < M && col < N) C[row * N + col] = sum;
}
"""
BUGS = ("race", "bounds", "diverges")


def own_kernel(folder: Path, entry: str) -> Kernel:
    """One of the kernels, from a file in that folder."""
    path = folder / "own.cu"
    path.write_text(SOURCE)
    return Kernel.from_file(path, entry=entry, grid="(N+15)/16,(M+15)/16", block="16,16")


def findings_page(folder: Path, entry: str) -> Document:
    """What a check of the kernel finds, with limits for its counters."""
    kernel = own_kernel(folder, entry)
    records = check(
        kernel, ["16x16x16", "33x17x21"], limits=["bank_conflicts == 0"], limits_at="32x32x32"
    )
    return check_document(records, kernel, ended=False)
