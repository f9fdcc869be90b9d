"""Bounds of all types and epilogues hold for sums in every order, and are not vacuous."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem
from gemmkit.storage import further_layouts, layouts
from gemmkit.verify import Reference, encoding, make_inputs
from gemmkit.verify.bounds import is_exact
from gemmkit.verify.encoding import CANARIES, STORAGE, canaries, decode, encode, is_canary
from gemmkit.verify.inputs import matrices, residual_matrix
from gemmkit.verify.reference import ACTIVATIONS, evaluate

TYPES = ["float32", "float64", "float16", "bfloat16"]


def kernel(problem, inputs, order=None, change=lambda x: x):
    """C and the auxiliary output as a kernel might compute and store them."""
    sums = np.float64 if problem.sum_dtype == "float64" else np.float32
    a, b, c = (each[:].astype(sums) for each in matrices(problem, inputs))
    total = np.zeros((problem.m, problem.n), sums)
    for step in np.arange(problem.k) if order is None else order:
        total += np.outer(a[:, step], b[step])
    total *= sums(problem.alpha)
    if problem.beta:
        total += sums(problem.beta) * c
    bias = inputs.bias_numbers
    if bias is not None:
        total += bias[:, None] if problem.epilogue.bias == "row" else bias
    values = ACTIVATIONS[str(problem.epilogue.activation)](total.astype(float)).astype(sums)
    values = change(values * sums(problem.epilogue.scale))
    residual = residual_matrix(problem, inputs)
    if residual is not None:
        values = values + residual[:].astype(sums)
    stored = []
    for storage, layout, what in (
        (inputs.c, layouts(problem)[2], values),
        (inputs.auxiliary, further_layouts(problem)[1], total),
    ):
        if storage is not None:
            storage = storage.copy()
            layout.view(storage)[0] = encode(what, problem.result_dtype)
        stored.append(storage)
    return stored


EPILOGUES = [
    Epilogue(),
    Epilogue(bias="row", activation="gelu"),
    Epilogue(bias="column", activation="silu", residual=True),
    Epilogue(activation="gelu_tanh", scale=-1.75, auxiliary=True),
    Epilogue(activation="relu", scale=0.3, residual=True),
]


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_right_result_lies_within(dtype, epilogue):
    problem = GemmProblem(
        7, 9, 300, alpha=0.3, beta=-1.7, ldc=11, dtype=dtype, epilogue=epilogue, transb=True
    )
    inputs = make_inputs(problem, 1)
    reference = Reference(problem, inputs)
    for order in (np.arange(300), np.arange(300)[::-1]):
        verdict = reference.check(*kernel(problem, inputs, order))
        assert verdict.correct, verdict.detail
        assert 0 < verdict.error_ratio <= 1


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_lost_product_lies_outside(dtype, epilogue):
    problem = GemmProblem(7, 9, 30, dtype=dtype, epilogue=epilogue)
    inputs = make_inputs(problem, 2)
    verdict = Reference(problem, inputs).check(*kernel(problem, inputs, np.arange(29)))
    assert not verdict.correct
    assert verdict.error_ratio > 5
    assert verdict.diagnosis.wrong > (25 if epilogue.activation == "relu" else 40)


@pytest.mark.parametrize("dtype", TYPES)
def test_exact_sums_are_rounded_once(dtype):
    """Integers have one correct result: the next number up is wrong."""
    problem = GemmProblem(5, 6, 200, beta=2.0, dtype=dtype, epilogue=Epilogue(bias="row"))
    inputs = make_inputs(problem, kind="integer")
    reference = Reference(problem, inputs)
    result, _ = kernel(problem, inputs)
    assert reference.check(result).correct
    assert reference.check(result).error_bound == 0
    layouts(problem)[2].view(result)[0].view(CANARIES[dtype].dtype)[2, 3] += 1
    verdict = reference.check(result)
    assert not verdict.correct
    assert "C[2, 3]" in verdict.detail


@pytest.mark.parametrize(("name", "place"), [("residual", 0), ("auxiliary", 1)])
def test_epilogue_matrices_have_rows_of_their_own(name, place):
    problem = GemmProblem(
        3, 4, 5, ldc=6, epilogue=Epilogue(residual=True, auxiliary=True), batch=2, dtype="float16"
    )
    inputs = make_inputs(problem)
    layout = further_layouts(problem)[place]
    assert layout.ld not in (problem.ldc, problem.n)
    assert getattr(inputs, name).size == layout.size
    assert is_canary(layout.gaps(getattr(inputs, name)), "float16").all()
    part = getattr(inputs.of_product(problem, 1), name)
    assert part.size == layout.matrix_size
    assert np.shares_memory(part, getattr(inputs, name))


def test_a_wrong_auxiliary_output_is_found():
    problem = GemmProblem(4, 5, 6, epilogue=Epilogue(activation="silu", auxiliary=True))
    inputs = make_inputs(problem)
    reference = Reference(problem, inputs)
    result, auxiliary = kernel(problem, inputs)
    assert reference.check(result, auxiliary).correct
    verdict = reference.check(result, result)
    assert not verdict.correct
    assert verdict.detail.startswith("the auxiliary output[")


@pytest.mark.parametrize("epilogue", EPILOGUES[:1] + EPILOGUES[3:], ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_sampled_checks_of_all_types(dtype, epilogue):
    """Rows that are not sampled are checked too, if the epilogue is linear or a ReLU."""
    problem = GemmProblem(60, 50, 40, dtype=dtype, epilogue=epilogue, beta=0.5)
    inputs = make_inputs(problem, kind="integer")
    reference = Reference(problem, inputs, "sampled")
    result, auxiliary = kernel(problem, inputs)
    verdict = reference.check(result, auxiliary)
    assert verdict.correct, verdict.detail
    linear = epilogue.activation in ("none", "relu")
    assert ("Freivalds" in verdict.method) == linear

    def halved(values):
        changed = values.copy()
        changed[::2] *= np.float32(0.5)
        return changed

    assert not reference.check(*kernel(problem, inputs, change=halved)).correct


def test_fp64_results_are_compared_with_more_than_fp64():
    rng = np.random.default_rng(0)
    problem = GemmProblem(6, 5, 2000, dtype="float64", alpha=-0.7)
    inputs = make_inputs(problem, int(rng.integers(100)))
    a, b = (each[:].astype(np.longdouble) for each in matrices(problem, inputs)[:2])
    best = np.longdouble(-0.7) * (a @ b)
    expected = evaluate(problem, inputs)
    unit = 2.0**-53
    assert np.all(abs(expected.values - best) <= 6 * unit * expected.magnitude)
    plain = -0.7 * (a.astype(float) @ b.astype(float))
    assert abs(expected.values - best).max() < abs(plain - best).max()


def test_stored_results_may_be_off_by_half_a_unit_of_their_type():
    problem = GemmProblem(1, 1, 3, dtype="float16", alpha=0.3)
    inputs = make_inputs(problem)
    reference = Reference(problem, inputs)
    rounding = reference.products[0].rounding
    bound = rounding.kept(np.array([2049.0]), np.array([0.0]))
    assert 1.0 <= bound[0] < 1.01


def test_overflow_of_a_narrow_result_is_no_error():
    problem = GemmProblem(2, 2, 3, dtype="float16", alpha=60000.0)
    inputs = make_inputs(problem)
    with np.errstate(over="ignore"):
        result, _ = kernel(problem, inputs)
    assert np.isinf(result).any()
    assert Reference(problem, inputs).check(result).correct


def test_encoding_rounds_to_nearest_even():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1e39, np.nan])
    seen = decode(encode(values, "bfloat16"), "bfloat16")
    assert np.array_equal(seen, [1.0, 1.0, 1 + 2.0**-6, -np.inf, np.nan], equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_canaries_are_signaling_nans(dtype):
    marked = canaries(3, dtype)
    assert marked.dtype == STORAGE[dtype]
    assert is_canary(marked, dtype).all()
    assert np.isnan(decode(marked, dtype)).all()
    with np.errstate(invalid="ignore"):
        assert not is_canary(encode(decode(marked, dtype) * 1, dtype), dtype).any()


def test_custom_activations_have_no_bound():
    problem = GemmProblem(1, 1, 1, epilogue=Epilogue.custom("x * x"))
    with pytest.raises(UsageError, match="no known error bound"):
        Reference(problem, make_inputs(replace(problem, epilogue=Epilogue())))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_only_what_is_compared_is_decoded(monkeypatch, dtype):
    problem = GemmProblem(96, 80, 64, dtype=dtype, out_dtype=dtype)
    inputs = make_inputs(problem, seed=1)
    decoded: list[int] = []

    def counting(stored, dtype):
        decoded.append(stored.size)
        return decode(stored, dtype)

    monkeypatch.setattr(encoding, "decode", counting)
    expected = evaluate(problem, inputs, np.array([0, 95]))
    assert expected.values.shape == (2, 80)
    assert sorted(decoded) == [2 * 64, 64 * 80]  # two rows of A, all of B, nothing of C
    decoded.clear()
    assert is_exact(problem, make_inputs(problem, 1, "integer"))
    assert sum(decoded) <= 2 * (96 * 64 + 64 * 80)  # nothing of C, since β is 0
