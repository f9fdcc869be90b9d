"""gemmkit.nn: a convolution, attention and a recurrent layer, each mostly matrix products.

The functions take the same arguments as PyTorch's and return arrays of the library that they were
given, here NumPy.
"""

import numpy as np

from gemmkit import nn

rng = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    """Random weights, scaled as for initialization."""
    return rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:], dtype=np.float32))


# Two images of 3 channels, eight filters of 3x3, stride 2.
images = rng.standard_normal((2, 3, 16, 16), np.float32)
filters, offsets = weights(8, 3, 3, 3), np.zeros(8, np.float32)
features = nn.conv2d(images, filters, offsets, stride=2, padding=1, activation="relu")
print(f"conv2d     {images.shape} -> {features.shape}")

# The same without storing a matrix of patches.
implicit = nn.conv2d(
    images, filters, offsets, stride=2, padding=1, activation="relu", method="implicit"
)
print(f"implicit   largest difference {np.max(np.abs(features - implicit)):.0e}")

# Pixels become tokens: queries, keys and values from one product, then attention with 2 heads.
tokens = features.reshape(2, 8, 64).swapaxes(1, 2)
projected = nn.linear(tokens, weights(24, 8)).reshape(2, 64, 3, 2, 4)
q, k, v = projected.transpose(2, 0, 3, 1, 4)
mixed = nn.attention(q, k, v).swapaxes(1, 2).reshape(2, 64, 8)
print(f"attention  {tokens.shape} -> {mixed.shape}")

# A fully connected layer with its activation and a residual, in one kernel.
hidden = nn.linear(mixed, weights(8, 8), activation="gelu_tanh", residual=tokens)

# An LSTM reads the tokens in order; the projection of all steps is one product.
steps = hidden[:, ::8]
layer = (weights(24, 8), weights(24, 6), np.zeros(24, np.float32), np.zeros(24, np.float32))
output, (state, _) = nn.lstm(steps, None, [layer], batch_first=True)
print(f"lstm       {steps.shape} -> {output.shape}")
print(f"the last output is the state: {np.array_equal(output[:, -1], state[0])}")
