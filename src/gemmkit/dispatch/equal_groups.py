"""`as_batch`: groups of equal products as the batch that they are."""

from __future__ import annotations

from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import VECTOR_BYTES


def as_batch(problem: GemmProblem) -> GemmProblem | None:
    """The strided batch that corresponds to groups of equal products, with their alignment; or
    None."""
    groups = problem.groups
    if groups is None or not groups.count or (groups.table[:3] != groups.table[:3, :1]).any():
        return None
    aligned = problem.is_aligned(VECTOR_BYTES)
    m, n, k = groups.largest
    return GemmProblem(
        *(m, n, k),
        alpha=problem.alpha,
        beta=problem.beta,
        # A leading dimension that no vector divides marks them as unaligned.
        lda=0 if aligned else 4 * max(m, k) + 1,
        epilogue=problem.epilogue,
        batch=groups.count,
        transa=problem.transa,
        transb=problem.transb,
        transc=problem.transc,
        dtype=problem.dtype,
        out_dtype=problem.out_dtype,
        precision=problem.precision,
        scales=problem.scales,
    )
