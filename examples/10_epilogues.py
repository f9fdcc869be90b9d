"""Epilogues: what is done to a product before it is stored costs no pass over memory of its own.

D = scale * activation(alpha * A@B + beta * C + bias) + residual, in one kernel.
"""

import numpy as np

import gemmkit
from gemmkit import Epilogue

rng = np.random.default_rng(0)
x, weight = (rng.standard_normal(shape, np.float32) for shape in ((32, 48), (48, 64)))
bias, residual = (rng.standard_normal(shape, np.float32) for shape in (64, (32, 64)))
product = x.astype(np.float64) @ weight


def show(what: str, found: np.ndarray, exact: np.ndarray) -> None:
    """Print how far a result lies from what float64 gives."""
    print(f"{what:28} largest error {np.max(np.abs(found - exact)):.0e}")


# An array that is given is used; the activation is named.
found = gemmkit.matmul(x, weight, bias=bias, epilogue="relu")
show("bias and ReLU", found, np.maximum(product + bias, 0))

found = gemmkit.matmul(x, weight, bias=bias, residual=residual, epilogue="silu")
show("bias, SiLU and residual", found, (product + bias) / (1 + np.exp(-product - bias)) + residual)

# One bias a row in place of one a column, and a factor.
rows = rng.standard_normal(32, np.float32)
found = gemmkit.matmul(x, weight, bias=rows, epilogue=Epilogue("row", "relu", scale=0.5))
show("bias of rows, ReLU, scale", found, 0.5 * np.maximum(product + rows[:, None], 0))

# What the activation was applied to, for its derivative, from the same kernel.
before = np.empty((32, 64), np.float32)
gemmkit.matmul(x, weight, bias=bias, epilogue="gelu_tanh", auxiliary=before)
show("auxiliary output", before, product + bias)

# Your own, as a CUDA expression of x: it is compiled into the kernel.
leaky = Epilogue.custom("x > 0 ? x : slope * x", slope=0.1)
found = gemmkit.matmul(x, weight, epilogue=leaky)
show("your own: leaky ReLU", found, np.where(product > 0, product, 0.1 * product))
