"""Rung 1, one thread per element of C, with each warp along a column: uncoalesced.

Threads with adjacent threadIdx.x form a warp. Here they compute adjacent rows, so their 32 elements
of A are in 32 different rows, each in its own sector: 32 sectors for A and 1 for B, 16.5 per
request on average.
"""

from showing import show

from gemmkit import Kernel

try:
    from numba import cuda, float32
except ModuleNotFoundError:
    raise SystemExit("this example needs numba-cuda: pip install 'gemmkit[numba]'") from None


@cuda.jit
def uncoalesced(A, B, C):
    """Adjacent threads compute adjacent rows."""
    row, column = cuda.grid(2)
    if row < C.shape[0] and column < C.shape[1]:
        total = float32(0)
        for k in range(A.shape[1]):
            total += A[row, k] * B[k, column]
        C[row, column] = total


kernel = Kernel.from_numba(uncoalesced, grid="(M+31)/32,(N+31)/32", block="32,32")
show(kernel, 128, "load_requests", "sectors_per_request", "sectors_per_store_request")
