"""Rung 4, several results per thread: an element of B, read once, serves TM rows.

A thread keeps TM accumulators in registers and reads TM + 1 floats from shared memory for TM
multiply-adds: K (TM + 1) / TM shared loads per result instead of 2K. Global loads do not change.
"""

from showing import show

from gemmkit import Kernel

try:
    from numba import cuda, float32
except ModuleNotFoundError:
    raise SystemExit("this example needs numba-cuda: pip install 'gemmkit[numba]'") from None

TILE = 32
TM = 8
THREAD_ROWS = TILE // TM


@cuda.jit
def coarsening_1d(A, B, C):
    """A thread computes a column of 8 results."""
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    totals = cuda.local.array(TM, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    first_row = cuda.blockIdx.y * TILE
    column = cuda.blockIdx.x * TILE + x
    for i in range(TM):
        totals[i] = 0
    for k0 in range(0, A.shape[1], TILE):
        for i in range(TM):
            tile_row = i * THREAD_ROWS + y
            row, k = first_row + tile_row, k0 + tile_row
            inside_a = row < A.shape[0] and k0 + x < A.shape[1]
            inside_b = k < B.shape[0] and column < B.shape[1]
            a_tile[tile_row, x] = A[row, k0 + x] if inside_a else float32(0)
            b_tile[tile_row, x] = B[k, column] if inside_b else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            b = b_tile[k, x]
            for i in range(TM):
                totals[i] += a_tile[y * TM + i, k] * b
        cuda.syncthreads()
    for i in range(TM):
        row = first_row + y * TM + i
        if row < C.shape[0] and column < C.shape[1]:
            C[row, column] = totals[i]


kernel = Kernel.from_numba(coarsening_1d, grid="(N+31)/32,(M+31)/32", block=f"32,{THREAD_ROWS}")
show(
    kernel,
    128,
    "load_requests",
    "sectors_per_request",
    "bank_conflicts",
    "registers",
    "local_bytes",
)
