"""Kernels of a user's own: headers, square matrices, row lengths taken for granted, unrolling."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmkit import GemmProblem, Kernel, find_board
from gemmkit.analysis.block_profile import profile_block
from gemmkit.analysis.explain import explain_facts, gather
from gemmkit.analysis.model import predict_profile

H100 = find_board("H100")

TILED = """
template <int T>
__global__ void tiled(const float* A, const float* B, float* C, int n) {
    __shared__ float a[T][T], b[T][T];
    int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    float sum = 0;
    for (int k0 = 0; k0 < n; k0 += T) {
        a[threadIdx.y][threadIdx.x] = A[row * n + k0 + threadIdx.x];
        b[threadIdx.y][threadIdx.x] = B[(k0 + threadIdx.y) * n + col];
        __syncthreads();
        for (int k = 0; k < T; ++k) sum += a[threadIdx.y][k] * b[k][threadIdx.x];
        __syncthreads();
    }
    C[row * n + col] = sum;
}
"""

# Rows of C as long as n, though ldc is there to say it; ptxas unrolls the loop over a step of k
# whole, where the PTX has it by four, and merges the loads of A that it brings together.
STEPPED = """
__global__ void stepped(int M, int N, int K, const float* A, int lda, const float* B, int ldb,
                        float* C, int ldc) {
    __shared__ float a[64 * 8], b[8 * 64];
    int col = threadIdx.x % 64, row = threadIdx.x / 64 * 8;
    float sums[8] = {0};
    for (int k0 = 0; k0 < K; k0 += 8) {
        a[threadIdx.x] = A[(blockIdx.y * 64 + threadIdx.x / 8) * lda + k0 + threadIdx.x % 8];
        b[threadIdx.x] = B[(k0 + threadIdx.x / 64) * ldb + blockIdx.x * 64 + col];
        __syncthreads();
        for (int k = 0; k < 8; ++k) {
            float right = b[k * 64 + col];
            for (int i = 0; i < 8; ++i) sums[i] += a[(row + i) * 8 + k] * right;
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; ++i)
        C[(blockIdx.y * 64 + row + i) * N + blockIdx.x * 64 + col] = sums[i];
}
"""


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """A kernel of one size, whose code is in a header in another folder."""
    folder: Path = tmp_path_factory.mktemp("square")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "tiled.cuh").write_text(TILED)
    (folder / "main.cu").write_text('#include "kernels/tiled.cuh"\n')
    return Kernel.from_file(
        folder / "main.cu", entry="tiled<16>", grid=("N/16", "N/16"), block=(16, 16)
    )


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    path: Path = tmp_path_factory.mktemp("stepped") / "stepped.cu"
    path.write_text(STEPPED)
    return Kernel.from_file(path, grid=("N/64", "M/64"), block=512)


def test_source_lines_of_a_header(square: Kernel) -> None:
    explained = explain_facts(gather(square, GemmProblem(64, 64, 64), H100))
    texts = {each.text: each for each in explained.source if each.file.endswith("tiled.cuh")}
    inner = "for (int k = 0; k < T; ++k) sum += a[threadIdx.y][k] * b[k][threadIdx.x];"
    assert texts[inner].fma > 0
    assert "C[row * n + col] = sum;" in texts


def test_a_square_kernel_at_a_square_size(square: Kernel) -> None:
    problem = GemmProblem(2048, 2048, 2048)
    profile = profile_block(square, problem, H100)
    assert (profile.rows, profile.columns) == (16, 16)
    assert profile.depths == (256, 512)
    adds = sum(
        executed
        for executed, form in zip(profile.executed(2048), profile.flow.forms, strict=True)
        if form.opcode_class == "fma"
    )
    assert adds == 8 * 2048
    seen = predict_profile(profile, problem, H100)
    assert seen.dram_bytes < 8 * problem.minimal_bytes


def test_a_kernel_that_takes_n_for_the_length_of_rows(stepped: Kernel) -> None:
    profile = profile_block(stepped, GemmProblem(1024, 1024, 1024), H100)
    assert (profile.rows, profile.columns) == (64, 64)


def test_loads_that_only_ptxas_merges(stepped: Kernel) -> None:
    facts = gather(stepped, GemmProblem(64, 64, 256), H100)
    profile = profile_block(stepped, facts.problem, H100, binary=facts.binary)
    assert profile.shared_load_share < 0.9
    told = [each.text for each in explain_facts(facts).sentences if "at most" in each.text]
    assert len(told) == 1
