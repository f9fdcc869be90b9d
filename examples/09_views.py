"""Transposes, parts and strided views, in and out.

A matrix is read where it lies if its rows or its columns are each in one piece: any part of a
matrix, every other row, the transpose of these, the matrices of a stack along any axis. What lies
otherwise is copied first. Either way the result is that of NumPy.
"""

import numpy as np

import gemmkit

rng = np.random.default_rng(0)
big = rng.standard_normal((96, 120), np.float32)
weights = rng.standard_normal((40, 32), np.float32)

# Bytes from a row to the next, and from a column to the next.
views = {
    "a part": big[8:40, 16:56],
    "a transpose": big[:40].T,
    "every third row": big[::3, :40],
    "rows backwards": big[::-1, :40],
    "every third column": big[:, ::3],
}
for name, a in views.items():
    found = gemmkit.matmul(a, weights)
    right = np.allclose(found, a.astype(np.float64) @ weights, atol=1e-4)
    print(f"{name:20} {a.shape!s:10} strides {a.strides!s:12} right: {right}")

# A window that slides over a signal: its rows overlap each other, so they are copied first.
signal = rng.standard_normal(200, np.float32)
windows = np.lib.stride_tricks.sliding_window_view(signal, 40)
found = gemmkit.matmul(windows, weights)
right = np.allclose(found, windows.astype(np.float64) @ weights, atol=1e-4)
print(f"{'a sliding window':20} {windows.shape!s:10} strides {windows.strides!s:12} right: {right}")

# Results go into a part of a matrix, and nothing beside it is touched.
canvas = np.full((64, 64), np.nan, np.float32)
gemmkit.matmul(big[:30, :40], weights, out=canvas[10:40, 20:52])
print(f"elements that were written: {np.count_nonzero(~np.isnan(canvas))} of {30 * 32}")

# Also as its transpose, which has its columns in one piece.
canvas[:] = np.nan
gemmkit.matmul(big[:30, :40], weights, out=canvas[:32, :30].T)
same = np.array_equal(canvas[:32, :30].T, gemmkit.matmul(big[:30, :40], weights))
print(f"into a transpose, the same numbers: {same}")
