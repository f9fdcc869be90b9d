"""Smaller problems that represent a large one, for short emulated runs of a kernel.

A kernel for square matrices gets a smaller square. A user's kernel gets contiguous rows if the
problem has them, because it may use an extent as the leading dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gemmkit.dtypes import PRECISIONS
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, Signature, TileConfig
from gemmkit.problem import GemmProblem

# Rows and columns of C in the short runs: at most twice this, congruent to the problem's.
_PERIOD = 256
# A multiple of most kernels' step along k: depths this far apart differ by whole steps.
STEP = 64
# A few tiles deep: enough for a whole step of every kernel's loop.
TRACED_DEPTH = 64
# The same if A's rows are as long as K, so that a smaller K changes their distance.
TRACED_DEPTH_TIGHT = 256
# More rows than the first block of any kernel has, to save memory with large matrices.
TRACED_ROWS = 1024
# The same for a kernel for square matrices, whose columns shrink too.
TRACED_SQUARE = 512


def takes_squares_only(
    kernel: Kernel, problem: GemmProblem, config: TileConfig, gpu: GpuSpec
) -> bool:
    """Whether a kernel accepts this square problem, but not with k halved or doubled."""
    if not kernel.user_defined or not problem.m == problem.n == problem.k:
        return False
    try:
        kernel.plan(_tight(problem, problem.m, problem.n, 2 * problem.k), config, gpu)
    except UnsupportedProblem:
        return True
    return False


def short_runs(
    problem: GemmProblem, tiles: float, kernel: Kernel, *, square: bool, apart: int = STEP
) -> tuple[GemmProblem, GemmProblem]:
    """Two problems that differ in depth, or the same one twice if the problem is small.

    Args:
        problem: the problem that they represent.
        tiles: tiles of C per block; if blocks share tiles, k is deeper, so that each has steps.
        kernel: the kernel.
        square: whether it accepts only square matrices.
        apart: a multiple of the kernel's step along k.
    """
    if square:
        rest = problem.k % _PERIOD
        if problem.k <= 2 * _PERIOD + rest:
            return problem, problem
        less, more = _PERIOD + rest, 2 * _PERIOD + rest
        return _tight(problem, less, less, less), _tight(problem, more, more, more)
    rest, step = problem.k % STEP, apart * math.ceil(1 / tiles)
    if problem.k <= 2 * step + rest:
        depths = problem.k, problem.k
    else:
        depths = step + rest, 2 * step + rest
    low, high = (_cut(problem, depth, kernel) for depth in depths)
    return low, high


def with_depth(problem: GemmProblem, depth: int, kernel: Kernel) -> GemmProblem:
    """A problem of this depth, with as few rows and columns as those of `short_runs`."""
    return _cut(problem, depth, kernel)


def shallow(problem: GemmProblem, plan: LaunchPlan, block: int, *, user: bool) -> GemmProblem:
    """The problem for one traced block.

    The depth is reduced to `TRACED_DEPTH` with the same leading dimension of A, or to
    `TRACED_DEPTH_TIGHT` if that equals k; for the first block also m, to `TRACED_ROWS`.
    """
    m = min(problem.m, TRACED_ROWS) if block == 0 else problem.m
    lda, ldb, ldc = _kept_rows(problem, plan.signature, user=user)
    k = min(problem.k, TRACED_DEPTH if lda else TRACED_DEPTH_TIGHT)
    return _changed(problem, m=m, k=k, lda=lda, ldb=ldb, ldc=ldc)


def shallow_square(problem: GemmProblem) -> GemmProblem:
    """The same for a kernel that accepts only square matrices, for the first block."""
    extent = min(problem.k, TRACED_SQUARE + problem.k % _PERIOD)
    return _tight(problem, extent, extent, extent)


def _cut(problem: GemmProblem, depth: int, kernel: Kernel) -> GemmProblem:
    """The same with fewer rows, columns and steps of k.

    Leading dimensions are kept if a rung receives them as arguments, or if rows are padded.
    """

    def clip(extent: int) -> int:
        return extent if extent <= 2 * _PERIOD else _PERIOD + extent % _PERIOD

    lda, ldb, ldc = _kept_rows(problem, kernel.signature, user=kernel.user_defined)
    m, n = clip(problem.m), clip(problem.n)
    return _changed(problem, m=m, n=n, k=depth, lda=lda, ldb=ldb, ldc=ldc)


def _kept_rows(problem: GemmProblem, signature: Signature, *, user: bool) -> tuple[int, int, int]:
    """The leading dimensions that are kept when extents shrink, 0 for contiguous rows."""

    def kept(name: str, tight: int) -> int:
        given: int = getattr(problem, name)
        return 0 if name not in signature or (user and given == tight) else given

    lda, ldb, ldc = problem.tight
    return kept("lda", lda), kept("ldb", ldb), kept("ldc", ldc)


def _tight(problem: GemmProblem, m: int, n: int, k: int) -> GemmProblem:
    return _changed(problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0)


def _changed(problem: GemmProblem, **sizes: Any) -> GemmProblem:
    """The same with other sizes, in the lowest precision: what a kernel promises of its errors may
    rest on a k that is not so short, and does not matter here."""
    lowest = PRECISIONS[-1] if problem.dtype == "float32" else problem.precision
    return replace(problem, precision=lowest, **sizes)
