"""Rung 5, a square of results per thread: loads grow as TM + TN, multiply-adds as TM x TN.

For each k a thread reads TM floats of A and TN of B and multiplies every pair: K/TM + K/TN
shared loads per result. The larger tile of the block, 64 x 64, saves global loads too: 2K/64.
"""

from showing import show

from gemmkit import Kernel

try:
    from numba import cuda, float32
except ModuleNotFoundError:
    raise SystemExit("this example needs numba-cuda: pip install 'gemmkit[numba]'") from None

TILE, BK = 64, 8
TM = TN = 8
ACROSS = TILE // TN
THREADS = ACROSS * TILE // TM
PADDED = TILE + 4  # rows of 64 would put a warp's stores to a column into few banks


@cuda.jit
def coarsening_2d(A, B, C):
    """A thread computes 8 x 8 results as outer products."""
    a_tile = cuda.shared.array((BK, PADDED), float32)
    b_tile = cuda.shared.array((BK, TILE), float32)
    totals = cuda.local.array((TM, TN), float32)
    a = cuda.local.array(TM, float32)
    b = cuda.local.array(TN, float32)
    thread = cuda.threadIdx.x
    x, y = thread % ACROSS, thread // ACROSS
    first_row, first_column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for i in range(TM):
        for j in range(TN):
            totals[i, j] = 0
    for k0 in range(0, A.shape[1], BK):
        for step in range(TILE * BK // THREADS):
            place = step * THREADS + thread
            row, k = place // BK, place % BK
            inside = first_row + row < A.shape[0] and k0 + k < A.shape[1]
            a_tile[k, row] = A[first_row + row, k0 + k] if inside else float32(0)
            k, column = place // TILE, place % TILE
            inside = k0 + k < B.shape[0] and first_column + column < B.shape[1]
            b_tile[k, column] = B[k0 + k, first_column + column] if inside else float32(0)
        cuda.syncthreads()
        for k in range(BK):
            for i in range(TM):
                a[i] = a_tile[k, y * TM + i]
            for j in range(TN):
                b[j] = b_tile[k, x + j * ACROSS]
            for i in range(TM):
                for j in range(TN):
                    totals[i, j] += a[i] * b[j]
        cuda.syncthreads()
    for i in range(TM):
        for j in range(TN):
            row = first_row + y * TM + i
            column = first_column + x + j * ACROSS
            if row < C.shape[0] and column < C.shape[1]:
                C[row, column] = totals[i, j]


kernel = Kernel.from_numba(coarsening_2d, grid="(N+63)/64,(M+63)/64", block=THREADS)
show(
    kernel,
    128,
    "load_requests",
    "sectors_per_request",
    "bank_conflicts",
    "registers",
    "local_bytes",
)
