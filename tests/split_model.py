"""What `gemm_fp16x3` computes, in NumPy, bit for bit; a chain of fused multiply-adds; inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind

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


def fused_chain(a: Singles, b: Singles) -> Singles:
    """A·B by a chain of fused multiply-adds along k, as FFMA has it.

    float64 holds products exactly and rounds their sums to 53 bits first; that shows in few of the
    results, and little.
    """
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for left, right in zip(a.T.astype(float), b.astype(float), strict=True):
            total = (np.multiply.outer(left, right) + total).astype(np.float32)
    return total


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Singles:
    return rng.standard_normal(shape, np.float32)


def _log_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Singles:
    return np.float32(_normal(rng, shape) * np.exp2(rng.uniform(-20, 20, shape)))


Pair = tuple[Singles, Singles]


def _graded(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    rows, columns = (np.exp2(rng.uniform(-60, 60, each)) for each in (m, n))
    return (
        np.float32(_normal(rng, (m, k)) * rows[:, None]),
        np.float32(_normal(rng, (k, n)) * columns),
    )


def _cancelling(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """Each term is followed by its negative with a change in the last bits."""
    a, b = _normal(rng, (m, k)), _normal(rng, (k, n))
    half = k // 2
    a[:, half : 2 * half] = -a[:, :half] * np.float32(1 + 2.0**-23)
    b[half : 2 * half] = b[:half]
    return a, b


def _hilbert(_: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """Parts of a Hilbert matrix."""
    i, j, inner = np.arange(m)[:, None], np.arange(n)[None], np.arange(k)
    return (
        np.float32(1 / (i + inner[None] + 1.0)),
        np.float32(1 / (inner[:, None] + j + 1.0)),
    )


FAMILIES: dict[str, Callable[[np.random.Generator, int, int, int], Pair]] = {
    "normal": lambda rng, m, n, k: (_normal(rng, (m, k)), _normal(rng, (k, n))),
    "uniform": lambda rng, m, n, k: (
        rng.random((m, k), np.float32),
        rng.random((k, n), np.float32),
    ),
    "log-uniform": lambda rng, m, n, k: (_log_uniform(rng, (m, k)), _log_uniform(rng, (k, n))),
    "graded": _graded,
    "cancelling": _cancelling,
    "Hilbert": _hilbert,
}
