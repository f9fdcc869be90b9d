"""Which kernel a product of host arrays runs where there is no GPU: the fastest on the emulator.

A board's figures say nothing here. What costs time is the number of warp instructions for each
multiply-add, and the first time of a kernel its compilation: so small products share one kernel of
small tiles, which is compiled soonest, and large ones another of large tiles. Both take every
layout, batch and epilogue. `python benchmarks/emulator.py --only products` measures them.
"""

from __future__ import annotations

from functools import lru_cache

from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

_SMALL = {"BM": 16, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4}
_LARGE = {"BM": 128, "BN": 128, "BK": 16, "WM": 32, "WN": 64, "TM": 8, "TN": 8}
_COPIES = {"stages": 2, "bursts": 1, "order": 2}

# Multiply-adds from which a kernel of its own is worth two seconds of compiling, once a machine:
# it saves some tens of milliseconds of each such product.
_LARGE_FROM = 2**26
# Times that a multiply-add of the small tiles takes, padding included, of one of the large ones.
_RATIO = 3


@lru_cache(maxsize=512)
def choose_emulated(problem: GemmProblem) -> tuple[Kernel, TileConfig]:
    """The kernel and configuration in which the emulator computes a product soonest."""
    if problem.dtype == problem.out_dtype == "float32":
        kernel = find_kernel("async_copy")
        tiles = _LARGE if _is_large(problem) else _SMALL
        return kernel, kernel.configure({**tiles, **_COPIES})
    kernel = find_kernel("typed")
    return kernel, kernel.configure(_SMALL)


def grouped_tiles() -> TileConfig:
    """The configuration for products of different shapes."""
    return TileConfig(**_SMALL, **_COPIES)


def _is_large(problem: GemmProblem) -> bool:
    work = problem.m * problem.n * problem.k * problem.batch
    if work < _LARGE_FROM:
        return False
    return _padded(problem, _LARGE) < _RATIO * _padded(problem, _SMALL)


def _padded(problem: GemmProblem, tiles: dict[str, int]) -> int:
    """Elements of all tiles of one product."""
    return -(-problem.m // tiles["BM"]) * tiles["BM"] * (-(-problem.n // tiles["BN"]) * tiles["BN"])
