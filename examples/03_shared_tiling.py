"""Rung 3, tiles in shared memory: a block reads each element once for all of its threads.

An element that a block copies to shared memory serves 32 threads: 2K/32 global loads per result
instead of 2K. The other 2K loads remain, but from shared memory.
"""

from showing import show

from gemmkit import Kernel

try:
    from numba import cuda, float32
except ModuleNotFoundError:
    raise SystemExit("this example needs numba-cuda: pip install 'gemmkit[numba]'") from None

TILE = 32


@cuda.jit
def shared_tiling(A, B, C):
    """The threads of a block share tiles of A and B in shared memory."""
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for k0 in range(0, A.shape[1], TILE):
        inside_a = row < A.shape[0] and k0 + x < A.shape[1]
        inside_b = k0 + y < B.shape[0] and column < B.shape[1]
        a_tile[y, x] = A[row, k0 + x] if inside_a else float32(0)
        b_tile[y, x] = B[k0 + y, column] if inside_b else float32(0)
        cuda.syncthreads()  # the tiles are complete
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()  # no thread reads the tiles any more
    if row < C.shape[0] and column < C.shape[1]:
        C[row, column] = total


kernel = Kernel.from_numba(shared_tiling, grid="(N+31)/32,(M+31)/32", block="32,32")
show(kernel, 128, "load_requests", "sectors_per_request", "bank_conflicts")
