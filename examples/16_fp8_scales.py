"""Products of 8-bit elements with scales, as inference and training in fp8 have them.

The smaller the part of a matrix that shares a scale, the less its largest elements cost the others.
NumPy's types of 8 bits come with the package ml_dtypes.
"""

import numpy as np

import gemmkit

try:
    import ml_dtypes  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit("this example needs ml_dtypes: pip install ml_dtypes") from None

M, N, K = 64, 96, 512
rng = np.random.default_rng(0)
activations = rng.standard_normal((M, K), np.float32)
weights = rng.standard_normal((K, N), np.float32) / np.float32(np.sqrt(K))
# Rows of different sizes, and 128 channels of large activations and small weights.
activations *= np.float32(10) ** rng.uniform(-3, 3, (M, 1)).astype(np.float32)
activations[:, :128] *= 30_000
weights[:128] /= 30_000
exact = activations.astype(np.float64) @ weights

for of_a, of_b in (("tensor", "tensor"), ("rows", "columns"), ("1x128", "128x128")):
    a, scale_a = gemmkit.quantize(activations, "e4m3", scale=of_a)
    b, scale_b = gemmkit.quantize(weights, "e4m3", scale=of_b)
    found = gemmkit.matmul(a, b, scale_a=scale_a, scale_b=scale_b)
    # Of each row relative to itself: those of the largest would hide the others.
    errors = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    scales = f"{of_a} of A, {of_b} of B"
    print(f"{scales:24} scales {scale_a.size + scale_b.size:4}, rows wrong by {errors.mean():.1%}")
