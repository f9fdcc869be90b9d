"""What `gemm_fp16x3` computes, in NumPy, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import precision_errors
from precision_errors import FAMILIES, errors, fused_chain

__all__ = ["FAMILIES", "errors", "fused_chain", "precision_errors", "split", "split_product"]

Singles = NDArray[np.float32]
WGMMA, HOPPER, DEPTH = Kind("wgmma", "f16", "f16", "f32", 16), (9, 0), 16


def split(lines: Singles) -> tuple[NDArray[np.float16], NDArray[np.float16], NDArray[np.int64]]:
    """The parts of each row of finite numbers, and the exponent of its scale."""
    largest = np.abs(lines.astype(float)).max(axis=1, initial=0)
    exponents = np.where(largest > 0, 15 - np.frexp(largest)[1], 0)
    scaled = np.ldexp(lines.astype(float), exponents[:, None]).astype(np.float32)
    high = scaled.astype(np.float16)
    return high, (scaled - high.astype(np.float32)).astype(np.float16), exponents


def split_product(
    a: Singles, b: Singles, depth: int = 64, blocks: int = 1, *, swapped: bool = False
) -> Singles:
    """A·B; `depth` is BK, a chunk of k, `blocks` is cluster_k; `swapped`: computed as B^T·A^T."""
    if swapped:
        return split_product(b.T, a.T, depth, blocks).T
    (high_a, low_a, of_rows), (high_b, low_b, of_columns) = split(a), split(b.T)
    k = a.shape[1]
    whole = -k % depth
    parts = [np.pad(x, ((0, 0), (0, whole))) for x in (high_a, low_a, high_b, low_b)]
    high_a, low_a, high_b, low_b = (x.view(np.uint16) for x in parts)
    steps = (k + whole) // depth
    total: Singles | None = None
    for block in range(blocks):
        first, end = (steps * each // blocks * depth for each in (block, block + 1))
        own = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for start in range(first, end, depth):
            chunk = np.zeros(own.shape, np.uint32)
            places = [slice(x, x + DEPTH) for x in range(start, start + depth, DEPTH)]
            pairs = [
                *(each for x in places for each in ((low_a, high_b, x), (high_a, low_b, x))),
                *((high_a, high_b, x) for x in places),
            ]
            for left, right, x in pairs:
                chunk = multiply(WGMMA, HOPPER, left[:, x], right[:, x].T, chunk)
            own = own + chunk.view(np.float32)
        total = own if total is None else total + own
    assert total is not None
    # In float64 both factors and the product are exact, so that results are rounded once.
    scaled = np.ldexp(total.astype(float), -(of_rows[:, None] + of_columns[None]))
    with np.errstate(over="ignore"):
        return scaled.astype(np.float32)
