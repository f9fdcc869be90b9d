"""Which kernel a product of host arrays runs where there is no GPU: the fastest on the emulator.

A board's figures say nothing here. What costs time is the number of warp instructions for each
multiply-add, and the first time of a kernel its compilation: so small products share one kernel of
small tiles, which is compiled soonest, and large ones another of large tiles. Both take every
layout, batch and epilogue. `python benchmarks/emulator.py --only products` measures them.
"""

from __future__ import annotations

from functools import lru_cache

from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

_SMALL = {"BM": 16, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4}
_LARGE = {"BM": 128, "BN": 128, "BK": 16, "WM": 32, "WN": 64, "TM": 8, "TN": 8}
# As fast, and compiled sooner, where the kernel is `typed`.
_LARGE_TYPED = {**_LARGE, "BM": 64, "BK": 8}
_COPIES = {"stages": 2, "interleave": 1, "order": 2}

# Multiply-adds from which a kernel of its own is worth two seconds of compiling, once a machine:
# it saves some tens of milliseconds of each such product.
_LARGE_FROM = 2**26
# How many times as long a multiply-add takes in small tiles as in large ones, padding included:
# 2 to 4 times were measured.
_RATIO = 2


@lru_cache(maxsize=512)
def choose_emulated(problem: GemmProblem) -> tuple[Kernel, TileConfig]:
    """The kernel and configuration in which the emulator computes a product soonest."""
    if problem.dtype == problem.out_dtype == "float32":
        kernel = find_kernel("gemm_tiled")
        return kernel, kernel.configure({**_tiles(problem, _LARGE), **_COPIES})
    kernel = find_kernel("typed")
    return kernel, kernel.configure(_tiles(problem, _LARGE_TYPED))


def grouped_tiles() -> TileConfig:
    """The configuration for products of different shapes."""
    return TileConfig(**_SMALL, **_COPIES)


def _tiles(problem: GemmProblem, large: dict[str, int]) -> dict[str, int]:
    """The large tiles where they are worth it, else the small ones."""
    work = problem.m * problem.n * problem.k * problem.batch
    if work >= _LARGE_FROM and _padded(problem, large) < _RATIO * _padded(problem, _SMALL):
        return large
    return _SMALL


def _padded(problem: GemmProblem, tiles: dict[str, int]) -> int:
    """Elements of all tiles of one product."""
    return -(-problem.m // tiles["BM"]) * tiles["BM"] * (-(-problem.n // tiles["BN"]) * tiles["BN"])
