"""Many products at once: stacks of equal shape, shared operands, and groups of any shapes."""

import numpy as np

import gemmkit

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    """Random numbers."""
    return rng.standard_normal(shape, np.float32)


def show(what: str, found: np.ndarray, exact: np.ndarray) -> None:
    """Print a result's shape and its largest error relative to float64."""
    print(f"{what:34} {found.shape!s:16} largest error {np.max(np.abs(found - exact)):.0e}")


# A stack of small products is one launch.
a, b = normal(20, 16, 24), normal(20, 24, 16)
show("20 products", gemmkit.matmul(a, b), a.astype(np.float64) @ b)

# One operand shared by all products.
weight = normal(24, 16)
show("20 matrices by one", gemmkit.matmul(a, weight), a.astype(np.float64) @ weight)

# Attention heads side by side in one matrix: views of it are a stack, read in place.
tokens, heads, size = 24, 4, 8
q, k = (normal(tokens, heads * size).reshape(tokens, heads, size) for _ in range(2))
scores = gemmkit.matmul(q.swapaxes(0, 1), k.transpose(1, 2, 0), alpha=size**-0.5)
show("scores of 4 heads", scores, np.einsum("thd,shd->hts", q.astype(float), k) * size**-0.5)

# Products of different shapes, such as the experts of a mixture, are one launch too.
sizes = [5, 33, 0, 17]
inputs, experts = [normal(count, 24) for count in sizes], [normal(24, 16) for _ in sizes]
for number, found in enumerate(gemmkit.grouped_matmul(inputs, experts)):
    exact = inputs[number].astype(np.float64) @ experts[number]
    if exact.size:
        show(f"expert {number}", found, exact)
