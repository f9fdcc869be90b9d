"""`gemm_tf32_mma` and `gemm_tf32x3`: float32 by mma.sync of TF32, in one product and in three, on
the emulator with its sanitizers, and on a GPU to the bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES, candidates_for
from gemmkit.dispatch.choose import choose
from gemmkit.dispatch.which import which
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import BOARDS, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.report.decision import decision_text
from gemmkit.split_products import LEAST_K
from split_model import FAMILIES, tf32_product, tf32x3_product, tf32x3_sums

PRECISIONS = {"gemm_tf32_mma": "tf32", "gemm_tf32x3": "fp32"}
A100, H100 = find_board("a100"), find_board("h100")
CONFIGS = {
    "eight warps": {"BM": 64, "BN": 64, "BK": 16, "WM": 32, "WN": 16, "stages": 3},
    "two stages": {"BM": 32, "BN": 32, "BK": 32, "WM": 16, "WN": 32, "stages": 2},
}
SMALL = CONFIGS["two stages"]
PROBLEMS = {
    "more than one tile": {"m": 136, "n": 72, "k": 200},
    "residues along k": {"m": 72, "n": 40, "k": 76, "lda": 80},
    "transposed B": {"m": 72, "n": 40, "k": 136, "transb": True},
    "transposed A": {"m": 72, "n": 40, "k": 68, "alpha": 0.5, "beta": -2.0, "transa": True},
    "both": {"m": 40, "n": 72, "k": 104, "transa": True, "transb": True},
    "unaligned": {"m": 67, "n": 41, "k": 75, "alpha": 0.5, "beta": 2.0},
    "unaligned, both transposed": {
        "m": 33,
        "n": 70,
        "k": 81,
        "transa": True,
        "transb": True,
        "alignment": 4,
    },
    "a batch": {"m": 67, "n": 41, "k": 80, "batch": 3, "stride_b": BROADCAST},
    "bf16 results": {"m": 72, "n": 40, "k": 68, "transb": True, "out_dtype": "bfloat16"},
    "alpha 0": {"m": 5, "n": 3, "k": 70, "alpha": 0.0, "beta": 0.5},
    "no rows": {"m": 0, "n": 8, "k": 64},
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(A100, sanitize=True)


def problem_for(name, **fields):
    return GemmProblem(**fields, precision=PRECISIONS[name])


def multiplied(device, name, a, b, keys=SMALL, **fields):
    """A·B of float32 matrices, which breaks no rule and is within the bounds."""
    outcome = run_on(device, name, a, b, keys, **fields)
    check(outcome)
    return outcome.results[0].astype(np.float32)


def run_on(device, name, a, b, keys, **fields):
    problem = problem_for(name, m=a.shape[0], n=b.shape[1], k=a.shape[1], **fields)
    config = find_kernel(name).configure(keys)
    stored = tuple(
        np.ascontiguousarray(x.T if turned else x)
        for x, turned in ((a, problem.transa), (b, problem.transb))
    )
    return run_typed(problem, device, kernel=name, config=config, given=stored)


@pytest.mark.parametrize("fields", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.sample(13)
def test_shapes(device, name, keys, fields):
    problem, config = problem_for(name, **fields), find_kernel(name).configure(keys)
    check_exact(problem, run_typed(problem, device, kernel=name, config=config))


@pytest.mark.parametrize("name", PRECISIONS)
def test_numbers_and_epilogues(device, name):
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    fields = {"m": 72, "n": 41, "k": 135, "alpha": 0.3, "beta": 0.5, "batch": 2}
    problem = problem_for(name, **fields, epilogue=epilogue)
    config = find_kernel(name).configure(SMALL)
    check(run_typed(problem, device, kernel=name, config=config, integers=False))


@pytest.mark.parametrize(("board", "capability"), [(A100, (8, 0)), (H100, (9, 0))])
@pytest.mark.parametrize(
    ("name", "model"), [("gemm_tf32_mma", tf32_product), ("gemm_tf32x3", tf32x3_product)]
)
@pytest.mark.sample
def test_results_are_those_of_the_model_to_the_bit(board, capability, name, model):
    """So that what holds of models in tests of the bound holds of kernels."""
    rng = np.random.default_rng(1)
    for family, keys in (("normal", SMALL), ("graded", CONFIGS["eight warps"])):
        a, b = FAMILIES[family](rng, 30, 50, 200)
        found = multiplied(EmulatedDevice(board, sanitize=True), name, a, b, keys)
        assert np.array_equal(found, model(a, b, capability))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(2)
def test_layouts_have_the_same_bits(device, layout):
    a, b = FAMILIES["log-uniform"](np.random.default_rng(7), 40, 36, 76)
    transposed = {"transa": layout[0] == "t", "transb": layout[1] == "t"}
    found = multiplied(device, "gemm_tf32x3", a, b, **transposed)
    assert np.array_equal(found, tf32x3_product(a, b))


def test_operands_are_rounded_to_nearest(device):
    """Numbers between two of TF32, and ties, which go away from zero."""
    step = 2.0**-10
    for own, rounded in ((0.75, 1), (0.5, 1), (0.49, 0)):
        a = np.full((8, 64), -(1 + own * step), np.float32)
        found = multiplied(device, "gemm_tf32_mma", a, np.ones((64, 8), np.float32))
        assert (found == -64 * (1 + rounded * step)).all()


NOT_FINITE = [np.inf, -np.inf, np.nan]
# Signaling, with bits that TF32 does not have.
SIGNALING = np.array([0x7F800001], np.uint32).view(np.float32)[0]


def by_ieee(a, b):
    """Whether each element is NaN, or which infinity."""
    with np.errstate(invalid="ignore"):
        return a.astype(float) @ b.astype(float)


def check_by_ieee(found, a, b):
    wanted = by_ieee(a, b)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    infinite = np.isinf(wanted)
    assert np.array_equal(found[infinite], wanted[infinite])
    assert np.isfinite(found[~infinite & ~np.isnan(wanted)]).all()


# NumPy says so of signaling NaN.
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_infinities_and_nan(device, name, layout):
    """Inf·0, Inf − Inf, NaN of all kinds; what has no part in them is as without them."""
    a, b = FAMILIES["normal"](np.random.default_rng(4), 70, 40, 77)
    plain = multiplied(device, name, a, b)
    for where, number in zip(((3, 5), (4, 0), (9, 76)), NOT_FINITE, strict=True):
        a[where] = number
    a[4, 1] = np.inf  # beside -inf
    a[60, 9] = SIGNALING
    b[5, 7] = 0  # below inf
    b[76, 39] = np.inf
    b[:, 11] = 0
    transposed = {"transa": layout[0] == "t", "transb": layout[1] == "t"}
    found = multiplied(device, name, a, b, **transposed)
    check_by_ieee(found, a, b)
    calm = [row for row in range(70) if np.isfinite(a[row]).all()]
    columns = [each for each in range(39) if each not in (7, 11)]
    assert np.array_equal(found[np.ix_(calm, columns)], plain[np.ix_(calm, columns)])


def test_infinities_outside_of_c_are_nobody_s(device):
    """Lanes past the last row have zeros, which times infinity are NaN, and store nothing."""
    a, b = FAMILIES["normal"](np.random.default_rng(4), 33, 33, 65)
    b[9] = np.inf
    check_by_ieee(multiplied(device, "gemm_tf32x3", a, b), a, b)


LARGEST = float(np.finfo(np.float32).max)


def test_the_largest_numbers_have_parts_beyond_the_range(device):
    """TF32 rounds them to infinity. Neither the numbers nor their products are."""
    a, b = FAMILIES["normal"](np.random.default_rng(5), 20, 24, 70)
    a[3] *= np.float32(2.0**-20)
    a[3, 7], a[5, 9], a[6, 11] = LARGEST, -LARGEST, LARGEST * (1 - 2.0**-12)
    b[7] *= np.float32(2.0**-30)
    b[7, 4], b[9, 5], b[11] = 0, 2, 1e-30
    found = multiplied(device, "gemm_tf32x3", a, b)
    with np.errstate(over="ignore"):
        wanted = by_ieee(a, b).astype(np.float32)
    assert np.isinf(wanted).any()
    assert np.array_equal(np.isinf(found), np.isinf(wanted))
    assert not np.isnan(found).any()


def test_sums_that_overflow_on_the_way(device):
    """Those of a chunk, or of its parts; a chain that does as well is infinite."""
    a, b = np.zeros((3, 64), np.float32), np.ones((64, 4), np.float32)
    a[0, [0, 9]] = 2.0**127, -(2.0**127)
    # Chunks overflow, single steps do not.
    a[1, :8] = np.float32([1, -1] * 4) * np.float32(LARGEST * 0.75)
    a[2, :2] = LARGEST
    found = multiplied(device, "gemm_tf32x3", a, b)
    assert (found[0] == 0).all()
    assert (found[1] == 0).all()
    assert (found[2] == np.inf).all()


def test_subnormal_numbers_and_parts(device):
    """Numbers near 2^-126, whose low part loses bits, and below, times large and small ones."""
    rng = np.random.default_rng(6)
    a, b = FAMILIES["normal"](rng, 20, 30, 77)
    rows = np.exp2(np.array([-149, -140, -130, -126, -120, -115, -100, -60, 0, 60] * 2))
    columns = np.exp2(np.array([0, -10, -60, 3, 40, 60] * 5))
    a, b = np.float32(a * rows[:, None]), np.float32(b * columns)
    found = multiplied(device, "gemm_tf32x3", a, b)
    assert np.array_equal(found, tf32x3_product(a, b))
    assert (np.abs(a[a != 0]) < 2.0**-126).any()
    # All bits of both parts are there where nearly all numbers are above 2^-113.
    magnitude = np.abs(a).astype(float) @ np.abs(b)
    off = np.abs(found - by_ieee(a, b)) / magnitude * 2.0**24
    for own, normal in zip(off, magnitude > 2.0**-100, strict=True):
        own[~normal] = 0
    assert off[6:10].max() < 5
    assert off[3:5].max() > 5


PLAIN = [0.0, -0.0, 2.0**-149, -1.0]
finite = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([*PLAIN, 2.0**127]),
)


# Shrinking would take minutes.
@settings(max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_any_numbers_in_any_place(device, data):
    """Shapes, exponents by line and by element, a few given numbers: within the bound, by IEEE."""
    m, n, k = (data.draw(st.integers(*each)) for each in ((1, 40), (1, 40), (LEAST_K, 90)))
    k |= 1  # one kernel for all
    # With infinities, finite terms that overflow on the way would make NaN of FFMA's sums.
    special = data.draw(st.booleans())
    elements = st.sampled_from([*PLAIN, *NOT_FINITE]) if special else finite
    exponents = st.sampled_from((0, 20) if special else (0, 20, 60))
    spread, graded = data.draw(exponents), data.draw(exponents)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a, b = (rng.standard_normal(each, np.float32) for each in ((m, k), (k, n)))
    with np.errstate(over="ignore"):
        a = np.float32(a * np.exp2(rng.uniform(-spread, spread, a.shape)))
        a *= np.float32(np.exp2(rng.uniform(-graded, graded, (m, 1))))
        b *= np.float32(np.exp2(rng.uniform(-graded, graded, (1, n))))
    for matrix in (a, b):
        for _ in range(data.draw(st.integers(0, 3))):
            matrix[rng.integers(matrix.shape[0]), rng.integers(matrix.shape[1])] = data.draw(
                elements
            )
    if data.draw(st.booleans()):
        a[rng.integers(m)] = 0
    found, wanted = multiplied(device, "gemm_tf32x3", a, b), by_ieee(a, b)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
    sums = tf32x3_sums(a, b)
    whole = np.isfinite(sums)
    assert np.array_equal(found[whole], sums[whole])


def test_terms_that_cancel(device):
    """To the last bit of the largest term, and to zero."""
    a = np.ones((3, 65), np.float32)
    a[:, 1::2] = -1
    a[:, 64] = 0
    b = np.float32(1 + np.random.default_rng(8).random((65, 4)))
    b[1::2] = b[:-1:2]
    b[5, 1] = np.nextafter(b[5, 1], np.float32(4))
    found = multiplied(device, "gemm_tf32x3", a, b)
    assert np.array_equal(found[:, 1], np.full(3, -(2.0**-23)))
    assert not found[:, [0, 2, 3]].any()


@pytest.mark.parametrize(
    ("name", "changes", "board", "message"),
    [
        ("gemm_tf32_mma", {}, "a100", "--precision tf32 allows that"),
        ("gemm_tf32_mma", {"precision": "fp32"}, "a100", "--precision tf32 allows that"),
        ("gemm_tf32x3", {}, "a100", "--precision fp32 allows that"),
        ("gemm_tf32x3", {"k": 63, "precision": "fp32"}, "a100", "k = 63 is less than 64"),
        ("gemm_tf32_mma", {"precision": "tf32"}, "t4", "cp.async"),
        ("gemm_tf32x3", {"precision": "tf32"}, "t4", "cp.async"),
    ],
)
def test_what_they_refuse_is_told_with_what_takes_it(name, changes, board, message):
    problem = GemmProblem(**{"m": 72, "n": 40, "k": 136} | changes)
    kernel = find_kernel(name)
    with pytest.raises(UnsupportedProblem, match=message) as caught:
        kernel.plan(problem, kernel.default, find_board(board))
    assert re.search(r"; '\w+'.* takes? it$", str(caught.value))


def test_a_lower_precision_has_no_least_k():
    kernel = find_kernel("gemm_tf32x3")
    problem = GemmProblem(72, 40, 8, precision="tf32")
    assert kernel.supports(problem, kernel.default, A100) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"BK": 8}, "BK"),
        ({"BM": 192}, "powers of two"),
        ({"stages": 1}, "stages must be 2 or more"),
        ({"WM": 64, "WN": 64}, "leaves each lane 128 results"),
        ({"stages": 6, "BK": 32, "BN": 256}, "shared memory"),
    ],
)
def test_rules(keys, message):
    kernel = find_kernel("gemm_tf32x3")
    problem = problem_for("gemm_tf32x3", m=64, n=64, k=64)
    reason = kernel.supports(problem, kernel.configure(keys), find_board("rtx3090"))
    assert message in reason


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.slow
def test_registers_hold_everything(name, layout):
    own = next(each for each in CANDIDATES if each.name == name)
    problem = problem_for(name, m=512, n=512, k=512, epilogue=Epilogue.parse("bias+relu"))
    plan = own.kernel.plan(problem.laid_out(layout), own.config, A100)
    resources = compile_plan(plan, A100.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0


@pytest.mark.parametrize("size", [512, 2048, 4096])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_an_a100_is_given_them(size, layout):
    for name, precision in PRECISIONS.items():
        problem = GemmProblem(size, size, size, precision=precision).laid_out(layout)
        assert choose(problem, A100, store=None).kernel.name == name
    ieee = GemmProblem(size, size, size).laid_out(layout)
    assert choose(ieee, A100, store=None).kernel.precision == "ieee"


@pytest.mark.parametrize(
    ("board", "listed"),
    [
        ("t4", set()),
        ("rtx3090", set()),
        ("rtx4090", set()),
        ("rtx5090", set()),
        ("rtxa6000", {"gemm_tf32_mma"}),
        ("l40s", {"gemm_tf32_mma"}),
        ("a100", set(PRECISIONS)),
        ("jetsonagxorin", set(PRECISIONS)),
        ("h100", set()),
        ("b200", set(PRECISIONS)),
    ],
)
def test_boards_on_which_ffma_is_as_fast_do_without(board, listed):
    candidates = candidates_for(BOARDS[board])
    assert {each.name for each in candidates} & set(PRECISIONS) == listed


def test_hopper_s_own_kernels_win_where_operands_are_large():
    for precision, names in (
        ("tf32", {"nn": "gemm_tf32_rs", "nt": "gemm_tf32"}),
        ("fp32", {"nn": "gemm_fp16x3", "nt": "gemm_fp16x3"}),
    ):
        for layout, name in names.items():
            problem = GemmProblem(4096, 4096, 4096, precision=precision).laid_out(layout)
            assert choose(problem, H100, store=None).kernel.name == name


def test_a_decision_says_what_it_is_and_why():
    text = decision_text(which((4096, 4096, 4096), A100, precision="fp32", store=None))
    assert "gemm_tf32x3" in text
    assert "fp32 (precision fp32)" in text
    assert "estimated at" in text


@pytest.mark.gpu
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("name", PRECISIONS)
def test_a_gpu_has_the_same_bits(name, keys):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator, kernel = EmulatedDevice(gpu.spec), find_kernel(name)
    for told, fields in PROBLEMS.items():
        problem, config = problem_for(name, **fields), kernel.configure(keys)
        runs = [
            run_typed(problem, each, kernel=name, config=config, integers=False)
            for each in (gpu, emulator)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results), told


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_has_the_same_bits_of_numbers_of_any_size(name, family):
    """Subnormal ones among them, those that are not finite, and sums that overflow on the way."""
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator = EmulatedDevice(gpu.spec)
    a, b = FAMILIES[family](np.random.default_rng(9), 70, 45, 300)
    a[5] *= np.float32(2.0**-130)
    a[7, [3, 250]], a[9, 0], a[11, 7], b[9, 3] = (np.inf, -np.inf), np.nan, LARGEST, -np.inf
    for keys in CONFIGS.values():
        found = [run_on(each, name, a, b, keys).results[0] for each in (gpu, emulator)]
        assert np.array_equal(*found, equal_nan=True)
