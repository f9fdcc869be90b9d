"""A linear system solved by iterative refinement: a Cholesky factor of a matrix rounded to float16,
and residuals by gemmkit.matmul in the precisions "ieee" and "fp32".

On a Hopper GPU "fp32" lets large products run on tensor cores, with an error as small as that of
"ieee" (docs/precision.md). On other boards, on the emulator and for products as small as these both
are multiplied alike. NumPy computes the rest, and the residuals that are printed, in float64.
"""

import numpy as np

import gemmkit

SIZE, RIGHT_SIDES, STEPS = 128, 32, 7
rng = np.random.default_rng(0)

# Symmetric and positive definite, of condition 3,000.
basis, _ = np.linalg.qr(rng.standard_normal((SIZE, SIZE)))
a = ((basis * np.geomspace(1, 1 / 3000, SIZE)) @ basis.T).astype(np.float32)
b = rng.standard_normal((SIZE, RIGHT_SIDES), np.float32)
factor = np.linalg.cholesky(a.astype(np.float16).astype(np.float64))


def solve_roughly(residuals: np.ndarray) -> np.ndarray:
    """The solution for the rounded matrix, which is off by some percent for A itself."""
    return np.linalg.solve(factor.T, np.linalg.solve(factor, residuals)).astype(np.float32)


def refined(precision: str) -> list[float]:
    """Backward errors ‖B − A·X‖ / (‖A‖·‖X‖) before each step of refinement and after the last."""
    x = solve_roughly(b)
    found = []
    for _ in range(STEPS):
        exact = b - a.astype(np.float64) @ x
        found.append(np.linalg.norm(exact) / np.linalg.norm(a, 2) / np.linalg.norm(x))
        # B − A·X in one kernel.
        residuals = gemmkit.matmul(a, x, alpha=-1, c=b, beta=1, precision=precision)
        x = x + solve_roughly(residuals)
    return found


histories = {precision: refined(precision) for precision in ("ieee", "fp32")}
print(f"{SIZE} equations, {RIGHT_SIDES} right sides: backward error")
print(f"{'step':>4}  {'ieee':>8}  {'fp32':>8}")
for step, errors in enumerate(zip(*histories.values(), strict=True)):
    print(f"{step:4}  " + "  ".join(f"{error:8.1e}" for error in errors))
