"""The bounds of results of other types hold for sums in every order, and are not idle."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem
from gemmkit.verify.typed import decoded, encoded, typed_reference


def operands(problem, seed):
    rng = np.random.default_rng(seed)
    shapes = ((problem.m, problem.k), (problem.k, problem.n), (problem.m, problem.n))
    dtypes = (problem.dtype, problem.dtype, problem.out_dtype)
    return [
        decoded(encoded(rng.standard_normal(shape), dtype), dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float32"])
def test_a_right_result_lies_within(dtype):
    problem = GemmProblem(7, 9, 300, alpha=0.3, beta=-1.7, dtype=dtype)
    a, b, c = operands(problem, 1)
    expected = typed_reference(problem, a, b, c)
    sums = np.float64 if dtype == "float64" else np.float32
    for order in (np.arange(300), np.arange(300)[::-1]):
        total = np.zeros((7, 9), sums)
        for p in order:
            total += np.outer(a[:, p], b[p]).astype(sums)
        result = sums(0.3) * total + sums(-1.7) * c.astype(sums)
        stored = decoded(encoded(result, dtype), dtype)
        assert np.all(abs(stored - expected.values) <= expected.bounds)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_a_lost_product_lies_outside(dtype):
    problem = GemmProblem(7, 9, 30, dtype=dtype)
    a, b, _ = operands(problem, 2)
    expected = typed_reference(problem, a, b)
    lost = typed_reference(problem, a[:, 1:], b[1:]).values
    assert np.mean(abs(lost - expected.values) > expected.bounds) > 0.9


def test_stored_results_may_be_off_by_half_a_unit_of_their_type():
    problem = GemmProblem(1, 1, 1, dtype="float16")
    expected = typed_reference(problem, np.array([[2049.0]]), np.array([[1.0]]))
    assert 1.0 <= expected.bounds[0, 0] < 1.01


def test_encoding_rounds_to_nearest_even():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1e39, np.nan])
    seen = decoded(encoded(values, "bfloat16"), "bfloat16")
    assert np.array_equal(seen, [1.0, 1.0, 1 + 2.0**-6, -np.inf, np.nan], equal_nan=True)


def test_custom_activations_have_no_bound():
    problem = GemmProblem(1, 1, 1, epilogue=Epilogue.custom("x * x"))
    with pytest.raises(UsageError, match="no known bound"):
        typed_reference(problem, np.ones((1, 1)), np.ones((1, 1)))
