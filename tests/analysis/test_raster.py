"""The order in which blocks take tiles, and what their waves read, against the kernels' sources."""

from __future__ import annotations

import pytest

from gemmkit.analysis.raster import Raster, Rule, words_of
from gemmkit.analysis.raster_probe import raster
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
SMALL = {"BM": 64, "BN": 64, "BK": 8, "WM": 32, "WN": 32, "TM": 8, "TN": 4}


def found(kernel, problem, config=None):
    config = config or kernel.default
    plan = kernel.plan(problem, config, BOARD)
    traced = trace(kernel, problem, BOARD, config=config)
    binary = compile_plan(plan, BOARD.arch)
    return raster(kernel, traced, plan, binary, problem, BOARD, config=config)


OWN = """
__global__ void own(int M, int N, int K, const float* A, const float* B, float* C) {
  int rows = M / 8, columns = N / 16, tile_row, tile_col;
  PLACE
  int row = tile_row * 8 + threadIdx.y, col = tile_col * 16 + threadIdx.x;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}
"""
ALONG_N = "tile_row = blockIdx.y; tile_col = blockIdx.x;"
ALONG_M = "tile_row = blockIdx.x; tile_col = blockIdx.y;"
GROUPED = """
  int first = blockIdx.x / (3 * columns) * 3, high = min(3, rows - first);
  int within = blockIdx.x - first * columns;
  tile_row = first + within % high; tile_col = within / high;
"""
PERSISTENT = "tile_row = t / columns % rows; tile_col = t % columns;"
NO_RULE = "tile_row = blockIdx.x / columns; tile_col = blockIdx.x % columns ^ tile_row & 3;"


def own(tmp_path, place, grid):
    path = tmp_path / "own.cu"
    path.write_text(OWN.replace("PLACE", place))
    return Kernel.from_file(path, grid=grid, block="16,8")


@pytest.mark.parametrize(
    ("place", "grid", "rule", "first"),
    [
        (ALONG_N, "N/16,M/8", Rule(1), [0, 1, 2, 3]),
        (ALONG_M, "M/8,N/16", Rule(8), [0, 8, 16, 24]),
        (GROUPED, "(N/16)*(M/8)", Rule(3), [0, 8, 16, 1]),
        (NO_RULE, "(N/16)*(M/8)", None, [0, 1, 2, 3]),
    ],
)
def test_the_order_of_ones_own_kernel(tmp_path, place, grid, rule, first):
    seen = found(own(tmp_path, place, grid), GemmProblem(64, 128, 96))
    assert (seen.rows, seen.columns, seen.tile_rows, seen.tile_columns) == (8, 16, 8, 8)
    assert (seen.rule, seen.ran, seen.parts) == (rule, 64, 1)
    assert seen.order[:4].tolist() == first
    assert sorted(seen.order.tolist()) == list(range(64))
    if rule is None:
        assert seen.order[8:12].tolist() == [8 + (each ^ 1) for each in range(4)]


def test_of_a_large_grid_some_blocks_show_the_rule(tmp_path):
    seen = found(own(tmp_path, GROUPED, "(N/16)*(M/8)"), GemmProblem(400, 1024, 8))
    assert seen.rule == Rule(3)
    assert seen.ran == 256
    assert found(own(tmp_path, NO_RULE, "(N/16)*(M/8)"), GemmProblem(400, 1024, 8)) is None


def test_grouped_rasterization_of_a_production_kernel():
    problem, kernel = GemmProblem(2112, 8192, 4096), find_kernel("gemm_tiled")
    config = kernel.configure(SMALL)
    assert kernel.plan(problem, config, BOARD).rasterized
    seen = found(kernel, problem, config)
    rows, columns = 33, 128
    assert (seen.tile_rows, seen.tile_columns) == (rows, columns)
    # As scheduler/raster.cuh has it, with groups of 2,048 rows of C.
    expected = [
        row * columns + column
        for group in range(0, rows, 32)
        for column in range(columns)
        for row in range(group, min(group + 32, rows))
    ]
    assert seen.order.tolist() == expected
    assert words_of(seen.rule, rows) == "in groups of 32 rows of tiles, column by column in each"
    wave = next(seen.waves(82))
    assert (wave.first, wave.count) == (0, 82)
    assert wave.a_bytes == 32 * 64 * 4096 * 4
    assert wave.b_bytes == 3 * 64 * 4096 * 4
    assert wave.by_rows == (1 + 82) * 64 * 4096 * 4
    assert wave.square == min(high + -(-82 // high) for high in range(1, 34)) * 64 * 4096 * 4


def test_blocks_that_share_the_k_of_a_tile():
    problem = GemmProblem(128, 192, 512)
    seen = found(find_kernel("split_k"), problem)
    assert (seen.rows, seen.columns, seen.parts, seen.rule) == (64, 64, 4, Rule(1))
    first, last = seen.waves(15)
    # Two layers of six tiles and the first row of a third, each with a quarter of k.
    assert (first.a_bytes, first.b_bytes) == (5 * 64 * 128 * 4, 9 * 64 * 128 * 4)
    assert (last.first, last.count) == (15, 9)


def test_residue_tiles_are_left_out():
    kernel, problem = find_kernel("gemm_tiled"), GemmProblem(520, 520, 256)
    config = kernel.configure(SMALL | {"BN": 128, "WN": 64, "TN": 8})
    assert kernel.plan(problem, config, BOARD).residue == (8, 8)
    seen = found(kernel, problem, config)
    assert (seen.problem.m, seen.problem.n) == (512, 512)
    assert seen.order.tolist() == list(range(8 * 4))


def test_partial_tiles_read_less():
    seen = Raster("own", GemmProblem(100, 40, 8), 64, 32, Rule(1).order(2, 2), 1, Rule(1), 4)
    (wave,) = seen.waves(8)
    assert (wave.a_bytes, wave.b_bytes) == (100 * 8 * 4, 40 * 8 * 4)
    assert wave.by_rows == wave.square == wave.a_bytes + wave.b_bytes


def test_groups_of_columns():
    assert Rule(2, across=True).order(2, 3).tolist() == [0, 1, 3, 4, 2, 5]
    assert words_of(Rule(2, across=True), 2).startswith("in groups of 2 columns of tiles, row by")


def test_what_cannot_be_known_is_left_out(tmp_path):
    tiled, streams = find_kernel("gemm_tiled"), find_kernel("stream_k")
    assert found(streams, GemmProblem(512, 512, 256), streams.configure(SMALL)) is None
    assert found(tiled, GemmProblem(64, 64, 64, batch=2), tiled.configure(SMALL)) is None
    # A counter gives each block its tiles: it depends on the others which.
    counter = "tile_row = atomicAdd(&next, 1); if (tile_row >= 4) return; tile_col = 0;"
    path = tmp_path / "own.cu"
    path.write_text("__device__ int next;\n" + OWN.replace("PLACE", counter))
    kernel = Kernel.from_file(path, grid="2", block="16,8", constants={"next": 0})
    assert found(kernel, GemmProblem(32, 16, 32)) is None


def test_persistent_blocks_have_tiles_in_turn(tmp_path):
    kernel = persistent(tmp_path, "for (int t = blockIdx.x; t < rows * columns; t += gridDim.x) {")
    seen = found(kernel, GemmProblem(40, 64, 32))
    assert (seen.rule, seen.together, seen.ran) == (Rule(1), 6, 6)
    assert seen.order.tolist() == list(range(20))
    # The second tiles of six blocks: the end of the second row, and the third one.
    second = list(seen.waves(1000))[1]
    assert (second.first, second.count) == (6, 6)
    assert (second.a_bytes, second.b_bytes) == (2 * 8 * 32 * 4, 4 * 16 * 32 * 4)


def test_persistent_blocks_in_the_other_direction_have_no_such_order(tmp_path):
    loop = "for (int t = rows * columns - 1 - blockIdx.x; t >= 0; t -= gridDim.x) {"
    assert found(persistent(tmp_path, loop), GemmProblem(32, 48, 32)) is None


def persistent(tmp_path, loop):
    path = tmp_path / "persistent.cu"
    path.write_text(OWN.replace("PLACE", loop + PERSISTENT) + "}\n")
    return Kernel.from_file(path, grid="6", block="16,8")
