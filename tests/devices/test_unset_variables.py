"""Variables used before they are set, where only NVRTC's warnings show it."""

from __future__ import annotations

from pathlib import Path

from gemmkit.bench.check import check
from gemmkit.findings import Finding
from gemmkit.kernels.kernel import Kernel

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


def findings(tmp_path: Path, text: str) -> tuple[Finding, ...]:
    file = tmp_path / "own.cu"
    file.write_text(text)
    kernel = Kernel.from_file(file, entry="product", grid="(N+15)/16,(M+15)/16", block="16,16")
    (record,) = check(kernel, ["5x6x7"])
    return record.findings


def test_a_variable_of_which_the_ptx_shows_nothing(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, KERNEL.replace("SET", ""))
    assert (found.check, found.kind) == ("initcheck", "uninitialized")
    assert (found.here.file, found.here.line) == ("own.cu", 7)
    assert "NVRTC warns that 'first' is used before it is set" in found.message
    # The other kernel of the file has such a variable too.
    assert not findings(tmp_path, KERNEL.replace("SET", "= 0"))
