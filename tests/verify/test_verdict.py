import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.storage import layouts, matrix
from gemmkit.verify import Reference, check, make_inputs
from gemmkit.verify import verdict as verdict_module
from gemmkit.verify.encoding import canaries
from gemmkit.verify.inputs import Inputs

EPILOGUES = [Epilogue.parse(text) for text in ("none", "bias", "relu", "bias+relu")]
PROBLEM = GemmProblem(37, 53, 61, 1.5, -0.3, lda=64, ldb=60, ldc=57, epilogue=EPILOGUES[3])


def parts(problem, inputs):
    a = matrix(inputs.a, problem.m, problem.k, problem.lda)
    b = matrix(inputs.b, problem.k, problem.n, problem.ldb)
    c = matrix(inputs.c, problem.m, problem.n, problem.ldc)
    return a, b, c


def finish(problem, inputs, product):
    """C's storage after fp32 write-back of an fp32 product, by the BLAS rules."""
    value = np.float32(problem.alpha) * product
    if problem.alpha == 0:
        value = np.zeros_like(product)
    if problem.beta != 0:
        value = value + np.float32(problem.beta) * parts(problem, inputs)[2]
    if inputs.bias is not None:
        value = value + inputs.bias
    if problem.epilogue.activation == "relu":
        value = np.maximum(value, np.float32(0))
    result = inputs.c.copy()
    matrix(result, problem.m, problem.n, problem.ldc)[:] = value
    return result


def library(a, b):
    return np.ascontiguousarray(a) @ np.ascontiguousarray(b)


def one_after_another(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for p in range(a.shape[1]):
        total += a[:, p : p + 1] * b[p]
    return total


def backwards(a, b):
    return one_after_another(a[:, ::-1], b[::-1])


def in_splits(a, b):
    cuts = np.array_split(np.arange(a.shape[1]), 4)
    return sum(one_after_another(a[:, cut], b[cut]) for cut in cuts)


ORDERS = [library, one_after_another, backwards, in_splits]


def right(problem, inputs, order=library):
    return finish(problem, inputs, order(*parts(problem, inputs)[:2]))


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("kind", ["normal", "integer"])
@pytest.mark.parametrize("order", ORDERS)
def test_right_results_pass_in_any_order(order, kind, epilogue):
    problem = GemmProblem(37, 53, 61, 1.5, -0.25, lda=64, ldc=57, epilogue=epilogue)
    inputs = make_inputs(problem, 7, kind)
    for method in ("full", "sampled"):
        verdict = check(problem, inputs, right(problem, inputs, order), method)
        assert verdict.correct, verdict.detail
        assert verdict.error_ratio <= 1
        assert verdict.detail == ""
        if kind == "integer":
            assert verdict.max_error == verdict.error_bound == 0
        else:
            assert verdict.max_error > 0


@pytest.mark.parametrize("k", [1, 64, 1024])
def test_random_errors_stay_far_below_the_bound(k):
    problem = GemmProblem(32, 32, k)
    inputs = make_inputs(problem)
    verdict = check(problem, inputs, right(problem, inputs, one_after_another))
    assert verdict.correct
    assert verdict.error_ratio < 2 / np.sqrt(k)


def spoil(name, problem, reference, result):
    """A wrong result made from a correct one; the storage is changed in place."""
    c = matrix(result, problem.m, problem.n, problem.ldc)
    product = reference.products[0]
    bound = product.rounding.before(product.blocks[0][2].magnitude)
    place = 20, 31
    if name == "four bounds off":
        place = np.unravel_index(np.argmax(c), c.shape)
        c[place] += 4 * bound[place]
    elif name == "swapped rows":
        c[[4, 9]] = c[[9, 4]]
    elif name == "unwritten":
        c[place] = canaries(1)[0]
    elif name == "padding written":
        result[problem.ldc - 1] = 0.0
    elif name == "padding NaN of another payload":
        result[problem.ldc - 1] = np.nan
    elif name == "transposed tile":
        c[:32, :32] = c[:32, :32].T.copy()
    else:
        c[place] = float(name)


WRONG = [
    *("four bounds off", "swapped rows", "unwritten", "transposed tile", "nan", "inf", "-inf"),
    *("padding written", "padding NaN of another payload"),
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("beta", [0.0, -0.3])
def test_wrong_results_are_caught(wrong, beta):
    problem = GemmProblem(37, 53, 61, 1.5, beta, ldc=57)
    inputs = make_inputs(problem, 5)
    reference = Reference(problem, inputs, "full")
    result = right(problem, inputs)
    assert reference.check(result).correct
    spoil(wrong, problem, reference, result)
    verdict = reference.check(result)
    assert not verdict.correct
    assert "seed 5" in verdict.detail
    if "padding" in wrong:
        assert "padding" in verdict.detail
        assert verdict.error_ratio <= 1
    else:
        assert verdict.error_ratio > 1
        assert ("never written" in verdict.detail) is (wrong == "unwritten")


def test_detail_names_the_element():
    problem = GemmProblem(4, 4, 2)
    inputs = make_inputs(problem, 11, "integer")
    result = right(problem, inputs)
    result[4 * 2 + 3] += 1
    verdict = check(problem, inputs, result)
    assert verdict.detail.startswith("C[2, 3] is ")
    assert "integer inputs, seed 11" in verdict.detail
    assert verdict.max_error == 1
    assert verdict.error_bound == 0
    assert verdict.error_ratio == np.inf


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_exact_inputs_show_any_unsampled_element(epilogue):
    problem = GemmProblem(90, 110, 40, 2.0, -1.0, epilogue=epilogue)
    inputs = make_inputs(problem, 1, "integer")
    reference = Reference(problem, inputs, "sampled")
    assert "Freivalds" in reference.method
    (rows, _, _), (_, columns, _) = reference.products[0].blocks
    assert reference.check(right(problem, inputs)).correct
    rng = np.random.default_rng(0)
    for _ in range(40):
        row = rng.choice(np.setdiff1d(np.arange(90), rows))
        column = rng.choice(np.setdiff1d(np.arange(110), columns))
        result = right(problem, inputs)
        result[row * 110 + column] += rng.choice((-1, 1))
        verdict = reference.check(result)
        assert not verdict.correct
        assert verdict.detail.startswith(f"C[{row}, {column}]")


def test_freivalds_shows_a_missing_product_in_normal_inputs():
    problem = GemmProblem(400, 300, 50)
    inputs = make_inputs(problem, 2)
    reference = Reference(problem, inputs, "sampled")
    (rows, _, _), (_, columns, _) = reference.products[0].blocks
    row = np.setdiff1d(np.arange(400), rows)[5]
    column = np.setdiff1d(np.arange(300), columns)[7]
    a, b, _ = parts(problem, inputs)
    result = right(problem, inputs)
    result[row * 300 + column] -= a[row, 3] * b[3, column]
    assert not reference.check(result).correct
    result[row * 300 + column] = np.nan
    assert not reference.check(result).correct


def test_sampled_rows_and_columns_show_small_errors():
    problem = GemmProblem(200, 100, 50)
    inputs = make_inputs(problem, 2)
    reference = Reference(problem, inputs, "sampled")
    (rows, _, across), (_, columns, down) = reference.products[0].blocks
    assert {0, 199} <= set(rows)
    assert {0, 99} <= set(columns)
    for row, column, magnitude in (
        (rows[3], 40, across.magnitude[3, 40]),
        (40, columns[3], down.magnitude[40, 3]),
    ):
        result = right(problem, inputs)
        result[row * 100 + column] += 4 * reference.products[0].rounding.relative * magnitude
        assert not reference.check(result).correct


def test_relu_of_mixed_signs_is_sampled_only():
    problem = GemmProblem(50, 60, 10, epilogue=Epilogue.parse("relu"))
    assert "Freivalds" not in Reference(problem, make_inputs(problem), "sampled").method


def test_large_problems_are_sampled(monkeypatch):
    assert verdict_module.FULL_LIMIT >= 2**30
    # A limit so much lower that the small problem is compared in milliseconds.
    monkeypatch.setattr(verdict_module, "FULL_LIMIT", 2**26)
    side = 2 ** ((26 - 10) // 2)
    small = GemmProblem(side, side, 4)
    large = GemmProblem(side, 2 * side, 4)
    for problem, method in ((small, "every element"), (large, "16 rows and 16 columns")):
        inputs = make_inputs(problem, kind="integer")
        verdict = check(problem, inputs, right(problem, inputs))
        assert verdict.correct
        assert verdict.method.startswith(method)


@pytest.mark.parametrize(
    ("shape", "alpha", "beta"),
    [
        ((0, 5, 3), 1.0, 0.0),
        ((5, 0, 3), 1.0, 1.0),
        ((5, 4, 0), 1.0, 0.5),
        ((5, 4, 0), 1.0, 0.0),
        ((5, 4, 3), 0.0, 0.5),
        ((1, 1, 1), 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("method", ["full", "sampled"])
def test_blas_rules_for_empty_and_zero(shape, alpha, beta, method):
    problem = GemmProblem(*shape, alpha, beta)
    inputs = make_inputs(problem)
    if alpha == 0:
        inputs.a[:] = np.nan
        inputs.b[:] = np.inf
    verdict = check(problem, inputs, right(problem, inputs), method)
    assert verdict.correct, verdict.detail
    if inputs.c.size:
        assert not check(problem, inputs, np.full_like(inputs.c, np.nan), method).correct


def test_a_result_of_another_size_is_refused():
    problem = GemmProblem(3, 3, 3)
    with pytest.raises(ValueError, match="10 elements"):
        check(problem, make_inputs(problem), np.zeros(10, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", ["full", "sampled"])
def test_non_finite_inputs_must_spread_as_arithmetic_spreads_them(bad, method):
    problem = GemmProblem(20, 20, 6)
    inputs = make_inputs(problem)
    inputs.a[6 * 3 + 2] = bad
    with np.errstate(all="ignore"):
        result = right(problem, inputs)
    assert check(problem, inputs, result, method).correct
    hidden = result.copy()
    hidden[20 * 3 + 4] = 1.0
    assert not check(problem, inputs, hidden, "full").correct
    flipped = np.where(np.isinf(result), -result, np.nan_to_num(result, nan=np.inf))
    assert not check(problem, inputs, flipped.astype(np.float32), method).correct
    elsewhere = result.copy()
    elsewhere[0] = bad
    assert not check(problem, inputs, elsewhere, method).correct


def lone(a, b, alpha=1.0, relu=False):
    """A 1×1 problem with given rows."""
    epilogue = Epilogue(False, "relu" if relu else "none")
    a, b = np.array(a, np.float32), np.array(b, np.float32)
    problem = GemmProblem(1, 1, a.size, alpha, epilogue=epilogue)
    return problem, Inputs(a, b, canaries(1), None, "normal", 0)


@pytest.mark.parametrize(
    ("case", "value", "passes"),
    [
        (lone([1e30], [1e30]), np.inf, True),
        (lone([1e30], [1e30]), -np.inf, False),
        (lone([1e30], [1e30]), np.nan, False),
        (lone([1e30], [1e30]), 3.4e38, False),
        (lone([1e30, -1e30], [1e30, 1e30]), np.nan, True),
        (lone([1e30, -1e30], [1e30, 1e30]), 0.0, True),
        (lone([1e30], [1e30], alpha=1e-30), np.inf, True),
        (lone([1e30], [1e30], alpha=1e-30), 1e30, True),
        (lone([1e15], [1e15]), np.inf, False),
        (lone([-1e30], [1e30], relu=True), 0.0, True),
        (lone([-1e30], [1e30], relu=True), np.inf, False),
        (lone([np.nan], [1.0], relu=True), np.nan, True),
        (lone([np.nan], [1.0], relu=True), 0.0, True),
        (lone([np.nan], [1.0], relu=True), 1.0, False),
    ],
)
def test_overflow_and_nan_by_arithmetic(case, value, passes):
    problem, inputs = case
    assert check(problem, inputs, np.array([value], np.float32)).correct is passes


def test_tiny_products_may_underflow():
    problem, inputs = lone([1e-28] * 3, [1e-15] * 3)
    total = np.float32(0)
    for _ in range(3):
        total += np.float32(1e-28) * np.float32(1e-15)
    assert check(problem, inputs, np.array([total], np.float32)).correct
    assert not check(problem, inputs, np.array([0.0], np.float32)).correct


def test_sampled_method_falls_back_when_sums_may_overflow():
    problem = GemmProblem(40, 40, 4, alpha=1e38)
    inputs = make_inputs(problem)
    with np.errstate(all="ignore"):
        result = right(problem, inputs)
    reference = Reference(problem, inputs, "sampled")
    assert "Freivalds" not in reference.method
    assert reference.check(result).correct


BATCH = GemmProblem(6, 5, 9, beta=0.5, batch=3, ldc=7, stride_c=44, stride_b=BROADCAST)


def batched_result(problem, inputs):
    """A right result in C's storage, product by product."""
    result, (m, n), ldc = inputs.c.copy(), (problem.m, problem.n), problem.ldc
    for number, c in enumerate(layouts(problem)[2].view(result)):
        one = right(problem.single, inputs.of_product(problem, number))
        c[:] = matrix(one, m, n, ldc)
    return result


@pytest.mark.parametrize("method", ["full", "sampled"])
def test_every_product_of_a_batch_is_checked(method):
    inputs = make_inputs(BATCH, 3, "integer")
    reference = Reference(BATCH, inputs, method)
    result = batched_result(BATCH, inputs)
    seen = reference.check(result)
    assert seen.correct, seen.detail
    assert seen.method.endswith("of 3 products")
    for number in range(3):
        broken = result.copy()
        broken[number * 44 + 4 * 7 + 2] += 1
        seen = reference.check(broken)
        assert not seen.correct
        assert f"1 of 3 products are wrong; number {number}: C[4, 2]" in seen.detail
        assert seen.max_error == 1
    # Nothing may be written to the padding of rows, nor between two matrices.
    for place in (5, 41, 43, 44 + 6):
        broken = result.copy()
        broken[place] = 0.0
        assert "1 elements of C's padding were written" in reference.check(broken).detail


def test_products_of_a_batch_must_not_be_exchanged():
    problem = GemmProblem(4, 4, 4, batch=2)
    inputs = make_inputs(problem)
    result = batched_result(problem, inputs)
    exchanged = np.concatenate([result[16:], result[:16]])
    assert check(problem, inputs, result).correct
    assert "2 of 2 products are wrong" in check(problem, inputs, exchanged).detail


def test_a_batch_of_nothing_is_right():
    problem = GemmProblem(4, 4, 4, batch=0)
    inputs = make_inputs(problem)
    assert check(problem, inputs, inputs.c).correct
