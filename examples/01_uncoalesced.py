"""Rung 1, one thread for each element of C: the warp runs down a column, and pays for it.

Threads with neighbouring threadIdx.x form a warp. Here they take neighbouring rows, so that their
32 elements of A lie in 32 different rows, each in a sector of its own: 32 sectors for A and 1 for
B, 16.5 a request.
"""

from showing import show

from gemmkit import Kernel

try:
    from numba import cuda, float32
except ModuleNotFoundError:
    raise SystemExit("this example needs numba-cuda: pip install 'gemmkit[numba]'") from None


@cuda.jit
def uncoalesced(A, B, C):
    """Neighbouring threads take neighbouring rows."""
    row, column = cuda.grid(2)
    if row < C.shape[0] and column < C.shape[1]:
        total = float32(0)
        for k in range(A.shape[1]):
            total += A[row, k] * B[k, column]
        C[row, column] = total


kernel = Kernel.from_numba(uncoalesced, grid="(M+31)/32,(N+31)/32", block="32,32")
show(kernel, 128, "load_requests", "sectors_per_request", "sectors_per_store_request")
