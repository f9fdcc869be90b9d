"""Epilogues: operations on a product before it is stored, without another pass over memory.

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
    """Print the largest error relative to float64."""
    print(f"{what:28} largest error {np.max(np.abs(found - exact)):.0e}")


# Arrays are passed by name; the activation is a string.
found = gemmkit.matmul(x, weight, bias=bias, epilogue="relu")
show("bias and ReLU", found, np.maximum(product + bias, 0))

found = gemmkit.matmul(x, weight, bias=bias, residual=residual, epilogue="silu")
show("bias, SiLU and residual", found, (product + bias) / (1 + np.exp(-product - bias)) + residual)

# One bias per row instead of one per column, and a scale.
rows = rng.standard_normal(32, np.float32)
found = gemmkit.matmul(x, weight, bias=rows, epilogue=Epilogue("row", "relu", scale=0.5))
show("bias of rows, ReLU, scale", found, 0.5 * np.maximum(product + rows[:, None], 0))

# The input of the activation, for its derivative, from the same kernel.
before = np.empty((32, 64), np.float32)
gemmkit.matmul(x, weight, bias=bias, epilogue="gelu_tanh", auxiliary=before)
show("auxiliary output", before, product + bias)

# A custom activation, as a CUDA expression of x, which is compiled into the kernel.
leaky = Epilogue.custom("x > 0 ? x : slope * x", slope=0.1)
found = gemmkit.matmul(x, weight, epilogue=leaky)
show("custom: leaky ReLU", found, np.where(product > 0, product, 0.1 * product))
