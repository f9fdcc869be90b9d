"""What each word of shared memory holds, against the indices in the kernels' sources."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.analysis.shared_map import NEVER, OTHER, shared_map
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.views.shared import order_text, shared_view

BOARD = find_board("rtx3090")
SMALL = {"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 4}


def mapped(kernel, problem, board=BOARD, **changes):
    return shared_map(trace(kernel, problem, board, config=kernel.configure(changes)), board)


def parts_of(name, problem=None, **changes):
    problem = problem or GemmProblem(64, 64, 64)
    found = mapped(find_kernel(name), problem, **changes)
    # Stages that look alike are described once.
    assert len(shared_view(found, problem).data["shapes"]) <= 2
    return {(each.matrix, each.stage): each for each in found.parts}


def held(part):
    """The elements by place, from the start of the part's array."""
    return {place: tuple(each) for place, each in enumerate(part.elements.tolist()) if each[0] >= 0}


def test_elements_of_8_bits_cannot_be_told_apart():
    small = {"BM": 32, "BN": 32, "BK": 8, "WM": 16, "WN": 32, "TM": 4, "TN": 4}
    problem = GemmProblem(32, 32, 16, dtype="float8_e4m3")
    assert mapped(find_kernel("typed"), problem, **small) is None


def test_row_major_tiles():
    parts = parts_of("shared_tiling")
    assert set(parts) == {("A", 0), ("B", 0)}
    for part in parts.values():
        assert held(part) == {32 * i + j: (i, j) for i in range(32) for j in range(32)}
        assert part.order.major == "row"
        assert (part.order.column_banks, part.order.row_banks) == ((1, 32), (32, 32))


def test_a_transposed_tile_has_a_row_in_one_bank():
    part = parts_of("vectorized", **SMALL)["A", 0]
    assert held(part) == {64 * k + m: (m, k) for k in range(8) for m in range(64)}
    assert part.words == 8 * 64
    assert (part.order.row_banks, part.order.padding) == ((1, 8), 0)
    assert order_text(part, GemmProblem(1, 1, 1)) == "column-major (transposed), pitch 64 words"


def test_padding_is_what_no_thread_stores_to():
    part = parts_of("conflict_free", **SMALL)["A", 0]
    assert held(part) == {68 * k + m: (m, k) for k in range(8) for m in range(64)}
    assert part.words == 8 * 68
    empty = np.flatnonzero(part.elements[:, 0] == NEVER).tolist()
    assert empty == [68 * k + 64 + each for k in range(8) for each in range(4)]
    assert order_text(part, GemmProblem(1, 1, 1)).endswith("pitch 68 words (4 of padding)")
    assert part.order.row_banks == (8, 8)


def test_stages_of_asynchronous_copies():
    parts = parts_of("async_copy", **SMALL, WM=32, WN=32)
    assert {(each.matrix, each.stage): each.tile for each in parts.values()} == {
        (matrix, stage): stage for matrix in "AB" for stage in range(3)
    }
    for stage in range(3):
        a, b = parts["A", stage], parts["B", stage]
        assert held(a) == {68 * k + m: (m, 8 * stage + k) for k in range(8) for m in range(64)}
        assert held(b) == {64 * k + n: (8 * stage + k, n) for k in range(8) for n in range(64)}
        # A stage is A's tile, and B's behind it.
        assert a.start == stage * 4 * 8 * (68 + 64)
        assert b.start == a.start + 4 * 8 * 68


def test_a_tile_past_the_edges_of_its_matrix():
    parts = parts_of("vectorized", GemmProblem(60, 52, 3), **SMALL)
    a, b = parts["A", 0], parts["B", 0]
    assert {key: value for key, value in held(a).items() if key % 64 < 60} == {
        64 * k + m: (m, k) for k in range(3) for m in range(60)
    }
    assert held(b) == {64 * k + n: (k, n) for k in range(3) for n in range(52)}
    # The rest is stored to: it is no padding.
    assert order_text(b, GemmProblem(1, 1, 1)) == "row-major, pitch 64 words"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_of_which_two_share_a_word(dtype):
    parts = parts_of("typed_mma", GemmProblem(64, 64, 64, dtype=dtype))
    for stage in range(2):
        a, b = parts["A", stage], parts["B", stage]
        assert held(a) == {40 * m + k: (m, 32 * stage + k) for m in range(64) for k in range(32)}
        # Pairs of rows of B lie in one word each.
        assert held(b) == {
            144 * (k // 2) + 2 * n + k % 2: (32 * stage + k, n)
            for k in range(32)
            for n in range(64)
        }
        assert b.order.interleaved == 2


def test_the_first_address_is_the_architectures():
    board = find_board("h100")
    part = mapped(find_kernel("shared_tiling"), GemmProblem(32, 32, 32), board).parts[0]
    assert part.start == 1024


def test_no_shared_memory_no_map():
    assert mapped(find_kernel("naive"), GemmProblem(64, 64, 64)) is None


OWN = """
#include <cuda_fp16.h>
__global__ void own(int M, int N, int K, const TYPE* A, const TYPE* B, float* C) {
  __shared__ float a[32][32];
  __shared__ float b[32 * 33];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * 32 + y, col = blockIdx.x * 32 + x;
  float sum = 0.0f;
  for (int k = 0; k < K; k += 32) {
    a[y][PLACE(x, y)] = STORED(A[row * K + k + x]);
    b[x * 33 + y] = STORED(B[(k + y) * N + col]);
    __syncthreads();
    for (int i = 0; i < 32; ++i) sum += a[y][PLACE(i, y)] * b[x * 33 + i];
    __syncthreads();
  }
  C[row * N + col] = sum;
}
"""
XOR = "((((x) / 4) ^ ((y) % 8)) * 4 + (x) % 4)"


def own(tmp_path, place=XOR, stored="(x)", dtype="float"):
    macros = f"#define TYPE {dtype}\n#define PLACE(x, y) {place}\n#define STORED(x) {stored}\n"
    path = tmp_path / "own.cu"
    path.write_text(macros + OWN)
    return Kernel.from_file(path, grid="N/32,M/32", block="32,32")


def test_an_xor_swizzle_of_ones_own(tmp_path):
    problem = GemmProblem(64, 64, 64)
    found = mapped(own(tmp_path), problem)
    a, b = found.parts
    place = lambda row, column: 32 * row + (column // 4 ^ row % 8) * 4 + column % 4  # noqa: E731
    assert held(a) == {place(i, j): (i, j) for i in range(32) for j in range(32)}
    assert (a.array, a.order.swizzle, a.order.chunk, a.order.period) == ("a", "XOR", 4, 8)
    assert a.order.column_banks == (8, 32)
    assert held(b) == {33 * n + k: (k, n) for k in range(32) for n in range(32)}
    assert order_text(a, problem) == (
        "row-major, pitch 32 words, chunks of 4 words XOR-swizzled, the same every 8 lines"
    )
    view = shared_view(found, problem)
    assert [each["color"] for each in view.data["parts"]] == ["column", ""]
    assert unpacked(view.data["shapes"][0]) == [tuple(each) for each in a.elements.tolist()]
    assert [row.cells[2].text for row in view.table.rows] == ["32 × 32", "32 × 33"]


def unpacked(spans):
    """What the page's script makes of the spans of a part at row 0, column 0."""
    found = []
    for length, *rest in spans:
        row, column, down = (
            (*rest, *[NEVER if not rest else OTHER] * 3)[:3]
            if rest[1:]
            else (
                *[OTHER if rest else NEVER] * 2,
                0,
            )
        )
        for each in range(length):
            known = len(rest) > 1
            found.append((row + each * down * known, column + each * (1 - down) * known))
    return found


def test_a_rotation_of_ones_own(tmp_path):
    a = mapped(own(tmp_path, "(((x) + (y)) % 32)"), GemmProblem(32, 32, 32)).parts[0]
    assert held(a) == {32 * i + (i + j) % 32: (i, j) for i in range(32) for j in range(32)}
    assert (a.order.swizzle, a.order.chunk, a.order.period) == ("rotated", 1, 32)
    assert a.order.column_banks == (32, 32)


def test_elements_that_are_converted_on_their_way(tmp_path):
    kernel = own(tmp_path, "(x)", "__half2float(x)", "half")
    problem = GemmProblem(32, 32, 32, dtype="float16", out_dtype="float32")
    parts = mapped(kernel, problem).parts
    assert [each.dtype for each in parts] == ["float32", "float32"]
    assert held(parts[0]) == {32 * i + j: (i, j) for i in range(32) for j in range(32)}
    assert order_text(parts[0], problem).endswith("converted to float32")


def test_values_that_are_no_elements_are_not_drawn(tmp_path):
    problem = GemmProblem(32, 32, 32)
    found = mapped(own(tmp_path, "(x)", "(3.0f * (x) + 1.0f)"), problem)
    assert found.parts == ()
    assert found.unknown == ("a", "b")
    view = shared_view(found, problem)
    assert "a, b hold values in which no element of A or B" in view.table.footnotes[-1]
