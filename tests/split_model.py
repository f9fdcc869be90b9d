"""What kernels compute that split fp32 into parts, or round it to TF32, in NumPy, bit for bit."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind
from gemmkit.split_products import TF32_CHUNK

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import precision_errors
import precision_on_gpu
from precision_errors import FAMILIES, errors, fused_chain

__all__ = [
    "FAMILIES",
    "errors",
    "fused_chain",
    "precision_errors",
    "precision_on_gpu",
    "split",
    "split_product",
    "split_product_by_chunk",
    "split_tf32",
    "tf32_product",
    "tf32x3_product",
    "tf32x3_sums",
]

Singles = NDArray[np.float32]
Halves = NDArray[np.float16]
WGMMA, HOPPER, DEPTH = Kind("wgmma", "f16", "f16", "f32", 16), (9, 0), 16
MMA, AMPERE = Kind("mma", "tf32", "tf32", "f32", TF32_CHUNK), (8, 0)


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
    total: Singles | None = None
    for places in shares(a.shape[1], depth, blocks):
        own = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for x in places:
            own = own + chunk_product(high_a[:, x], low_a[:, x], high_b[:, x], low_b[:, x])
        total = own if total is None else total + own
    assert total is not None
    # In float64 both factors and the product are exact, so that results are rounded once.
    scaled = np.ldexp(total.astype(float), -(of_rows[:, None] + of_columns[None]))
    with np.errstate(over="ignore"):
        return scaled.astype(np.float32)


def split_product_by_chunk(
    a: Singles, b: Singles, depth: int = 64, blocks: int = 1, *, swapped: bool = False
) -> Singles:
    """A·B as `gemm_fp16x3_fused` computes it, of finite numbers; the arguments are the same."""
    if swapped:
        return split_product_by_chunk(b.T, a.T, depth, blocks).T
    total: Singles | None = None
    for places in shares(a.shape[1], depth, blocks):
        own = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for x in places:
            (high_a, low_a, of_rows), (high_b, low_b, of_columns) = split(a[:, x]), split(b.T[:, x])
            chunk = chunk_product(high_a, low_a, high_b, low_b).astype(float)
            scaled = np.ldexp(chunk, -(of_rows[:, None] + of_columns[None]))
            # A fused multiply-add, but for sums that float64 rounds to a tie of float32.
            with np.errstate(over="ignore", invalid="ignore"):
                own = (own.astype(float) + scaled).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            total = own if total is None else total + own
    assert total is not None
    return np.where(np.isfinite(total), total, fused_chain(a, b))


def shares(k: int, depth: int, blocks: int) -> list[list[slice]]:
    """The chunks of each of the blocks that share k."""
    steps = -(-k // depth)
    ends = [steps * each // blocks for each in range(blocks + 1)]
    return [
        [slice(step * depth, (step + 1) * depth) for step in range(*each)]
        for each in itertools.pairwise(ends)
    ]


def chunk_product(high_a: Halves, low_a: Halves, high_b: Halves, low_b: Halves) -> Singles:
    """The sums of a chunk of k on tensor cores, of lines along k."""
    rest = -high_a.shape[1] % DEPTH
    parts = [np.pad(x, ((0, 0), (0, rest))) for x in (high_a, low_a, high_b, low_b)]
    high_a, low_a, high_b, low_b = (x.view(np.uint16) for x in parts)
    chunk = np.zeros((len(high_a), len(high_b)), np.uint32)
    places = [slice(x, x + DEPTH) for x in range(0, high_a.shape[1], DEPTH)]
    pairs = [
        *(each for x in places for each in ((low_a, high_b, x), (high_a, low_b, x))),
        *((high_a, high_b, x) for x in places),
    ]
    for left, right, x in pairs:
        chunk = multiply(WGMMA, HOPPER, left[:, x], right[:, x].T, chunk)
    return chunk.view(np.float32)


def split_tf32(x: Singles) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The parts of numbers in TF32, as words."""
    high = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    with np.errstate(invalid="ignore"):
        low = x - high.view(np.float32)
    return high, low.view(np.uint32)


def tf32x3_product(a: Singles, b: Singles, capability: tuple[int, int] = AMPERE) -> Singles:
    """A·B as `gemm_tf32x3` computes it."""
    total = tf32x3_sums(a, b, capability)
    return np.where(np.isfinite(total), total, fused_chain(a, b))


def tf32x3_sums(a: Singles, b: Singles, capability: tuple[int, int] = AMPERE) -> Singles:
    """The sums of products of parts, which may not be finite though the product is."""
    k = a.shape[1]
    whole = -k % TF32_CHUNK
    high_a, low_a = split_tf32(np.pad(a, ((0, 0), (0, whole))))
    high_b, low_b = split_tf32(np.pad(b, ((0, whole), (0, 0))))
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, k, TF32_CHUNK):
        x, chunk = slice(start, start + TF32_CHUNK), np.zeros(total.shape, np.uint32)
        for left, right in ((low_a, high_b), (high_a, low_b), (high_a, high_b)):
            chunk = multiply(MMA, capability, left[:, x], right[x], chunk)
        with np.errstate(invalid="ignore", over="ignore"):
            total = total + chunk.view(np.float32)
    return total


def tf32_product(a: Singles, b: Singles, capability: tuple[int, int] = AMPERE) -> Singles:
    """A·B as `gemm_tf32_mma` computes it, of finite numbers."""
    k = a.shape[1]
    whole = -k % TF32_CHUNK
    left, _ = split_tf32(np.pad(a, ((0, 0), (0, whole))))
    right, _ = split_tf32(np.pad(b, ((0, whole), (0, 0))))
    total = np.zeros((a.shape[0], b.shape[1]), np.uint32)
    for start in range(0, k, TF32_CHUNK):
        x = slice(start, start + TF32_CHUNK)
        total = multiply(MMA, capability, left[:, x], right[x], total)
    return total.view(np.float32)
