r"""What results of any element types must be, and how far from it rounding may take them.

Sums are fp32 or fp64 with unit roundoff u, results are stored in a type with unit roundoff v. As
`bounds` derives it, what an activation gets is off by at most e = γ_n(u)·S, S being the sum of its
terms' magnitudes; of the halves by γ_n(2u)·S, for tensor cores cut sums off instead of rounding
them (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021). An
activation f here has |f(x)| ≤ |x| and a slope of at most `SLOPE`, and its own evaluation errs by at
most `EVALUATION` roundoffs of x: the error functions and exponentials of CUDA's mathematical
library are right to 2 units of the last place (CUDA Programming Guide, "Mathematical Functions
Appendix"), and what follows them adds a few. The scale and the residual round once each. Storing
adds v·|D|, or half the smallest subnormal number of the type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import Custom
from gemmkit.errors import UsageError
from gemmkit.problem import Dtype, GemmProblem
from gemmkit.verify.bounds import gamma

# By type, the unit roundoff and half the smallest subnormal number.
ROUNDOFF: Mapping[Dtype, tuple[float, float]] = {
    "float64": (2.0**-53, 0.0),
    "float32": (2.0**-24, 2.0**-150),
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
}
# Of the slope of GELU, which has the steepest.
SLOPE = 1.13
EVALUATION = 8

Exact = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TypedExpected:
    """Results of one product, `values` and what the activation gets, `before`: m × n each.

    `bounds` and `before_bounds` are how far results, and an auxiliary output, may lie from them.
    """

    values: Exact
    bounds: Exact
    before: Exact
    before_bounds: Exact


def encoded(values: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """Numbers as a type's nearest, by way of fp32 for bfloat16, whose bits come as uint16."""
    with np.errstate(over="ignore"):
        near = values.astype("float32" if dtype == "bfloat16" else dtype)
    if dtype != "bfloat16":
        return near
    bits = near.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(near), 0x7FC0, rounded).astype(np.uint16)


def decoded(stored: NDArray[Any], dtype: Dtype) -> NDArray[np.float64]:
    """What `encoded` made, as fp64 numbers."""
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float64)


def typed_reference(
    problem: GemmProblem,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    c: NDArray[np.float64] | None = None,
    bias: NDArray[np.float64] | None = None,
    residual: NDArray[np.float64] | None = None,
) -> TypedExpected:
    """What one product must be, computed with more precision than its sums have.

    Args:
        problem: types, α, β and the epilogue; layouts and leading dimensions do not matter.
        a, b: the numbers of A (m × k) and B (k × n).
        c, residual: those of C and the residual (m × n), where the problem has them.
        bias: one for each row or column.

    Raises:
        UsageError: the activation is the user's own, whose slope is unknown.
    """
    if isinstance(problem.epilogue.activation, Custom):
        raise UsageError("a custom activation has no known bound: compare it with your own")
    # For fp64 sums what the host has beyond that; elsewhere that is fp64 itself.
    kind: type[np.floating[Any]] = np.float64
    if problem.sum_dtype == "float64":
        kind = np.longdouble
    as_kernel = np.float64 if problem.sum_dtype == "float64" else np.float32
    alpha, beta, scale = (
        kind(as_kernel(each)) for each in (problem.alpha, problem.beta, problem.epilogue.scale)
    )
    before = np.zeros((problem.m, problem.n), kind)
    magnitude = before.copy()
    if alpha != 0 and problem.k:
        a, b = a.astype(kind), b.astype(kind)
        before += alpha * (a @ b)
        magnitude += abs(alpha) * (np.abs(a) @ np.abs(b))
    terms = [(beta, c)] if beta != 0 and c is not None else []
    if bias is not None:
        terms.append((kind(1), bias[:, None] if problem.epilogue.bias == "row" else bias))
    for factor, term in terms:
        before += factor * term
        magnitude += abs(factor * term)

    unit, tiny = ROUNDOFF[problem.sum_dtype]
    # Each term may be rounded when it is read, too: where fp64 is added to fp32 sums.
    roundings = (problem.k if alpha else 0) + len(terms) + 3
    # Tensor cores may cut off what others round.
    cut = 2 if problem.item_bytes == 2 else 1
    error = gamma(roundings, unit * cut) * magnitude + 2 * tiny * (problem.k * abs(alpha) + 2)
    values = scale * _ACTIVATIONS[problem.epilogue.activation](before)
    bounds = abs(scale) * (SLOPE * error + EVALUATION * unit * abs(before))
    if problem.epilogue.activation == "none":
        bounds = abs(scale) * (error + unit * abs(before))
    if residual is not None:
        values = values + residual
        bounds = bounds + 2 * unit * (abs(values) + abs(residual))
    return TypedExpected(
        values, _stored(problem, values, bounds), before, _stored(problem, before, error)
    )


def _stored(problem: GemmProblem, values: Exact, bounds: Exact) -> Exact:
    unit, tiny = ROUNDOFF[problem.out_dtype or problem.dtype]
    return np.asarray(bounds + unit * (abs(values) + bounds) + tiny)


def _elementwise(function: Callable[[float], float]) -> Callable[[Exact], Exact]:
    return lambda values: np.asarray(np.vectorize(function, otypes=[float])(values))


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x)) if x > -700 else 0.0


_ACTIVATIONS: Mapping[str, Callable[[Exact], Exact]] = {
    "none": lambda x: x,
    "relu": lambda x: np.where(x < 0, np.zeros_like(x), x),
    "gelu": _elementwise(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2),
    "gelu_tanh": _elementwise(
        lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "silu": _elementwise(_silu),
}
