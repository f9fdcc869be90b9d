"""Where the matrices of a problem are in memory: what is not given, and what is refused."""

from __future__ import annotations

from typing import Any

from gemmkit.errors import UnsupportedType, UsageError

BROADCAST = -1
"""The stride of an operand that all products of a batch share."""


def leading_dimensions(problem: Any) -> dict[str, int]:
    """The leading dimensions that are not given: the lengths of rows.

    Raises:
        UsageError: a given one is smaller than the row.
    """
    found = {}
    given = (("lda", problem.lda), ("ldb", problem.ldb), ("ldc", problem.ldc))
    for (name, own), row in zip(given, problem.tight, strict=True):
        if own == 0:
            found[name] = row
        elif own < row:
            raise UsageError(f"{name} = {own} is smaller than a row of {row} elements")
    return found


def batch_strides(problem: Any) -> dict[str, int]:
    """The strides of a batch as stored: 0 becomes the size of a matrix. A single product has none.

    Raises:
        UsageError: a stride is not a number of elements, or makes matrices of C overlap.
    """
    found = {}
    for name, tight in zip(("stride_a", "stride_b", "stride_c"), problem.pitched, strict=True):
        given: int = getattr(problem, name)
        shared = name != "stride_c"
        if given < 0 and not (shared and given == BROADCAST):
            allowed = f", or BROADCAST ({BROADCAST})" if shared else ": each product has its own C"
            raise UsageError(f"{name} = {given}: strides must be 0 (no gaps) or more{allowed}")
        found[name] = 0 if problem.batch <= 1 else given or tight
    if problem.batch > 1 and _overlaps(problem, found["stride_c"]):
        raise UsageError(
            f"stride_c = {found['stride_c']} makes the matrices of C overlap: use at least "
            f"{problem.pitched[2] - problem.ldc + problem.tight[2]} elements"
        )
    return found


def _overlaps(problem: Any, stride: int) -> bool:
    """Whether two products of the batch write the same element."""
    if not (problem.m and problem.n):
        return False
    size, columns = problem.pitched[2], problem.tight[2]
    apart = stride >= size - problem.ldc + columns
    row = (problem.batch - 1) * stride + columns
    inside = stride >= columns and (size == problem.ldc or row <= problem.ldc)
    return not (apart or inside)


def largest_of_groups(problem: Any, groups: Any) -> dict[str, object]:
    """The groups with leading dimensions, and the largest of all sizes.

    Raises:
        UsageError: the problem is also a batch, a given m, n or k differs, a leading dimension is
            smaller than the row, or ragged groups do not lie in rows.
    """
    if problem.batch != 1:
        raise UsageError(
            f"a batch of {problem.batch} groups: list the products of all, as {problem.shape}*COUNT"
        )
    if not hasattr(groups, "pitched"):
        raise UnsupportedType(
            f"groups = {groups!r} is of type {type(groups).__name__}: use "
            "GemmProblem.of_groups, which reads texts and lists"
        )
    if groups.ragged and (problem.transa or problem.transc):
        raise UsageError(
            f"layout {problem.layout}: ragged groups are rows of A and of C: use nn or nt"
        )
    groups = groups.pitched(problem.transposed)
    found: dict[str, object] = {"groups": groups}
    largest = zip(("m", "n", "k"), groups.largest, strict=True)
    pitches = (int(each) for each in groups.table[3:].max(axis=1, initial=1))
    for name, value in (*largest, *zip(("lda", "ldb", "ldc"), pitches, strict=True)):
        if getattr(problem, name) not in (0, value):
            raise UsageError(
                f"{name} = {getattr(problem, name)} beside groups, of which the largest has "
                f"{value}: leave it out"
            )
        found[name] = value
    return found
