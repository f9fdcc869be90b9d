"""Variables whose use before they are set NVRTC sees, though the PTX shows nothing of it."""

from __future__ import annotations

import gemmkit
from pathlib import Path

KERNEL = """extern "C" __global__ void product(int M, int N, int K, float alpha, const float* A,
                                   const float* B, float beta, float* C) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M || col >= N) return;
    float sum = 0;
    int first SET;
    for (int k = first; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    C[row * N + col] = beta == 0 ? alpha * sum : alpha * sum + beta * C[row * N + col];
}
extern "C" __global__ void another(float* out) {
    int place;
    out[place] = 1;
}
"""


def findings(tmp_path: Path, text: str, entry: str = "product") -> list[str]:
    file = tmp_path / "own.cu"
    file.write_text(text)
    kernel = gemmkit.own_kernel(file, entry=entry, grid="(N+15)/16,(M+15)/16", block="16,16")
    return [each for record in gemmkit.check(kernel, ["5x6x7"]) for each in record.findings]
