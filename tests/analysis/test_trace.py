"""Traces: the addresses of each lane, by array, element and source line, for any kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmkit.analysis.patterns import lines_of, ownership, phases_of
from gemmkit.analysis.trace import Trace, sectors, trace, wavefronts
from gemmkit.emulator.watching import WatchedAccess
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
PROBLEM = GemmProblem(96, 160, 200, lda=1024, ldb=1024, ldc=1024)


def traced(name: str, **changes: int) -> Trace:
    kernel = find_kernel(name)
    return trace(kernel, PROBLEM, BOARD, config=kernel.configure(changes))


def the(seen: Trace, array: str, kind: str):
    return next(each for each in seen.representatives() if (each.array, each.kind) == (array, kind))


@pytest.fixture(scope="module")
def naive() -> Trace:
    return traced("naive")


@pytest.fixture(scope="module")
def uncoalesced() -> Trace:
    return traced("naive_uncoalesced")


@pytest.fixture(scope="module")
def vectorized() -> Trace:
    return traced("vectorized", BM=64, BN=64)


@pytest.mark.parametrize(
    ("array", "kind", "right", "wrong"), [("A", "load", 1, 32), ("B", "load", 4, 1),
                                          ("C", "store", 4, 32)]
)  # fmt: skip
def test_index_order(naive, uncoalesced, array, kind, right, wrong):
    assert sectors(the(naive, array, kind)) == right
    assert sectors(the(uncoalesced, array, kind)) == wrong


def test_elements_of_the_matrices(naive, uncoalesced):
    assert [naive.element("B", each) for each in the(naive, "B", "load").offsets[:2]] == [
        (0, 0), (0, 1),
    ]  # fmt: skip
    store = the(uncoalesced, "C", "store")
    assert [uncoalesced.element("C", each) for each in store.offsets[:3]] == [
        (0, 0), (1, 0), (2, 0),
    ]  # fmt: skip
    assert uncoalesced.element("As", 0) is None


def test_an_access_knows_its_source(naive):
    load = the(naive, "B", "load")
    source = find_kernel("naive").source.splitlines()
    assert load.file == "naive.cu"
    assert "element(B, ldb, k, col)" in source[load.line - 1]
    assert load.opcode == "ld.global.f32"


def test_depth_is_cut_but_rows_stay_apart(naive):
    assert naive.problem.k == 64
    assert naive.problem.lda == 1024


def test_shared_arrays_by_name_and_their_banks(vectorized):
    store, load = the(vectorized, "As", "store"), the(vectorized, "Bs", "load")
    assert wavefronts(store) == 4  # four values of k, whose rows lie whole lines apart
    phases = phases_of(load)
    assert len(phases) == 4
    assert sum(phase.wavefronts for phase in phases) == wavefronts(load) == 8


def test_lines_name_every_lane(uncoalesced):
    lines = lines_of(the(uncoalesced, "A", "load"))
    assert [line.words[0] for line in lines] == [(lane,) for lane in range(32)]
    assert all(line.words[word] == () for line in lines for word in range(1, 32))


def test_each_element_of_c_has_one_owner(vectorized):
    owned = ownership(vectorized, "C")
    assert owned.threads.shape == (64, 64)
    assert owned.sharers == 1
    # 8 × 8 results per thread, 8 threads side by side.
    for row, col, thread in ((0, 0, 0), (7, 7, 0), (0, 8, 1), (8, 0, 8), (63, 63, 63)):
        assert owned.threads[row, col] == thread


def test_who_copies_the_tiles(vectorized):
    a, b = ownership(vectorized, "A"), ownership(vectorized, "B")
    assert a.threads.shape == (64, 16)
    assert b.threads.shape == (16, 64)
    # Vectors of four floats, row by row.
    assert a.threads[0].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert b.threads[0, ::4].tolist() == list(range(16))


def test_readers_share_without_shared_memory(naive):
    owned = ownership(naive, "A")
    assert owned.sharers == 32
    assert owned.threads.shape == (32, 8)
    assert owned.threads[:, 0].tolist() == [32 * row for row in range(32)]


def test_edges_leave_lanes_out():
    seen = trace(find_kernel("naive"), GemmProblem(8, 20, 8), BOARD)
    load = the(seen, "B", "load")
    assert [offset is not None for offset in load.offsets] == [True] * 20 + [False] * 12


def test_async_copies_have_two_sides():
    seen = traced("async_copy", BM=64, BN=64, WM=32, WN=32, TM=8, TN=4, stages=2)
    sides = {(each.array, each.space) for each in seen.representatives() if each.kind == "copy"}
    assert sides == {("A", "global"), ("B", "global"), ("shared", "shared")}


def test_a_block_that_does_not_exist():
    with pytest.raises(UsageError, match="there is no block 99 in a grid of 15 blocks"):
        trace(find_kernel("naive"), PROBLEM, BOARD, block=99)


def test_rows_of_matrices_are_phases_of_eight_lanes():
    """Loads of 16 bytes at one address take two phases, rows of `ldmatrix` four."""
    load = WatchedAccess(
        file="k.cu",
        line=1,
        number=0,
        opcode="ld.shared.v4.b32",
        array="As",
        space="shared",
        kind="load",
        bytes_per_lane=16,
        warp=0,
        barriers=0,
        base=0,
        offsets=(0,) * 32,
    )
    rows = replace(load, opcode="ldmatrix.sync.aligned.m8n8.x4.shared.b16", by_rows=True)
    assert [phase.lanes for phase in phases_of(load)] == [16, 16]
    assert [phase.lanes for phase in phases_of(rows)] == [8, 8, 8, 8]
    assert (wavefronts(load), wavefronts(rows)) == (2, 4)
    pair = replace(rows, offsets=tuple(range(0, 256, 16)) + (None,) * 16)
    assert [phase.lanes for phase in phases_of(pair)] == [8, 8]
    conflicts = replace(rows, offsets=tuple(range(0, 32 * 64, 64)))
    assert wavefronts(conflicts) == 16


def test_a_block_of_a_cluster_that_the_code_declares_is_traced_alone(tmp_path):
    text = """
__global__ CLUSTER void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}
"""
    path = tmp_path / "gemm.cu"
    path.write_text(text)
    accesses = []
    for cluster in ("", "__cluster_dims__(2,1,1)"):
        options = [f"-DCLUSTER={cluster}"]
        kernel = Kernel.from_file(path, grid="N/32,M", block=32, options=options)
        seen = trace(kernel, GemmProblem(4, 128, 8), find_board("h100"))
        accesses.append([(each.array, each.warp, each.offsets) for each in seen.accesses])
    assert accesses[0] == accesses[1]
