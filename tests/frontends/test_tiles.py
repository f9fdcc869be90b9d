"""What sizes and tiles a user's kernel shows by its launch, its names and its constants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmkit.bench.edge_cases import edge_cases
from gemmkit.errors import UsageError
from gemmkit.frontends.tiles import Tiles, tiles_of, with_buffered
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.fitting import default_problem, expressible, fitting, in_whole_tiles
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.sizes import SizeRule, read_multiples
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
RECTANGLE = "int M, int N, int K, const float* A, const float* B, float* C"
SQUARE = "const float* a, const float* b, float* c, int n"
CEIL, FLOOR = "ceil_div(N,32),ceil_div(M,64)", "N/32,M/64"


@pytest.fixture
def kernel(tmp_path):
    """A kernel of those parameters, with text before it and in it, and how it is launched."""

    def make(parameters=RECTANGLE, before="", body="", **launch):
        path = tmp_path / "own.cu"
        path.write_text(f"{before}\n__global__ void own({parameters}) {{ {body} }}\n")
        return Kernel.from_file(path, **{"grid": CEIL, "block": 256, **launch})

    return make


def tiles(kernel):
    return tiles_of(kernel, kernel.default)


def test_a_rung_tells_its_own():
    rung = find_kernel("async_copy")
    config = rung.default
    assert tiles(rung) == Tiles(config.BM, config.BN, config.BK, config.stages)


@pytest.mark.parametrize(
    ("grid", "rows", "columns", "multiples"),
    [
        (CEIL, 64, 32, (1, 1, 1)),
        (FLOOR, 64, 32, (64, 32, 1)),
        ("(N-1)/32+1,(M-1)/64+1", 64, 32, (1, 1, 1)),
        ("N/32+1,M/64+1", 64, 32, (1, 1, 1)),
        ("max(N/32,1),max(M/64,1)", 64, 32, (64, 32, 1)),
        ("(N/32)*(M/64)", 64, 32, (64, 32, 1)),
        ("ceil_div(N,32)*ceil_div(M,64)", 64, 32, (1, 1, 1)),
        ("M,ceil_div(N,32)", 32, 32, (1, 1, 1)),
        # Neither the grid nor a name says anything.
        ("82", 128, 128, (1, 1, 1)),
        ("ceil_div(M*N,256)", 128, 128, (1, 1, 1)),
    ],
)
def test_the_grid_shows_tiles(kernel, grid, rows, columns, multiples):
    found = tiles(kernel(grid=grid))
    assert (found.rows, found.columns, found.multiples) == (rows, columns, multiples)


@pytest.mark.parametrize(
    ("before", "step", "stages"),
    [
        ("#define BK 8", 8, 0),
        ("constexpr int TILE_K = 4 << 2, kStages = 4;", 16, 4),
        ("enum { BLOCK_SIZE_K = 24, NUM_STAGES = 3 };", 24, 3),
        ("const int kBlockK{40};", 40, 0),
        ("#define TILE_SIZE 20", 20, 0),
        ("#define BK 100000", 32, 0),
    ],
)
def test_names_show_the_step_and_the_stages(kernel, before, step, stages):
    found = tiles(kernel(before=before))
    assert (found.rows, found.columns) == (64, 32)
    assert (found.step, found.stages) == (step, stages)


def test_template_arguments_and_definitions_are_names_too(kernel):
    before = "template <int BM, int BN, int BK>"
    found = tiles(kernel(before=before, entry="own<16,48,8>", grid=82, options=["-DSTAGES=5"]))
    assert found == Tiles(16, 48, 8, 5)


@pytest.mark.parametrize(
    ("before", "shared", "buffered"),
    [
        # Stages of (64 + 32) * 32 * 4 bytes.
        ("constexpr int BK = 32, S = 5;", 5 * 96 * 32 * 4, 5 * 32),
        ("constexpr int BK = 32, S = 5;", "5*96*32*4 + 1024", 5 * 32 + 2),
        ("constexpr int BK = 32, STAGES = 5;", 5 * 96 * 32 * 4, 0),
        ("constexpr int BK = 32, S = 5;", 0, 0),
        # In static shared memory, of which there are 48 KiB at most.
        ("// mbarrier.init\n", 0, 128),
    ],
)
def test_the_shared_memory_limits_stages_of_unknown_number(kernel, before, shared, buffered):
    own = kernel(before=before, shared=shared)
    problem = GemmProblem(1, 1, 1)
    found = with_buffered(tiles(own), own, own.default, problem, BOARD)
    assert found.buffered == buffered
    half = with_buffered(tiles(own), own, own.default, replace(problem, dtype="float16"), BOARD)
    assert half.buffered in (2 * buffered, 2 * buffered + 1)
    many = edge_cases(found, fusing=False)["many steps"].k
    assert many % found.step == 0
    assert many > 3 * buffered
    if found.stages == 0:
        assert many >= 10 * found.step
    endless = replace(found, stages=0, buffered=10**6)
    assert edge_cases(endless, fusing=False)["many steps"].k == 64 * found.step


def test_a_small_tile_becomes_enough_rows(kernel):
    found = tiles(kernel(grid="ceil_div(N,6),ceil_div(M,4)"))
    assert (found.rows, found.columns, found.step) == (4, 6, 4)
    assert (found.enough.rows, found.enough.columns) == (16, 18)


def test_one_size_varies_as_a_cube(kernel):
    square = kernel(SQUARE, grid="n/16,n/16")
    assert square.sizes == SizeRule("N")
    assert tiles(square) == Tiles(16, 16, 16, 0, multiples=(16, 16, 16))
    assert fitting(square, GemmProblem(5, 40, 7), BOARD) == GemmProblem(40, 40, 40)
    whole = in_whole_tiles(GemmProblem(5, 40, 7), (16, 16, 16))
    assert fitting(square, whole, BOARD) == GemmProblem(48, 48, 48)
    assert "grid.x is 0, and CUDA rejects an empty grid" in str(
        square.supports(GemmProblem(8, 8, 8), square.default, BOARD)
    )
    assert square.supports(GemmProblem(0, 0, 0), square.default, BOARD) is None


def test_sizes_that_are_compiled_in(kernel):
    none = "const float* A, const float* B, float* C"
    fixed = kernel(none, "#define N (2*M)\n#define M 20\nconst int K = 5;", "C[M] = A[N] * B[K];")
    assert fixed.sizes == SizeRule(fixed={"M": 20, "N": 40, "K": 5})
    assert default_problem(fixed, GemmProblem(9, 9, 9)).shape == "20x40x5"
    assert "the nearest is 20x40x5" in str(fixed.sizes.refusal(GemmProblem(20, 40, 6)))
    cube = kernel(none, "#define N 64", "C[N] = A[N];")
    assert default_problem(cube, GemmProblem(9, 9, 9)).shape == "64x64x64"
    width = kernel(none, "#define MATRIX_SIZE 48\n#define TILE_WIDTH 8", "C[MATRIX_SIZE] = A[0];")
    assert default_problem(width, GemmProblem(9, 9, 9)).shape == "48x48x48"
    extents = kernel(none, "enum { A_ROWS = 3, WIDTH_A = 4, B_COLS = 5 };",
                     "C[A_ROWS] = A[WIDTH_A] * B[B_COLS];")  # fmt: skip
    assert default_problem(extents, GemmProblem(9, 9, 9)).shape == "3x5x4"
    local = kernel(SQUARE, body="const int k = 8, width = 4; c[k] = a[width];")
    assert local.sizes == SizeRule("N")
    template = kernel(SQUARE, "template <int M>", "c[M] = n;", entry="own<8>")
    assert default_problem(template, GemmProblem(9, 7, 5)).shape == "8x9x9"
    # What the host's code alone calls M and N is none of the kernel's.
    host = kernel(SQUARE, "int main() { const int N = 1024, M = 8; }", grid="N/8,N/8")
    assert host.sizes == SizeRule("N")
    assert host.plan(GemmProblem(16, 16, 16), host.default, BOARD).grid == (2, 2, 1)


def test_a_k_that_is_no_argument_makes_cubes(kernel):
    own = kernel("float* A, float* B, float* C, int N, int M")
    assert default_problem(own, GemmProblem(5, 9, 7)).shape == "9x9x9"
    # Whoever knows better may ask for it.
    assert own.supports(GemmProblem(5, 9, 7), own.default, BOARD) is None
    from_grid = kernel("float* C, float* A, float* B, int wA, int wB")
    assert default_problem(from_grid, GemmProblem(5, 9, 7)).shape == "5x9x7"


def test_multiples_that_the_user_gives(kernel):
    told = kernel(multiple_of="64,32,8")
    reason = str(told.supports(GemmProblem(64, 33, 8), told.default, BOARD))
    assert "multiples of 32 only as N, by --multiple-of, and not 33" in reason
    assert "the nearest is 64x64x8" in reason
    assert fitting(told, GemmProblem(1, 33, 17), BOARD) == GemmProblem(64, 64, 24)
    assert fitting(told, GemmProblem(1, 33, 0), BOARD) == GemmProblem(64, 64, 8)
    square = kernel(SQUARE, multiple_of=(4, 6, 1))
    assert fitting(square, GemmProblem(1, 13, 5), BOARD) == GemmProblem(24, 24, 24)


def test_reading_multiples():
    assert read_multiples("128, 64,8") == read_multiples((128, 64, 8)) == (128, 64, 8)
    assert read_multiples("16") == read_multiples(16) == (16, 16, 16)
    for bad in ("", "0", "16,16", "a,b,c", (1, 2), -4):
        with pytest.raises(UsageError, match="does not say what M, N and K are multiples of"):
            read_multiples(bad)


def test_what_no_argument_can_pass_on_is_left_out(kernel):
    asked = GemmProblem(8, 9, 10, alpha=-1.5, beta=0.5, lda=12, ldb=12, ldc=12)
    assert expressible(kernel(), asked) == GemmProblem(8, 9, 10)
    parameters = RECTANGLE + ", float beta, int ldb, const float* bias"
    some = expressible(kernel(parameters), asked)
    assert (some.alpha, some.beta, some.lda, some.ldb) == (1, 0.5, 10, 12)
    assert some.epilogue.bias
    assert expressible(find_kernel("naive"), asked) == asked


def test_the_kernels_own_names_of_its_sizes(kernel):
    own = kernel(
        "float* A, float* B, float* C, int numARows, int numACols, int numBCols, int pitch",
        args="A,B,C,M,K,N,lda+4",
        grid="ceil_div(numBCols,16),ceil_div(numARows,16),numACols",
        block="pitch",
    )
    plan = own.plan(GemmProblem(33, 20, 3), own.default, BOARD)
    assert (plan.grid, plan.block) == ((2, 3, 3), (7, 1, 1))
    with pytest.raises(UsageError, match=r"'rows' uses rows; .* may use .*width"):
        kernel(SQUARE.replace("int n", "int width"), grid="rows")


def test_alpha_and_beta_that_are_built_in(kernel):
    own = kernel()
    for allowed in ({}, {"beta": 1.0}, {"alpha": -1.0}, {"alpha": -1.0, "beta": 1.0}):
        assert own.supports(GemmProblem(8, 8, 8, **allowed), own.default, BOARD) is None
    refused = str(own.supports(GemmProblem(8, 8, 8, beta=0.5), own.default, BOARD))
    assert "can only be 0, or 1 for a kernel that adds to C (--beta 1)" in refused
    assert "identify it with --args" in refused


@pytest.mark.parametrize(
    ("entry", "text", "name"),
    [
        (None, "__global__ void own(P) {}", "own"),
        (None, "__global__ void other(P) {}", "other"),
        ("own", "__global__ void own(P) {}\n__global__ void more(P) {}", "own"),
        ("ns::own", "namespace ns { __global__ void own(P) {} }", "own"),
        ("own<8, 4,float>", "template <int, int, class T> __global__ void own(P) {}",
         "own<8,4,float>"),
    ],
)  # fmt: skip
def test_a_kernel_is_called_as_it_is_entered(tmp_path, entry, text, name):
    path = tmp_path / "own.cu"
    path.write_text(text.replace("P", RECTANGLE))
    assert Kernel.from_file(path, entry=entry, grid=1, block=1).name == name
