"""`gemm_fp16x3_fused`: fp32 in three products of fp16 parts that the kernel itself makes, on the
emulator with its sanitizers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.split_products import LEAST_K
from split_model import FAMILIES, fused_chain, split_product, split_product_by_chunk

NAME = "gemm_fp16x3_fused"
KERNEL = find_kernel(NAME)
H100 = find_board("h100")
# Few kernels, most of which have chunks of 32: those take half as long to compile.
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1}
SHORT = {**NARROW, "BK": 32, "stages": 3}
SWAPPED = {**SHORT, "BM": 32, "BN": 64, "cluster_k": 2}
TWO_CONSUMERS = {**SHORT, "BM": 128, "consumers": 2}
MULTICAST = {**SHORT, "BN": 64, "cluster_m": 2}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


def run(device, problem, keys=NARROW, **options):
    return run_typed(problem, device, kernel=NAME, config=KERNEL.configure(keys), **options)


def multiplied(device, a, b, keys=NARROW, **fields):
    """A·B of float32 matrices, which breaks no rule and is within the bounds."""
    problem = GemmProblem(a.shape[0], b.shape[1], a.shape[1], precision="fp32", **fields)
    stored = tuple(
        np.ascontiguousarray(x.T if turned else x)
        for x, turned in ((a, problem.transa), (b, problem.transb))
    )
    outcome = run(device, problem, keys, given=stored)
    check(outcome)
    return outcome.results[0].astype(np.float32)


# With those of the model: all layouts, chunks of both lengths, tiles and transposed ones, rows that
# begin anywhere.
EXACT = {
    "a batch with its own strides, few rows, blocks share k, epilogue": (
        SWAPPED,
        GemmProblem(
            *(20, 72, 68),
            transa=True,
            transb=True,
            batch=2,
            stride_a=20 * 68 + 4,
            out_dtype="float16",
            epilogue=Epilogue("row", "relu", residual=True),
            precision="fp32",
        ),
    ),
    "ragged, unaligned rows": (NARROW, GemmProblem(100, 70, 77, precision="fp32")),
    "padded rows, alpha and beta, four blocks share k": (
        {**SHORT, "BN": 64, "cluster_k": 4},
        GemmProblem(
            70, 66, 100, 0.5, -2.0, lda=104, ldb=104, ldc=72, precision="fp32", transb=True
        ),
    ),
    "a batch that shares B": (
        {**TWO_CONSUMERS, "BK": 64},
        GemmProblem(
            *(140, 40, 132),
            transa=True,
            batch=3,
            stride_b=BROADCAST,
            beta=1.0,
            out_dtype="bfloat16",
            precision="fp32",
        ),
    ),
    "blocks share tiles": (MULTICAST, GemmProblem(120, 72, 140, precision="fp32")),
}


@pytest.mark.parametrize(("keys", "problem"), EXACT.values(), ids=EXACT.keys())
@pytest.mark.sample(5)
def test_integers_are_exact(device, keys, problem):
    check_exact(problem, run(device, problem, keys))


@pytest.mark.parametrize(
    ("layout", "keys", "model"),
    [
        ("nn", NARROW, (64, 1)),
        ("nt", SHORT, (32, 1)),
        ("tt", SWAPPED, (32, 2)),
        ("tn", TWO_CONSUMERS, (32, 1)),
    ],
)
@pytest.mark.sample(4)
def test_results_are_those_of_the_model_to_the_bit(device, layout, keys, model):
    """So that what holds of the model in tests of the bound holds of the kernel."""
    rng = np.random.default_rng(1)
    transposed = {"transa": layout[0] == "t", "transb": layout[1] == "t"}
    for family in ("normal", "graded", "log-uniform"):
        a, b = FAMILIES[family](rng, 32, 52, 200)
        found = multiplied(device, a, b, keys, **transposed)
        wanted = split_product_by_chunk(a, b, *model, swapped=keys is SWAPPED)
        assert np.array_equal(found, wanted)


def test_chunks_have_scales_of_their_own(device):
    """So that a large element costs only those of its chunk their last bits."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((16, 192), (192, 12)))
    a[:, 7] *= np.float32(2.0**30)
    b[7] = 0
    found, exact = multiplied(device, a, b), a.astype(float) @ b
    of_chunk = np.abs(split_product_by_chunk(a[:, :64], b[:64]) - a[:, :64].astype(float) @ b[:64])
    off = np.abs(found - exact)
    assert np.array_equal(found, split_product_by_chunk(a, b))
    assert np.linalg.norm(off) < 1.1 * np.linalg.norm(of_chunk)
    assert np.linalg.norm(off) < 0.7 * np.linalg.norm(np.abs(split_product(a, b) - exact))


NOT_FINITE = [np.inf, -np.inf, np.nan]


def by_ieee(a, b):
    """Whether each element is NaN, or which infinity."""
    with np.errstate(invalid="ignore", over="ignore"):
        return a.astype(float) @ b.astype(float)


def check_by_ieee(found, wanted):
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    infinite = np.isinf(wanted)
    assert np.array_equal(found[infinite], wanted[infinite])
    assert np.isfinite(found[~infinite & ~np.isnan(wanted)]).all()


@pytest.mark.parametrize(("layout", "keys"), [("nn", NARROW), ("tt", SWAPPED)])
@pytest.mark.sample(2)
def test_infinities_and_nan(device, layout, keys):
    """Inf·0, Inf − Inf, NaN; sums that have no part in them keep their bits."""
    a, b = FAMILIES["normal"](np.random.default_rng(4), 32, 52, 200)
    transposed = {"transa": layout[0] == "t", "transb": layout[1] == "t"}
    plain = multiplied(device, a, b, keys, **transposed)
    for where, number in zip(((3, 5), (4, 0), (9, 199)), NOT_FINITE, strict=True):
        a[where] = number
    a[4, 1] = np.inf  # beside -inf
    b[5, 7] = 0  # below inf
    b[199, 51] = np.inf
    b[:, 11] = 0
    found = multiplied(device, a, b, keys, **transposed)
    check_by_ieee(found, by_ieee(a, b))
    calm = [row for row in range(32) if np.isfinite(a[row]).all()]
    columns = [each for each in range(51) if each not in (7, 11)]
    assert np.array_equal(found[np.ix_(calm, columns)], plain[np.ix_(calm, columns)])


def test_results_beyond_the_range_and_below_it(device):
    """2^±k factors of lines change nothing but the exponent, until sums overflow, where a chain
    of fused multiply-adds says what becomes of them, or results underflow."""
    rng = np.random.default_rng(6)
    a, b = FAMILIES["normal"](rng, 20, 32, 76)
    plain = split_product_by_chunk(a, b).astype(float)
    rows = np.exp2(np.array([-149, -140, -130, -126, -60, -1, 0, 60, 110, 120] * 2))
    columns = np.exp2(np.array([0, -10, -60, 3, 9, 60, -20, 1] * 4))
    scaled_a, scaled_b = np.float32(a * rows[:, None]), np.float32(b * columns)
    found = multiplied(device, scaled_a, scaled_b)
    assert np.array_equal(found, split_product_by_chunk(scaled_a, scaled_b))
    with np.errstate(over="ignore"):
        once = (plain * rows[:, None] * columns).astype(np.float32)
    normal = (rows[:, None] >= 2.0**-100) & (np.abs(once) >= 2.0**-100) & np.isfinite(found)
    assert np.array_equal(found[normal], once[normal])
    assert np.isinf(found).any()
    assert (np.abs(found[found != 0]) < 2.0**-126).any()


def test_sums_that_overflow_on_the_way(device):
    """Those of a chunk beyond the range, of which another brings the total back: FFMA decides."""
    a, b = np.zeros((4, 128), np.float32), np.ones((128, 4), np.float32)
    a[0, [0, 1, 2, 3]] = np.float32([1, -1, 1, -1]) * np.float32(2.0**127)
    a[1, :2], a[1, 64:66] = 2.0**127, -(2.0**127)
    a[2, [0, 64]] = 2.0**127, -(2.0**127)
    found = multiplied(device, a, b)
    assert (found[[0, 2, 3]] == 0).all()
    # As by a chain of fused multiply-adds, whose second term is beyond the range too.
    assert np.array_equal(found[1], fused_chain(a, b)[1])


PLAIN = [0.0, -0.0, 2.0**-149, -1.0]
finite = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([*PLAIN, 2.0**127]),
)


# Shrinking would take minutes.
@settings(max_examples=8, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_any_numbers_in_any_place(device, data):
    """Shapes, exponents by line and by element, a few given numbers: within the bound, by IEEE."""
    m, n, k = (4 * data.draw(st.integers(*each)) for each in ((1, 10), (1, 10), (16, 40)))
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
    # `multiplied` compares with the bound.
    found, wanted = multiplied(device, a, b), by_ieee(a, b)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
    if np.isfinite(a).all() and np.isfinite(b).all():
        assert np.array_equal(found, split_product_by_chunk(a, b))


def test_neither_operand_is_read_where_alpha_is_zero(device):
    problem = GemmProblem(20, 36, 76, 0.0, precision="fp32")
    check_exact(problem, run(device, problem))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"BK": 16}, "BK = 16: use 32 or 64"),
        ({"consumers": 2, "pingpong": 2, "BM": 64}, "all consumers split the operands of a tile"),
        ({"BN": 48}, "BN"),
        ({"BM": 16, "BN": 64}, "BM"),
        ({"stages": 12}, "shared memory"),
    ],
)
def test_rules(keys, message):
    problem = GemmProblem(64, 64, 256, precision="fp32")
    assert message in KERNEL.supports(problem, KERNEL.configure(NARROW | keys), H100)


def test_what_it_refuses_is_told_with_what_takes_it():
    short = GemmProblem(64, 64, LEAST_K - 1, precision="fp32")
    with pytest.raises(UnsupportedProblem, match=f"k = {LEAST_K - 1} is less than {LEAST_K}"):
        KERNEL.plan(short, KERNEL.default, H100)
    whole = GemmProblem(64, 64, LEAST_K, precision="ieee")
    assert "--precision fp32 allows that" in KERNEL.supports(whole, KERNEL.default, H100)


def test_only_rows_that_tma_cannot_load_are_copied_before():
    """A's rows of k elements, and B's of n."""
    for n, k, copied in ((256, 256, ""), (256, 257, "A"), (257, 256, "B")):
        problem = GemmProblem(64, n, k, precision="fp32")
        plan = KERNEL.plan(problem, KERNEL.default, H100)
        shape = KERNEL.launch(problem, KERNEL.default, H100)
        assert "".join(each.operand for each in shape.copies) == copied
        assert (plan.before is not None) == bool(copied)
