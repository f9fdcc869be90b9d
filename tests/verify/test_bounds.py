import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem
from gemmkit.verify.bounds import Rounding, gamma, is_exact
from gemmkit.verify.inputs import Inputs, make_inputs


def test_gamma():
    assert gamma(1, 0.25) == pytest.approx(1 / 3)
    assert gamma(0, 0.25) == 0
    with pytest.raises(UsageError, match="no correct digit"):
        gamma(4, 0.25)


def test_bound_counts_every_rounding_and_grows_with_k():
    def relative(k, alpha=1.0, beta=0.0, bias=False):
        problem = GemmProblem(2, 2, k, alpha, beta, epilogue=Epilogue(bias))
        return Rounding.of(problem, make_inputs(problem)).relative / 2.0**-24

    assert relative(8) == pytest.approx(8, rel=1e-5)
    assert relative(8, alpha=0.3) == pytest.approx(9, rel=1e-5)
    assert relative(8, alpha=0.3, beta=0.7, bias=True) == pytest.approx(11, rel=1e-5)
    assert relative(8, alpha=0.0, beta=0.7) == pytest.approx(2, rel=1e-5)
    assert relative(4096) == pytest.approx(4096, rel=1e-3)


def test_exactness_follows_from_the_values():
    problem = GemmProblem(3, 3, 4, alpha=1.5, beta=-0.25, epilogue=Epilogue(bias=True))
    assert is_exact(problem, make_inputs(problem, kind="integer"))
    assert not is_exact(problem, make_inputs(problem, kind="normal"))
    thirds = GemmProblem(3, 3, 4, alpha=1 / 3)
    assert not is_exact(thirds, make_inputs(thirds, kind="integer"))


@pytest.mark.parametrize(("largest", "exact"), [(2**11, True), (2**11 + 1, False)])
def test_exactness_ends_at_24_bits(largest, exact):
    a = np.full(4, largest, np.float32)
    inputs = Inputs(a, a[:4] * 0 + 2**11, np.zeros(1, np.float32), None, "integer", 0)
    assert is_exact(GemmProblem(1, 1, 4), inputs) is exact


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_are_not_exact(bad):
    problem = GemmProblem(2, 2, 2)
    inputs = make_inputs(problem, kind="integer")
    inputs.a[1] = bad
    assert not is_exact(problem, inputs)


def test_too_many_roundings_are_refused():
    problem = GemmProblem(1, 1, 2**24)
    ones = np.full(2**24, 0.1, np.float32)
    with pytest.raises(UsageError, match="k is too large"):
        Rounding.of(problem, Inputs(ones, ones, np.zeros(1, np.float32), None, "normal", 0))


@st.composite
def sums(draw):
    """A short dot product of wildly scaled fp32 values, with α, β, C and bias."""
    scaled = st.builds(
        lambda fraction, exponent: np.float32(np.ldexp(np.float32(fraction), exponent)),
        st.floats(-1, 1, width=32),
        st.integers(-60, 30),
    )
    k = draw(st.integers(1, 5))
    values = draw(st.lists(scaled, min_size=2 * k + 4, max_size=2 * k + 4))
    return k, np.array(values, np.float32)


@settings(max_examples=150, deadline=None)
@given(sums(), st.booleans(), st.integers(0, 119))
def test_every_order_of_summation_stays_within_the_bound(case, scale_first, order):
    k, values = case
    a, b = values[:k], values[k : 2 * k]
    alpha, beta, c, bias = values[2 * k :]
    assume(alpha != 0)
    problem = GemmProblem(1, 1, k, float(alpha), float(beta), epilogue=Epilogue(bias=True))
    inputs = Inputs(a, b, values[2 * k + 2 : 2 * k + 3], values[2 * k + 3 :], "normal", 0)
    terms = [x * y * alpha if scale_first else x * y for x, y in zip(a, b, strict=True)]
    shuffled = next(itertools.islice(itertools.permutations(terms), order % 24, None), terms)
    total = np.float32(0)
    for term in shuffled:
        total = total + term
    if not scale_first:
        total = total * alpha
    result = (total + bias) + beta * c if order % 2 else (total + beta * c) + bias
    wide = values.astype(np.longdouble)
    exact = wide[2 * k] * (wide[:k] @ wide[k : 2 * k])
    exact += wide[2 * k + 1] * wide[2 * k + 2] + wide[2 * k + 3]
    magnitude = abs(wide[2 * k]) * (abs(wide[:k]) @ abs(wide[k : 2 * k]))
    magnitude += abs(wide[2 * k + 1] * wide[2 * k + 2]) + abs(wide[2 * k + 3])
    bound = Rounding.of(problem, inputs).before(np.array([float(magnitude)]))[0]
    assert abs(result - exact) <= bound
