"""Transposes, slices and strided views, as inputs and outputs.

A matrix is read in place if its rows or its columns are contiguous: any slice of a matrix, every
other row, their transposes, the matrices of a stack along any axis. Other views are copied first.
Either way the result equals NumPy's.
"""

import numpy as np

import gemmkit

rng = np.random.default_rng(0)
big = rng.standard_normal((96, 120), np.float32)
weights = rng.standard_normal((40, 32), np.float32)

# The strides, in bytes, are from row to row and from column to column.
views = {
    "a slice": big[8:40, 16:56],
    "a transpose": big[:40].T,
    "every third row": big[::3, :40],
    "rows backwards": big[::-1, :40],
    "every third column": big[:, ::3],
}
for name, a in views.items():
    found = gemmkit.matmul(a, weights)
    right = np.allclose(found, a.astype(np.float64) @ weights, atol=1e-4)
    print(f"{name:20} {a.shape!s:10} strides {a.strides!s:12} right: {right}")

# A sliding window over a signal: its rows overlap each other, so they are copied first.
signal = rng.standard_normal(200, np.float32)
windows = np.lib.stride_tricks.sliding_window_view(signal, 40)
found = gemmkit.matmul(windows, weights)
right = np.allclose(found, windows.astype(np.float64) @ weights, atol=1e-4)
print(f"{'a sliding window':20} {windows.shape!s:10} strides {windows.strides!s:12} right: {right}")

# The result may go into a slice of a matrix; nothing outside it is written.
canvas = np.full((64, 64), np.nan, np.float32)
gemmkit.matmul(big[:30, :40], weights, out=canvas[10:40, 20:52])
print(f"elements that were written: {np.count_nonzero(~np.isnan(canvas))} of {30 * 32}")

# Also as a transpose, whose columns are contiguous.
canvas[:] = np.nan
gemmkit.matmul(big[:30, :40], weights, out=canvas[:32, :30].T)
same = np.array_equal(canvas[:32, :30].T, gemmkit.matmul(big[:30, :40], weights))
print(f"into a transpose, the same numbers: {same}")
