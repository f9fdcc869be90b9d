"""Each hypothesis about a wrong result is reported if it holds, and not if it only nearly does."""

import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.storage import matrix
from gemmkit.verify import Reference, check, make_inputs
from gemmkit.verify.encoding import canaries

CUBE = GemmProblem(48, 48, 48)
PLAIN = GemmProblem(40, 24, 37)
SCALED = GemmProblem(33, 29, 37, alpha=-1.5, beta=0.5)
PADDED = GemmProblem(33, 29, 37, alpha=-1.5, beta=0.5, lda=40, ldb=31, ldc=35)
FUSED = GemmProblem(33, 29, 16, epilogue=Epilogue.parse("bias+relu"))

# Represents the canary in results of float64, which cannot hold it.
UNWRITTEN = 98765.0


class Case:
    """Inputs of a problem with its correct result, to be made wrong."""

    def __init__(self, problem, kind="normal"):
        self.problem, self.inputs = problem, make_inputs(problem, 3, kind)
        p, x = problem, self.inputs
        self.a = matrix(x.a, p.m, p.k, p.lda).astype(float)
        self.b = matrix(x.b, p.k, p.n, p.ldb).astype(float)
        with np.errstate(invalid="ignore"):
            self.c = matrix(x.c, p.m, p.n, p.ldc).astype(float)
        self.right = self.finish(self.a @ self.b)

    def finish(self, product, alpha=None, beta=None, bias=1.0, relu=True):
        p = self.problem
        value = (p.alpha if alpha is None else alpha) * product
        if p.beta:
            value = value + (p.beta if beta is None else beta) * self.c
        if self.inputs.bias is not None:
            value = value + bias * self.inputs.bias
        if relu and p.epilogue.activation == "relu":
            value = np.maximum(value, 0)
        return value

    def judge(self, value):
        result = self.inputs.c.copy()
        c = matrix(result, self.problem.m, self.problem.n, self.problem.ldc)
        c[:] = value
        c[c == UNWRITTEN] = canaries(1)[0]
        return check(self.problem, self.inputs, result)


def tiles(values, side):
    """The matrix as tiles: [i, j] is one of side × side."""
    rows, columns = (extent // side for extent in values.shape)
    return values.reshape(rows, side, columns, side).swapaxes(1, 2)


def untiled(parts):
    rows, columns, side, _ = parts.shape
    return parts.swapaxes(1, 2).reshape(rows * side, columns * side)


def only(chosen, other):
    """A fault in a part of the result only."""

    def wrong(case):
        value = case.right.copy()
        value[chosen] = other(case)[chosen]
        return value

    return wrong


def replaced(value):
    return lambda case: np.full_like(case.right, value)


def previous_contents(case):
    return case.c


STORED_B = lambda case: case.inputs.b.reshape(24, 37).T.astype(float)  # noqa: E731
STORED_A = lambda case: case.inputs.a.reshape(37, 40).T.astype(float)  # noqa: E731

# Problem, fault, hypothesis, and words of the summary or the advice.
FAULTS = {
    "negated": (PLAIN, lambda c: -c.right, "negated", "C = −(expected result)"),
    "zero": (PLAIN, lambda c: 0 * c.right, "zero", "All 960 elements are wrong: C is zero"),
    "right half": (
        PLAIN,
        only(np.s_[:, 12:], replaced(UNWRITTEN)),
        "not written",
        "480 of 960 elements are wrong (the last 12 columns (12 to 23, the right half))",
    ),
    "last row kept": (SCALED, only(np.s_[-1:], previous_contents), "not written", "last row (32)"),
    "NaN": (PLAIN, replaced(np.nan), "NaN", "are read although β is 0, or memory past a matrix"),
    "NaN of padding": (PADDED, replaced(np.nan), "NaN", "or memory between rows or past a matrix"),
    "stored by column": (
        PLAIN,
        lambda c: (c.a @ c.b).T.reshape(40, 24),
        "C transposed",
        "--layout col-TT",
    ),
    "square transposed": (CUBE, lambda c: c.right.T, "C transposed", "all but the diagonal"),
    "A·Bᵀ": (PLAIN, lambda c: c.a @ STORED_B(c), "B transposed", "--layout NT."),
    "square A·Bᵀ": (CUBE, lambda c: c.a @ c.b.T, "B transposed", "C = A·Bᵀ"),
    "Aᵀ·B": (PLAIN, lambda c: STORED_A(c) @ c.b, "A transposed", "--layout TN."),
    "Aᵀ·Bᵀ": (PLAIN, lambda c: STORED_A(c) @ STORED_B(c), "A and B transposed", "--layout TT."),
    "column-major": (
        PLAIN,
        lambda c: (STORED_A(c) @ STORED_B(c)).T.reshape(40, 24),
        "A, B and C transposed",
        "--layout col.",
    ),
    "B·A": (CUBE, lambda c: c.b @ c.a, "A, B and C transposed", "C = B·A"),
    "α ignored": (SCALED, lambda c: c.finish(c.a @ c.b, alpha=1), "alpha ignored", "α = 1"),
    "α twice": (SCALED, lambda c: c.finish(c.a @ c.b, alpha=2.25), "alpha twice", "twice"),
    "α on C": (PADDED, lambda c: c.finish(c.a @ c.b, beta=-0.75), "alpha on C", "α·(A·B + β·C)"),
    "β ignored": (PADDED, lambda c: c.finish(c.a @ c.b, beta=0), "beta ignored", "β·C is left out"),
    "β of one": (
        SCALED,
        lambda c: c.finish(c.a @ c.b, beta=1),
        "beta ignored",
        "added as they are",
    ),
    "β twice": (SCALED, lambda c: c.finish(c.a @ c.b, beta=0.25), "beta twice", "twice"),
    "C subtracted": (
        SCALED,
        lambda c: c.finish(c.a @ c.b, beta=-0.5),
        "C subtracted",
        "subtracted",
    ),
    "α and β": (
        SCALED,
        lambda c: c.finish(c.a @ c.b, alpha=0.5, beta=-1.5),
        "alpha and beta exchanged",
        "α and β are exchanged",
    ),
    "bias": (FUSED, lambda c: c.finish(c.a @ c.b, bias=0), "bias ignored", "bias is left out"),
    "ReLU": (FUSED, lambda c: c.finish(c.a @ c.b, relu=False), "ReLU ignored", "ReLU"),
    "late bias": (
        FUSED,
        lambda c: np.maximum(c.a @ c.b, 0) + c.inputs.bias,
        "bias after ReLU",
        "the bias is added after the ReLU",
    ),
    "last step of k": (PLAIN, lambda c: c.a[:, :-1] @ c.b[:-1], "k short", "short by 1: the last"),
    "rest of k": (
        SCALED,
        lambda c: c.finish(c.a[:, :32] @ c.b[:32]),
        "k short",
        "k is short by 5: the last 5 steps (k = 32 to 36, the residue past the last whole "
        "step of 32)",
    ),
    "first tile of k": (PLAIN, lambda c: c.a[:, 8:] @ c.b[8:], "k short", "the first 8 steps"),
    "a tile of k": (
        PLAIN,
        lambda c: c.right - c.a[:, 8:16] @ c.b[8:16],
        "k short",
        "k = 8 to 15",
    ),
    "last of each tile": (
        CUBE,
        lambda c: c.a[:, np.arange(48) % 16 < 15] @ c.b[np.arange(48) % 16 < 15],
        "part of each tile",
        "the last of every 16 steps of k is left out",
    ),
    "every other tile": (
        CUBE,
        lambda c: c.a[:, np.arange(48) % 16 < 8] @ c.b[np.arange(48) % 16 < 8],
        "part of each tile",
        "the last 8 of every 16 steps of k are left out",
    ),
    "last step alone": (
        PLAIN,
        lambda c: c.a[:, -1:] @ c.b[-1:],
        "k short",
        "k is short by 36: only the last step (k = 36",
    ),
    "k too many": (PLAIN, lambda c: c.right + c.a[:, -1:] @ c.b[-1:], "k twice", "added twice"),
    "stale tile": (
        CUBE,
        lambda c: c.right + c.a[:, :8] @ c.b[:8] - c.a[:, 8:16] @ c.b[8:16],
        "stale tile",
        "k = 0 to 7 is used again in place of k = 8 to 15",
    ),
    "rows exchanged": (
        PLAIN,
        only(np.s_[[4, 9]], lambda c: c.right[[*range(4), 9, *range(5, 9), 4, *range(10, 40)]]),
        "rows permuted",
        "rows are exchanged (row 4 holds row 9; row 9 holds row 4)",
    ),
    "blocks of rows": (
        CUBE,
        lambda c: c.right[np.arange(48) ^ 8],
        "rows permuted",
        "blocks of 8 rows are exchanged",
    ),
    "float4 turned": (
        PLAIN,
        lambda c: c.right.reshape(40, 6, 4)[:, :, ::-1].reshape(40, 24),
        "columns permuted",
        "each block of 4 are in reverse order",
    ),
    "shifted": (
        PLAIN,
        only(np.s_[:-1], lambda c: np.roll(c.right, -1, axis=0)),
        "shifted",
        "1 row further down",
    ),
    "tiles of C turned": (
        CUBE,
        lambda c: untiled(tiles(c.right, 16).swapaxes(2, 3)),
        "tiles transposed",
        "each 16 × 16 tile of C",
    ),
    "tiles exchanged": (
        CUBE,
        lambda c: untiled(tiles(c.right, 16).swapaxes(0, 1)),
        "tiles permuted",
        "tiles of 16 × 16",
    ),
    "tiles of B turned": (
        CUBE,
        lambda c: c.a @ untiled(tiles(c.b, 8).swapaxes(2, 3)),
        "operand tile transposed",
        "each 8 × 8 tile of B",
    ),
    "out of step": (PLAIN, lambda c: c.a[:, :-1] @ c.b[1:], "out of step", "B[p +1, column]"),
    "factor": (PLAIN, lambda c: 3.25 * c.right, "constant factor", "C = 3.25 × "),
    "twice": (PLAIN, lambda c: 2 * c.right, "product twice", "α·A·B is added twice"),
    "offset": (PLAIN, lambda c: c.right + 1.5, "constant offset", "+ 1.5"),
    "previous contents added": (
        SCALED,
        lambda c: c.right + c.c,
        "previous contents added",
        "added to α·A·B + β·C",
    ),
    "scales ignored": (
        SCALED,
        lambda c: c.finish(c.a @ c.b, alpha=1, beta=0),
        "alpha and beta ignored",
        "C = A·B",
    ),
    "product scaled": (
        SCALED,
        lambda c: c.finish(c.a @ c.b, alpha=3 * c.problem.alpha),
        "product scaled",
        "multiplied by a further factor of 3",
    ),
    "tile of B not advanced": (
        PLAIN,
        lambda c: c.a @ c.b[np.arange(37) % 8],
        "operand not advanced",
        "the first 8 steps of B along k",
    ),
    "ReLU too many": (PLAIN, lambda c: np.maximum(c.right, 0), "zero", "Try --epilogue relu, if"),
    "magnitude": (PLAIN, lambda c: np.abs(c.right), "magnitude", "|expected result|"),
    "one value": (PLAIN, replaced(7.0), "one value", "C is 7 throughout"),
    "a lane": (
        PLAIN,
        only(np.s_[:, 3::8], lambda c: -c.right),
        "negated",
        "the columns ≡ 3 (mod 8)",
    ),
    "half precision": (
        PLAIN,
        lambda c: c.a.astype("f2").astype(float) @ c.b.astype("f2").astype(float),
        "imprecise",
        "--compute-dtype float16",
    ),
}


@pytest.fixture(scope="module")
def cases():
    return {each: Case(each) for each in (CUBE, PLAIN, SCALED, PADDED, FUSED)}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_recognised(cases, name):
    problem, fault, hypothesis, words = FAULTS[name]
    diagnosis = cases[problem].judge(fault(cases[problem])).diagnosis
    assert diagnosis.hypothesis == hypothesis
    assert words in " ".join((diagnosis.summary, *diagnosis.details))


# For the others a single element is a finding by itself: a part that is not written, for example.
@pytest.mark.parametrize(
    "name", sorted(FAULTS.keys() - {"NaN", "NaN of padding", "right half", "half precision"})
)
def test_a_near_miss_is_not_claimed(cases, name):
    """With one more wrong element that the hypothesis does not explain, it is not reported."""
    problem, fault, hypothesis, _ = FAULTS[name]
    value = np.array(fault(cases[problem]))
    value[7, 5] = cases[problem].right[7, 5] + 0.37
    diagnosis = cases[problem].judge(value).diagnosis
    assert f"elements are wrong: {hypothesis}" not in diagnosis.summary
    if hypothesis in ("zero",):
        assert "1 of them ([7, 5]): no simple explanation fits" in diagnosis.summary
    else:
        assert diagnosis.hypothesis != hypothesis


def test_a_tile_of_one_step_is_named_by_that_step(cases):
    case = cases[PLAIN]
    stale = case.right + case.a[:, :4] @ case.b[:4] - case.a[:, 36:] @ case.b[36:]
    summary = case.judge(stale).diagnosis.summary
    assert summary.endswith(": k = 0 to 3 is used again in place of k = 36")


def test_right_results_have_no_diagnosis(cases):
    for case in cases.values():
        assert case.judge(case.right).diagnosis is None


def test_noise_fits_no_hypothesis(cases):
    case, rng = cases[PLAIN], np.random.default_rng(0)
    diagnosis = case.judge(rng.normal(size=case.right.shape) * 6).diagnosis
    assert diagnosis.hypothesis == ""
    assert diagnosis.summary == "All 960 elements are wrong: no simple explanation fits"
    assert (diagnosis.wrong, diagnosis.elements) == (960, 960)


def test_one_wrong_element_proves_little(cases):
    """Of many possible ranges of k some nearly fit a single number: that is no explanation."""
    case, rng = cases[CUBE], np.random.default_rng(1)
    for change in rng.normal(size=40):
        value = case.right.copy()
        value[11, 12] += change
        diagnosis = case.judge(value).diagnosis
        assert diagnosis.hypothesis == ""
        assert diagnosis.summary.startswith("1 of 2,304 elements is wrong ([11, 12])")
        assert (diagnosis.rows, diagnosis.columns) == ((11, 11), (12, 12))


def test_exact_inputs_are_explained_too():
    case = Case(CUBE, "integer")
    assert case.judge(case.right.T).diagnosis.hypothesis == "C transposed"
    assert case.judge(case.a[:, :-4] @ case.b[:-4]).diagnosis.hypothesis == "k short"
    value = case.right.copy()
    value[0, 0] += 1
    assert case.judge(value).diagnosis.hypothesis == ""


def test_a_result_computed_from_poison_counts_as_written():
    """Arithmetic on the canary gives a quiet NaN, a copy keeps it."""
    case = Case(PLAIN)
    assert case.judge(UNWRITTEN).diagnosis.hypothesis == "not written"
    with np.errstate(invalid="ignore"):
        computed = canaries(1) * np.float32(0)
    diagnosis = case.judge(computed).diagnosis
    assert diagnosis.hypothesis == "NaN"
    assert "never written" not in diagnosis.summary


def test_a_layout_is_recognised_by_its_leading_dimension():
    """Lines with the argument's leading dimension reach past the end of the matrix."""
    problem = GemmProblem(30, 34, 32)
    case = Case(problem)
    storage = np.zeros(2048)
    storage[: case.inputs.b.size] = case.inputs.b
    read = case.a @ storage[np.arange(34) * problem.ldb + np.arange(32)[:, None]]
    diagnosis = case.judge(read).diagnosis
    assert diagnosis.hypothesis == "B transposed"
    assert "Try --layout NT." in diagnosis.details


def test_layouts_that_fit_alike_are_named_together():
    case = Case(GemmProblem(40, 1, 37))
    (advice,) = case.judge(STORED_A(case) @ case.b).diagnosis.details
    assert advice == "Try --layout TN, col, TT or col-NT."


def test_errors_that_follow_c_are_no_rounding():
    case = Case(SCALED)
    summary = case.judge(case.right + 0.003 * case.c + 0.001 * case.right**2).diagnosis.summary
    assert "rounding" not in summary


def test_parts_with_different_faults_are_distinguished(cases):
    case = cases[PLAIN]
    value = -case.right
    value[:, 20:] = UNWRITTEN
    diagnosis = case.judge(value).diagnosis
    assert diagnosis.hypothesis == "negated"
    assert "800 of them (the first 20 columns (0 to 19)): C = −" in diagnosis.summary
    assert "160 of them (the last 4 columns (20 to 23)): C was never written" in diagnosis.summary


def test_a_product_of_a_batch_is_explained():
    problem = GemmProblem(16, 16, 8, batch=3, stride_b=BROADCAST)
    inputs = make_inputs(problem)
    result = np.concatenate(
        [
            (inputs.of_product(problem, i).a.reshape(16, 8) @ inputs.b.reshape(8, 16)).ravel()
            for i in range(3)
        ]
    )
    result[256:512] *= -1
    verdict = check(problem, inputs, result)
    assert verdict.detail.startswith("1 of 3 products are wrong; number 1")
    assert verdict.diagnosis.hypothesis == "negated"


def test_sampled_results_are_explained_by_what_was_compared():
    problem = GemmProblem(60, 50, 20)
    inputs = make_inputs(problem)
    result = -(inputs.a.reshape(60, 20) @ inputs.b.reshape(20, 50)).ravel()
    diagnosis = check(problem, inputs, result, "sampled").diagnosis
    assert diagnosis.hypothesis == "negated"
    assert diagnosis.elements < 60 * 50


def test_errors_bounds_and_ratios_come_in_pairs():
    """A large error far below its bound, and a small one close to its own: two elements."""
    problem = GemmProblem(2, 2, 4)
    inputs = make_inputs(problem)
    inputs.a[:4] *= 1000
    result = (inputs.a.reshape(2, 4).astype(float) @ inputs.b.reshape(4, 2)).astype(np.float32)
    bounds = Reference(problem, inputs).products[0]
    bounds = bounds.rounding.before(bounds.blocks[0][2].magnitude)
    result[0, 0] += np.float32(0.3 * bounds[0, 0])
    result[1, 1] += np.float32(0.6 * bounds[1, 1])
    seen = check(problem, inputs, result.ravel())
    assert seen.correct
    assert seen.max_error <= seen.error_bound
    assert seen.ratio_error <= seen.max_error
    assert seen.error_ratio == seen.ratio_error / seen.ratio_bound
    assert seen.error_ratio >= seen.max_error / seen.error_bound
    assert (seen.error_bound, seen.ratio_bound) == (bounds[0, 0], bounds[1, 1])


def read_past_the_end(storage, rows, columns, ld):
    """rows × columns numbers, element (i, j) at j·ld + i; zeros past the end, as when emulated."""
    places = np.arange(columns) * ld + np.arange(rows)[:, None]
    inside = places < storage.size
    return np.where(inside, storage[np.where(inside, places, 0)].astype(float), 0.0)


@pytest.mark.parametrize(
    ("shape", "lengths", "turned", "advice"),
    [
        ((17, 23, 40), {}, "A", "TN"),
        ((17, 23, 160), {}, "A", "TN"),
        ((20, 23, 36), {"lda": 36, "ldb": 30, "ldc": 27}, "A", "TN"),
        ((20, 90, 16), {}, "B", "NT"),
        ((20, 50, 60), {}, "AB", "TT"),
        ((20, 30, 60), {}, "ABC", "col"),
    ],
)
def test_a_layout_is_recognised_where_its_lines_end_past_the_operand(
    shape, lengths, turned, advice
):
    """lda = K and A[p * lda + row]: if K > M most of what is read is past the end of A."""
    p = GemmProblem(*shape, **lengths)
    case = Case(p)
    a = read_past_the_end(case.inputs.a, p.m, p.k, p.lda) if "A" in turned else case.a
    b = read_past_the_end(case.inputs.b, p.k, p.n, p.ldb) if "B" in turned else case.b
    c = a @ b
    if "C" in turned:
        stored = np.full(p.n * p.n, UNWRITTEN)
        stored[np.arange(p.n)[:, None] * p.ldc + np.arange(p.m)] = c.T
        c = stored[: p.m * p.n].reshape(p.m, p.n)
    diagnosis = case.judge(c).diagnosis
    assert diagnosis.hypothesis.endswith("transposed")
    assert f"Try --layout {advice}." in diagnosis.details
    assert "C is zero" not in diagnosis.summary


def test_one_line_of_an_operand_and_zeros_is_no_layout():
    """A[p * lda] alone is the first step of k, which is reported."""
    case = Case(GemmProblem(1, 33, 33))
    diagnosis = case.judge(case.a[:, :1] @ case.b[:1]).diagnosis
    assert diagnosis.hypothesis == "k short"
    assert "--layout" not in " ".join(diagnosis.details)


SINGLE = {
    "corner": ((39, 23), lambda c, at: c.right[at] + 1.25, "([39, 23], the lower right corner)"),
    "edge": ((0, 7), lambda c, at: c.right[at] + 1.25, "([0, 7], in the first row)"),
    "side": ((12, 23), lambda c, at: c.right[at] + 1.25, "([12, 23], in the last column)"),
    "more": ((12, 5), lambda c, at: c.right[at] + 1.25, "C[12, 5] is 1.25 more than it should be."),
    "zero": ((12, 5), lambda c, at: 0.0, "C is zero"),
    "NaN": ((12, 5), lambda c, at: np.nan, "C is NaN"),
    "poison": ((12, 5), lambda c, at: UNWRITTEN, "never written"),
    "sign": ((12, 5), lambda c, at: -c.right[at], "C = −(expected result)"),
    "neighbor": ((12, 5), lambda c, at: c.right[12, 6], "C[12, 6]"),
    "of its row": ((12, 5), lambda c, at: c.right[12, 19], "C[12, 19]"),
    "of its column": ((12, 5), lambda c, at: c.right[33, 5], "C[33, 5]"),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_wrong_element_is_described(cases, name):
    at, fault, words = SINGLE[name]
    value = cases[PLAIN].right.copy()
    value[at] = fault(cases[PLAIN], at)
    diagnosis = cases[PLAIN].judge(value).diagnosis
    assert diagnosis.places == (at,)
    assert words in " ".join((diagnosis.summary, *diagnosis.details))


def test_previous_contents_of_a_single_element_are_described():
    case = Case(SCALED)
    value = case.right.copy()
    value[3, 4] = case.c[3, 4]
    assert "its previous contents" in case.judge(value).diagnosis.summary


def test_a_few_wrong_elements_are_described_one_by_one(cases):
    case = cases[PLAIN]
    value = case.right.copy()
    value[5, 5], value[0, 0], value[9, 2] = case.right[5, 6], case.right[0, 0] - 2, 0.0
    diagnosis = case.judge(value).diagnosis
    assert "[0, 0], [5, 5] and [9, 2]" in diagnosis.summary
    assert "1 of them ([9, 2]): C is zero" in diagnosis.summary
    assert diagnosis.details == (
        "C[0, 0] is 2 less than it should be.",
        "C[5, 5] is what C[5, 6] to its right should be.",
    )
    assert diagnosis.places == ((0, 0), (5, 5), (9, 2))


def test_many_wrong_elements_are_not_described_one_by_one(cases):
    value = cases[PLAIN].right + np.random.default_rng(0).normal(size=(40, 24))
    assert cases[PLAIN].judge(value).diagnosis.places == ()
