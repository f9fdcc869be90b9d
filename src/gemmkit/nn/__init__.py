"""Layers of neural networks, each on gemmkit's products: small functions of arrays, no modules.

They take and return arrays of any library that `gemmkit.matmul` takes, and compute what PyTorch's
functions of these names compute. Where PyTorch records gradients, they are recorded: products are
then the operators of `gemmkit.torch`, with what surrounds them in PyTorch's own.
"""

from gemmkit.nn.attention import attention
from gemmkit.nn.conv2d import conv2d
from gemmkit.nn.linear import linear
from gemmkit.nn.parallel import column_parallel_linear, row_parallel_linear
from gemmkit.nn.recurrent import gru, lstm

__all__ = [
    "attention",
    "column_parallel_linear",
    "conv2d",
    "gru",
    "linear",
    "lstm",
    "row_parallel_linear",
]
