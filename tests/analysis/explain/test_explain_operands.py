"""Sentences and figures of each operand: whether its accesses are coalesced."""

from __future__ import annotations

from gemmkit import GemmProblem, Kernel, explain
from gemmkit.analysis.explain import explain_facts

# The index order of a well-known guide: the column follows threadIdx.x.
GUIDE_NAIVE = """
__global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K) {
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < M && col < N) {
    float sum = 0.0f;
    for (int k = 0; k < K; k++) sum += A[row * K + k] * B[k * N + col];
    C[row * N + col] = sum;
  }
}
"""


def test_a_guides_naive_kernel_reads_b_coalesced(tmp_path):
    path = tmp_path / "guide.cu"
    path.write_text(GUIDE_NAIVE)
    kernel = Kernel.from_file(path, grid="(N+15)/16,(M+15)/16", block="16,16")
    explained = explain(kernel, "64x64x32")
    texts = [each.text for each in explained.sentences]
    assert ("Loads of B are coalesced: 2 sectors per request, the minimum.") in texts
    assert "Loads of A access 2 sectors per request, where 1 would suffice." in texts
    assert "Stores to C are coalesced" in " ".join(texts)


def test_a_few_sectors_more_are_alignment_and_not_missing_coalescing():
    explained = explain("gemm_small_k", GemmProblem(512, 300, 11, transb=True), gpu="a100")
    texts = [each.text for each in explained.sentences]
    assert (
        "Stores to C are coalesced, but some start or end inside a sector: 8 sectors per request, "
        "where 7.6 would suffice for aligned ones."
    ) in texts
    assert not any(text.startswith("Loads of A are not coalesced") for text in texts)


def test_operands(gathered):
    explained = explain_facts(gathered["naive_uncoalesced"])
    found = {(each.array, each.kind): each for each in explained.operands}
    a, b, c = found["A", "load"], found["B", "load"], found["C", "store"]
    assert (a.sectors, a.ideal_sectors) == (32, 4)
    assert (b.sectors, b.ideal_sectors) == (1, 1)
    assert (c.sectors, c.ideal_sectors) == (32, 4)
    assert a.requests == b.requests == 256 * 256 * 128 // 32
    assert any(each.text.startswith("Loads of A are not coalesced") for each in explained.sentences)


def test_index_order_is_told_by_sectors(gathered):
    explained = explain_facts(gathered["naive"], gathered["naive_uncoalesced"])
    texts = [each.text for each in explained.comparison]
    assert (
        "A request to load A accesses 1 sector, the minimum for its bytes; in "
        "naive_uncoalesced, 32 sectors where 4 would suffice."
    ) in texts
    assert not any("global-load requests" in text for text in texts), "they make equally many"
