"""What an error bound is made of: operands, products, sums on tensor cores, sums in fp32.

Each part is a fraction of S = Σ|a||b| in units of u, the unit roundoff of the sums' type; `bounds`,
`arithmetic`, `truncation` and `split_products` derive them. The parts add up to the bound, but for
products of two of them, which are far smaller where the bound is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gemmkit.problem import GemmProblem
from gemmkit.verify.arithmetic import FP32_FORMAT, Arithmetic, Rounded
from gemmkit.verify.bounds import gamma
from gemmkit.verify.encoding import ELEMENTS
from gemmkit.verify.split_products import (
    OF_ALL,
    OF_LOW,
    SplitProducts,
    lost_in_sums,
    of_chunk,
)

IN_ALL = "All together"
# Of operands in two parts: the roundings of both, and low · low, which is left out.
_OF_PARTS, _OF_LOW_PRODUCTS = 4 * FP32_FORMAT.unit, 4 * FP32_FORMAT.unit


@dataclass(frozen=True, slots=True)
class ErrorPart:
    """One part of an error bound: `units` of u, of S unless the name says of what."""

    name: str
    units: float


def error_budget(problem: GemmProblem, arithmetic: Arithmetic) -> tuple[ErrorPart, ...]:
    """The parts of the bound of a product in some arithmetic, and what they add up to (`IN_ALL`).

    α, β, bias and activation are left out: they add the roundings that they add in any arithmetic.
    A requested tolerance is the only part. Without a k there is none.

    Raises:
        UsageError: k is so large that sums have no correct digit.
    """
    if not problem.k:
        return ()
    sums, result = ELEMENTS[problem.sum_dtype], ELEMENTS[problem.result_dtype]
    found = [(name, part) for name, part in _parts(problem, arithmetic) if part]
    if arithmetic.of_lines:
        found.append(("Underflow of parts, of X·Σ|b| + Y·Σ|a|", arithmetic.of_lines))
    if result.bits < sums.bits:
        found.append(("Rounding to the type of C, of the result", result.unit))
    return tuple(ErrorPart(name, part / sums.unit) for name, part in found)


def _parts(problem: GemmProblem, arithmetic: Arithmetic) -> Iterator[tuple[str, float]]:
    if arithmetic.tolerance is not None:
        yield "Tolerance, as requested", arithmetic.tolerance
        return
    k, sums = problem.k, ELEMENTS[problem.sum_dtype]
    if arithmetic.split is not None:
        yield from _of_split(arithmetic.split, k)
        yield IN_ALL, arithmetic.split.relative(k)
        return
    for each in arithmetic.rounded:
        yield _name(each), math.expm1(min(each.count(k) * math.log1p(each.unit), 700.0))
    if arithmetic.tensor is not None:
        lost = arithmetic.tensor.logarithm(min(k, arithmetic.promoted or k))
        yield "Sums on tensor cores, truncated", math.expm1(min(lost, 700.0))
    rounded = gamma(k, sums.unit * arithmetic.widening)
    yield f"Sums in {'fp64' if sums.bits > FP32_FORMAT.bits else 'fp32'}", rounded
    yield IN_ALL, arithmetic.relative(k, rounded)


def _name(rounded: Rounded) -> str:
    if rounded.parts > 1:
        return f"Operands in two parts of {rounded.format.name}"
    what = "Sums" if rounded.block else "Operands"
    return f"{what} {'cut off' if rounded.cut else 'rounded'} to {rounded.format.name}"


def _of_split(split: SplitProducts, k: int) -> Iterator[tuple[str, float]]:
    """As in the docstring of `split_products`, for the length of chunks with the largest bound."""
    chunk = max(
        split.chunks,
        key=lambda each: of_chunk(min(k, each), split.rules) + split.in_fp32(k, each),
    )
    cut, truncated = lost_in_sums(min(k, chunk), split.rules)
    yield "Operands in two parts", _OF_PARTS
    yield "Products of two low parts, left out", _OF_LOW_PRODUCTS
    yield "Products with a low part", 2 * OF_LOW * (cut + truncated)
    yield "Other products on tensor cores, cut off", OF_ALL * cut
    yield "Their sums on tensor cores, truncated", OF_ALL * truncated
    yield "Sums of chunks in fp32", split.in_fp32(k, chunk)
