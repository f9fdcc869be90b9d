"""`choose_ragged`: a configuration for one A whose rows are divided among groups.

How they are divided is not known, or other at each call: what suits a spread of sizes around their
mean is taken, as estimated for the kernel of groups with the same mainloop.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import chain
from math import log2

import numpy as np

from gemmkit.dispatch.alike import STEP_LOG2
from gemmkit.dispatch.choose import dispatcher
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.groups import Groups
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.production import grouped_wgmma, ragged_wgmma
from gemmkit.problem import GemmProblem
from gemmkit.trials import changes

# The smallest and the largest group, of the mean.
SPREAD = (0.5, 1.5)


def choose_ragged(problem: GemmProblem, gpu: GpuSpec) -> TileConfig | None:
    """The configuration of `ragged_wgmma` for a problem as `ragged_problem` makes it; None if it
    does not take the problem.

    It is the same for all numbers of rows of one `row_class`: those whose mean in a group rounds to
    the same power of 2^(1/2).
    """
    if ragged_wgmma.KERNEL.accepts(problem, gpu) is not None or not problem.results:
        return None
    step = row_class(problem.m, problem.batch)
    rows = max(1, round(2 ** (step * STEP_LOG2) * problem.batch))
    return _chosen(replace(problem, m=rows, stride_c=0), gpu, changes.count)


def row_class(rows: int, groups: int) -> int:
    """Which numbers of rows have the same configuration; there must be some rows."""
    return round(log2(rows / groups) / STEP_LOG2)


@lru_cache(maxsize=1024)
def _chosen(problem: GemmProblem, gpu: GpuSpec, _: int) -> TileConfig | None:
    """The same, for a problem with the number of rows that stands for others."""
    own, alike = dispatcher(gpu), spread(problem)
    try:
        choice = own.choose(alike)
    except UnsupportedProblem:
        return None
    ranked = ((each.costed.kernel, each.costed.config) for each in own.ranked(alike))
    for kernel, config in chain([(choice.kernel, choice.config)], ranked):
        if kernel is grouped_wgmma.KERNEL and (
            ragged_wgmma.KERNEL.supports(problem, config, gpu) is None
        ):
            return config
    return None


def spread(problem: GemmProblem) -> GemmProblem:
    """Groups of sizes around the mean of a ragged product, each with a matrix of its own."""
    count = problem.batch
    shares = np.linspace(*SPREAD, 2 * count + 1)[1::2] * (problem.m / count)
    m = np.diff(np.rint(np.cumsum(np.concatenate([[0.0], shares]))).astype(np.int64))
    groups = Groups.of(m, problem.n, problem.k, problem.lda, problem.ldb, problem.ldc)
    return GemmProblem.of_groups(
        groups,
        alpha=problem.alpha,
        beta=problem.beta,
        epilogue=problem.epilogue,
        transb=problem.transb,
        dtype=problem.dtype,
        out_dtype=problem.out_dtype,
        precision=problem.precision,
        alignment=problem.alignment,
    )
