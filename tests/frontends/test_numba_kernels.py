"""Functions of numba-cuda as kernels, compiled and run without a GPU."""

from __future__ import annotations

import sys

import pytest

from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.errors import CompileError, CompilerMissing, UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem

pytest.importorskip("numba_cuda", reason="needs the extra numba")

from numba import cuda, float32, types

LAUNCH = {"grid": "(N+15)/16,(M+15)/16", "block": "16,16"}
PLAIN = GemmProblem(33, 50, 21)
SCALED = GemmProblem(33, 50, 21, alpha=-1.5, beta=0.5)
PADDED = GemmProblem(33, 50, 21, alpha=-1.5, beta=0.5, lda=24, ldb=52, ldc=51)
LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
TILE = 16


@cuda.jit
def naive(A, B, C):
    """One thread for each element of C.

    More words.
    """
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if row < C.shape[0] and column < C.shape[1]:
        sum_ = float32(0)
        for k in range(A.shape[1]):
            sum_ += A[row, k] * B[k, column]
        C[row, column] = sum_


def scaled(alpha, A, B, beta, C):
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if row < C.shape[0] and column < C.shape[1]:
        sum_ = float32(0)
        for k in range(A.shape[1]):
            sum_ += A[row, k] * B[k, column]
        C[row, column] = alpha * sum_ + beta * C[row, column]


def pointers(M, N, K, A, B, C):
    column, row = cuda.grid(2)
    if row < M and column < N:
        sum_ = float32(0)
        for k in range(K):
            sum_ += A[row * K + k] * B[k * N + column]
        C[row * N + column] = sum_


def tiled(A, B, C):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    y, x = cuda.threadIdx.y, cuda.threadIdx.x
    column, row = cuda.grid(2)
    M, K = A.shape
    N = B.shape[1]
    sum_ = float32(0)
    for k0 in range(0, K, TILE):
        tile_a[y, x] = A[row, k0 + x] if row < M and k0 + x < K else float32(0)
        tile_b[y, x] = B[k0 + y, column] if column < N and k0 + y < K else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            sum_ += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()
    if row < M and column < N:
        C[row, column] = sum_


def biased(A, B, bias, C):
    column, row = cuda.grid(2)
    if row < C.shape[0] and column < C.shape[1]:
        sum_ = bias[column]
        for k in range(A.shape[1]):
            sum_ += A[row, k] * B[k, column]
        C[row, column] = sum_


@cuda.jit(device=True, inline="never")
def element(X, row, column):
    if row < X.shape[0] and column < X.shape[1]:
        return X[row, column]
    return float32(0)


def calling(A, B, C):
    column, row = cuda.grid(2)
    sum_ = float32(0)
    for k in range(A.shape[1]):
        sum_ += element(A, row, k) * element(B, k, column)
    if row < C.shape[0] and column < C.shape[1]:
        C[row, column] = sum_


def reducing(M, N, K, A, B, C):
    warp = cuda.grid(1) // 32
    if warp < M * N:
        row, column = divmod(warp, N)
        sum_ = float32(0)
        for k in range(cuda.laneid, K, 32):
            sum_ += A[row, k] * B[k, column]
        distance = 16
        while distance > 0:
            sum_ += cuda.shfl_down_sync(0xFFFFFFFF, sum_, distance)
            distance //= 2
        if cuda.laneid == 0:
            C[row, column] = sum_


def adding(A, B, C):
    column, row = cuda.grid(2)
    if row < C.shape[0] and column < C.shape[1]:
        C[row, column] = 0
        for k in range(A.shape[1]):
            cuda.atomic.add(C, (row, column), A[row, k] * B[k, column])


def dynamic(A, B, C):
    rows = cuda.shared.array(0, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    sum_ = float32(0)
    for k0 in range(0, A.shape[1], TILE):
        inside = row < A.shape[0] and k0 + x < A.shape[1]
        rows[y * TILE + x] = A[row, k0 + x] if inside else float32(0)
        cuda.syncthreads()
        if column < B.shape[1]:
            for k in range(min(TILE, A.shape[1] - k0)):
                sum_ += rows[y * TILE + k] * B[k0 + k, column]
        cuda.syncthreads()
    if row < C.shape[0] and column < C.shape[1]:
        C[row, column] = sum_


STRIDED = "float64, float32[:,:], float32[:,:], float64, float32[:,:]"
SINGLE = "float32, float32[:,:], float32[:,:], float32, float32[:,:]"
POINTERS = ["int64", "int32", types.int16, *[types.CPointer(types.float32)] * 3]


@pytest.mark.parametrize(
    ("function", "argument_types", "problem"),
    [
        (naive, None, PLAIN),
        (tiled, None, PLAIN),
        (scaled, None, SCALED),
        (scaled, STRIDED, PADDED),
        (scaled, SINGLE, PADDED),
        (pointers, POINTERS, PLAIN),
        (biased, None, GemmProblem(20, 30, 8, epilogue=Epilogue(bias=True))),
    ],
    ids=["naive", "tiled", "scaled", "strided", "single", "pointers", "biased"],
)
@pytest.mark.sample(3)
def test_results_are_right(function, argument_types, problem):
    kernel = Kernel.from_numba(function, types=argument_types, **LAUNCH)
    record = run_kernel(kernel, problem, EmulatedDevice(find_board("rtx3090")))
    assert record.correct, record.check


@pytest.mark.gpu
@pytest.mark.parametrize("function", [naive, tiled, calling, adding])
def test_on_a_gpu(function):
    from gemmkit.devices.cuda import CudaDevice

    record = run_kernel(Kernel.from_numba(function, **LAUNCH), PLAIN, CudaDevice())
    assert record.correct, record.check


@pytest.mark.parametrize(
    ("function", "launch", "board"),
    [
        (calling, LAUNCH, "b200"),
        (reducing, {"grid": "(M*N+3)/4", "block": 128}, "t4"),
        (adding, LAUNCH, "b200"),
        (dynamic, LAUNCH | {"shared": 4 * TILE * TILE}, "t4"),
    ],
    ids=["device function", "shuffles", "atomics", "dynamic shared memory"],
)
def test_what_else_numba_offers(function, launch, board):
    kernel = Kernel.from_numba(function, **launch)
    record = run_kernel(kernel, PLAIN, EmulatedDevice(find_board(board)))
    assert record.correct, record.check


def transposed(A, B, C):
    row, column = cuda.grid(2)
    if row < C.shape[0] and column < C.shape[1]:
        sum_ = float32(0)
        for k in range(B.shape[1]):
            sum_ += A[k, row] * B[column, k]
        C[row, column] = sum_


def test_arrays_have_the_shapes_of_the_layout():
    kernel = Kernel.from_numba(transposed, grid="(M+7)/8,(N+7)/8", block="8,8", layout="TT")
    record = run_kernel(kernel, GemmProblem(9, 7, 5), EmulatedDevice(find_board("a100")))
    assert record.correct
    assert record.problem.layout == "tt"


def test_a_kernel_is_compiled_for_each_board_once():
    kernel = Kernel.from_numba(tiled, **LAUNCH)
    boards = [find_board(each) for each in ("rtx3090", "h100", "rtx3090")]
    plans = [kernel.plan(PLAIN, kernel.default, board) for board in boards]
    targets = [plan.source.text.partition(".target ")[2].split()[0] for plan in plans]
    assert targets == ["sm_86", "sm_90", "sm_86"]
    assert plans[0].source is plans[2].source
    assert {plan.source.language for plan in plans} == {"ptx"}


def test_symbols_are_short_and_the_same_each_time():
    kernels = [Kernel.from_numba(calling, **LAUNCH) for _ in range(2)]
    board = find_board("rtx3090")
    plans = [kernel.plan(PLAIN, kernel.default, board) for kernel in kernels]
    assert plans[0].entry == "numba_calling"
    assert ".entry numba_calling(" in plans[0].source.text
    assert "NumbaEnv" not in plans[0].source.text
    assert plans[0] == plans[1]


def test_name_idea_source_and_lines_are_those_of_the_python_function():
    kernel = Kernel.from_numba(naive, **LAUNCH)
    assert (kernel.name, kernel.rung) == ("naive", None)
    assert kernel.idea == "One thread for each element of C."
    assert 'LAUNCH = {"grid"' in kernel.source
    device = EmulatedDevice(find_board("rtx3090"))
    from gemmkit.bench.workload import Workload
    from gemmkit.jit.compiler import compile_plan

    plan = kernel.plan(PLAIN, kernel.default, device.spec)
    launch, _ = Workload(PLAIN, device).run(compile_plan(plan, device.spec.arch), plan)
    loads = {where for where, counts in launch.line_counters.items() if counts.get(LOADS)}
    lines = kernel.source.split("\n")
    assert {name for name, _ in loads} == {"test_numba_kernels.py"}
    assert {lines[line - 1].strip() for _, line in loads} == {"sum_ += A[row, k] * B[k, column]"}


def test_a_function_that_stands_in_no_file_has_no_lines():
    names = {"cuda": cuda, "float32": float32}
    exec("def typed_in(A, B, C):\n    C[0, 0] = A[0, 0] * B[0, 0]\n", names)
    kernel = Kernel.from_numba(names["typed_in"], grid=1, block=1)
    assert kernel.source == ""
    assert ".loc" not in kernel.plan(PLAIN, kernel.default, find_board("rtx3090")).source.text


def test_counters_are_those_of_the_access_pattern():
    kernel = Kernel.from_numba(naive, grid="N/32,M/8", block="32,8")
    record = run_kernel(kernel, GemmProblem(64, 64, 64), EmulatedDevice(find_board("rtx3090")))
    # A warp covers one row: it reads one element of A and 32 neighbors of B for each k.
    warps = 64 * 64 // 32
    assert record.counters[LOADS] == 2 * 64 * warps
    sectors = record.counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    assert sectors == (1 + 4) * 64 * warps


def test_arguments_by_other_names_are_told():
    def mine(x, y, z):
        column, row = cuda.grid(2)
        if row < z.shape[0] and column < z.shape[1]:
            z[row, column] = x[row, 0] * y[0, column]

    with pytest.raises(UsageError, match=r"what 'x' of 'mine\(x, y, z\)' is: give args"):
        Kernel.from_numba(mine, **LAUNCH)
    kernel = Kernel.from_numba(mine, args="A,B,C", **LAUNCH)
    device = EmulatedDevice(find_board("rtx3090"))
    assert run_kernel(kernel, GemmProblem(9, 9, 1), device).correct
    assert not run_kernel(kernel, GemmProblem(9, 9, 2), device).correct


def test_contiguous_arrays_take_no_padding():
    kernel = Kernel.from_numba(naive, **LAUNCH)
    board = find_board("rtx3090")
    with pytest.raises(UnsupportedProblem, match="lda can only be 21"):
        kernel.plan(GemmProblem(33, 50, 21, lda=24), kernel.default, board)


def test_options_of_the_decorator_count():
    @cuda.jit(fastmath=True, launch_bounds=256)
    def divided(A, B, C):
        column, row = cuda.grid(2)
        C[row, column] = A[row, 0] / B[0, column]

    kernel = Kernel.from_numba(divided, **LAUNCH)
    ptx = kernel.plan(PLAIN, kernel.default, find_board("rtx3090")).source.text
    assert ".maxntid 256" in ptx
    assert "div.approx" in ptx


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"args": "A,B"}, r"takes 3 arguments \(A, B, C\), but args gives 2"),
        ({"args": "A,B,X"}, "argument 'X' uses X"),
        ({"types": "float32[:,:], float32[:,:]"}, "takes 3 arguments, but types gives 2"),
        ({"types": "float23, A, B"}, "numba cannot parse the types 'float23, A, B'"),
        ({"types": ["float64[:,:]"] * 3}, r"'A' must be .* not array\(float64, 2d, A\)"),
        ({"types": ["float32[:]"] * 3}, r"'A' must be float32\[:, ::1\]"),
        ({"types": ["int64"] * 3}, r"'A' must be .* not int64"),
        ({"args": "A,B,M", "types": ["float32[:,:]"] * 3}, "'M' must be an integer"),
    ],
)
def test_bad_use_is_told(options, message):
    with pytest.raises(UsageError, match=message):
        Kernel.from_numba(naive, **LAUNCH, **options)


@pytest.mark.parametrize("other", ["naive", print, 3])
def test_what_is_no_function_is_told(other):
    with pytest.raises(UsageError, match="is not a function that numba-cuda can compile"):
        Kernel.from_numba(other, **LAUNCH)


def test_a_function_that_numba_refuses_is_a_compile_error():
    def bad(A, B, C):
        C[0, 0] = A.no_such_thing

    kernel = Kernel.from_numba(bad, **LAUNCH)
    with pytest.raises(CompileError, match="numba-cuda cannot compile 'bad' for sm_86") as caught:
        kernel.plan(PLAIN, kernel.default, find_board("rtx3090"))
    assert "no_such_thing" in str(caught.value)


@pytest.mark.parametrize("missing", ["numba_cuda", "numba"])
def test_without_numba_cuda_the_message_says_how_to_get_it(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(CompilerMissing, match=r"pip install 'gemmkit\[numba\]'"):
        Kernel.from_numba(tiled, **LAUNCH)
