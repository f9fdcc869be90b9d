"""gemmkit.matmul on NumPy arrays, by NumPy's rules; gemmkit.gemm by BLAS's rules.

With a GPU, arrays are copied there and back. Without one, a warning says why, and the products are
emulated, which is slow, so the sizes are small.
"""

import numpy as np

import gemmkit

rng = np.random.default_rng(0)


def compare(what: str, found: np.ndarray, exact: np.ndarray) -> None:
    """Print a result's shape, type and error relative to float64."""
    error = np.max(np.abs(found - exact)) / np.max(np.abs(exact))
    print(f"{what:30} {found.shape!s:14} {found.dtype!s:9} relative error {error:.0e}")


a, b = (rng.standard_normal(shape, np.float32) for shape in ((48, 70), (70, 33)))
exact = a.astype(np.float64) @ b
compare("matrix @ matrix", gemmkit.matmul(a, b), exact)
compare("vector @ matrix", gemmkit.matmul(a[0], b), exact[0])
compare("matrix @ vector", gemmkit.matmul(a, b[:, 0]), exact[:, 0])

# Stacks broadcast: five matrices by one.
stack = rng.standard_normal((5, 48, 70), np.float32)
compare("stack @ matrix", gemmkit.matmul(stack, b), stack.astype(np.float64) @ b)

# Into an existing array, with alpha and beta as in BLAS: D = alpha*A@B + beta*C.
c = rng.standard_normal((48, 33), np.float32)
out = np.empty_like(c)
gemmkit.matmul(a, b, out=out, alpha=0.5, c=c, beta=2)
compare("0.5 a @ b + 2 c", out, 0.5 * exact + 2.0 * c)

# gemm overwrites c, and accepts transposed operands, as in BLAS.
expected = exact + c
gemmkit.gemm(a.T.copy(), b, c, transa=True, beta=1)
compare("gemm, A transposed", c, expected)

# float16 is accumulated in fp32, float64 in fp64; the result may have another type.
half_a, half_b = a.astype(np.float16), b.astype(np.float16)
found = gemmkit.matmul(half_a, half_b, out_dtype="float32")
compare("float16, float32 out", found, half_a.astype(np.float64) @ half_b)
compare("float64", gemmkit.matmul(a.astype(np.float64), b.astype(np.float64)), exact)
