"""Rung 2, the same with the indices swapped: each warp computes part of a row.

All 32 threads now read the same element of A, in one sector, and 32 adjacent elements of B, in
four: 2.5 sectors per request instead of 16.5, from swapping two names.
"""

from showing import show

from gemmkit import Kernel

try:
    from numba import cuda, float32
except ModuleNotFoundError:
    raise SystemExit("this example needs numba-cuda: pip install 'gemmkit[numba]'") from None


@cuda.jit
def coalesced(A, B, C):
    """Adjacent threads compute adjacent columns."""
    column, row = cuda.grid(2)
    if row < C.shape[0] and column < C.shape[1]:
        total = float32(0)
        for k in range(A.shape[1]):
            total += A[row, k] * B[k, column]
        C[row, column] = total


kernel = Kernel.from_numba(coalesced, grid="(N+31)/32,(M+31)/32", block="32,32")
show(kernel, 128, "load_requests", "sectors_per_request", "sectors_per_store_request")
