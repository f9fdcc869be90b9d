"""`gemm_fp16x3`: fp32 in three products of fp16 parts, on the emulator with its sanitizers."""

from __future__ import annotations

from dataclasses import replace

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
from gemmkit.kernels.splitting import HELD_ACROSS, HELD_ALONG, MOST_OF_CLUSTER, WARPS
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.split_products import LEAST_K
from split_model import FAMILIES, fused_chain, split_product

KERNEL = find_kernel("gemm_fp16x3")
H100 = find_board("h100")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1}
SHORT = {**NARROW, "BK": 32, "stages": 3, "cluster_k": 2}
SWAPPED = {**NARROW, "BM": 16, "BN": 64}
BLOCKS = {**SWAPPED, "BM": 32, "cluster_k": 4}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


def run(device, problem, keys=NARROW, **options):
    config = KERNEL.configure(keys)
    return run_typed(problem, device, kernel="gemm_fp16x3", config=config, **options)


def multiplied(device, a, b, keys=NARROW, **fields):
    """A·B of float32 matrices, which breaks no rule and is within the bounds."""
    problem = GemmProblem(a.shape[0], b.shape[1], a.shape[1], precision="fp32", **fields)
    with np.errstate(over="ignore"):
        outcome = run(device, problem, keys, given=(a.astype(float), b.astype(float)))
    check(outcome)
    return outcome.results[0].astype(np.float32)


# All layouts, chunks of both lengths, tiles and transposed ones, rows that begin anywhere.
EXACT = {
    "ragged, unaligned rows": (NARROW, GemmProblem(100, 70, 77, precision="fp32")),
    "padded rows, alpha and beta, blocks share k": (
        SHORT,
        GemmProblem(
            70, 66, 100, 0.5, -2.0, lda=103, ldb=104, ldc=72, precision="fp32", transb=True
        ),
    ),
    "a batch with its own strides, few rows, epilogue": (
        SWAPPED,
        GemmProblem(
            *(19, 70, 68),
            transa=True,
            batch=2,
            stride_a=19 * 68 + 3,
            out_dtype="float16",
            epilogue=Epilogue("row", "relu", residual=True),
            precision="fp32",
        ),
    ),
    "a batch that shares B": (
        BLOCKS,
        GemmProblem(
            *(17, 40, 130),
            transa=True,
            transb=True,
            batch=3,
            stride_b=BROADCAST,
            beta=1.0,
            out_dtype="bfloat16",
            precision="fp32",
        ),
    ),
}


@pytest.mark.parametrize(("keys", "problem"), EXACT.values(), ids=EXACT.keys())
@pytest.mark.sample(4)
def test_integers_are_exact(device, keys, problem):
    check_exact(problem, run(device, problem, keys))


def test_blocks_go_from_tile_to_tile_in_turns():
    small = EmulatedDevice(replace(H100, sm_count=2), sanitize=True)
    problem = GemmProblem(260, 90, 77, precision="fp32", transb=True)
    turns = {**NARROW, "consumers": 2, "pingpong": 2}
    assert KERNEL.plan(problem, KERNEL.configure(turns), small.spec).blocks == 2
    check_exact(problem, run(small, problem, turns))


def test_neither_operand_is_read_where_alpha_is_zero(device):
    problem = GemmProblem(100, 70, 77, 0.0, precision="fp32")
    plan = KERNEL.plan(problem, KERNEL.configure(NARROW), H100)
    assert plan.before is None
    check_exact(problem, run(device, problem))


@pytest.mark.parametrize(("keys", "depth", "blocks"), [(NARROW, 64, 1), (SHORT, 32, 2)])
def test_results_are_those_of_the_model_to_the_bit(device, keys, depth, blocks):
    """So that what holds of `split_product` in tests of the bound holds of the kernel."""
    rng = np.random.default_rng(1)
    for family in ("normal", "graded"):
        a, b = FAMILIES[family](rng, 30, 50, 200)
        found = multiplied(device, a, b, keys)
        assert np.array_equal(found, split_product(a, b, depth, blocks))


def test_long_lines_are_read_twice(device):
    """Those that do not fit the registers of `split_operands`, whichever way they lie."""
    k = HELD_ALONG * WARPS + 33
    assert k > HELD_ACROSS * MOST_OF_CLUSTER
    a, b = FAMILIES["normal"](np.random.default_rng(2), 3, 5, k)
    found = multiplied(device, a, b)
    assert np.array_equal(found, split_product(a, b))
    errors = [np.abs(each - a.astype(float) @ b) for each in (found, fused_chain(a, b))]
    assert np.linalg.norm(errors[0]) < np.linalg.norm(errors[1]) / 3


NOT_FINITE = [np.inf, -np.inf, np.nan]


def by_ieee(a, b):
    """Whether each element is NaN, or which infinity."""
    with np.errstate(invalid="ignore"):
        return a.astype(float) @ b.astype(float)


@pytest.mark.parametrize("keys", [NARROW, SWAPPED])
@pytest.mark.sample(2)
def test_infinities_and_nan(device, keys):
    """Inf·0, Inf − Inf, and tiles that have lines of both kinds; β·C in them too."""
    rng = np.random.default_rng(4)
    m, n, k = (70, 40, 77) if keys is NARROW else (19, 70, 77)
    for beta in (0.0, 0.5):
        a, b = FAMILIES["normal"](rng, m, n, k)
        for where, number in zip(((3, 5), (4, 0), (9, k - 1)), NOT_FINITE, strict=True):
            a[where] = number
        a[4, 1] = np.inf  # beside -inf
        b[5, 7] = 0  # below inf
        b[k - 1, n - 1] = np.inf
        b[:, 11] = 0
        problem = GemmProblem(m, n, k, beta=beta, precision="fp32")
        outcome = run(
            device, problem, keys, integers=False, given=(a.astype(float), b.astype(float))
        )
        check(outcome)
        found, wanted = outcome.results[0], by_ieee(a, b)
        assert np.array_equal(np.isnan(found), np.isnan(wanted))
        infinite = np.isinf(wanted)
        assert np.array_equal(found[infinite], wanted[infinite])
        assert np.isfinite(found[~infinite & ~np.isnan(wanted)]).all()


def test_results_are_rounded_once_also_beyond_the_range_and_below_it(device):
    """2^±k factors change nothing but the exponent, until results overflow or underflow."""
    rng = np.random.default_rng(6)
    a, b = FAMILIES["normal"](rng, 20, 30, 77)
    plain = split_product(a, b).astype(float)
    rows = np.exp2(np.array([-149, -140, -130, -126, -60, -1, 0, 60, 110, 120] * 2))
    columns = np.exp2(np.array([0, -10, -60, 3, 9, 60] * 5))
    scaled_a, scaled_b = np.float32(a * rows[:, None]), np.float32(b * columns)
    # Where A itself is rounded to subnormal numbers, the model says what is right.
    found = multiplied(device, scaled_a, scaled_b)
    assert np.array_equal(found, split_product(scaled_a, scaled_b))
    whole = rows >= 2.0**-100
    with np.errstate(over="ignore"):
        once = (plain * rows[:, None] * columns).astype(np.float32)
    assert np.array_equal(found[whole], once[whole])
    assert np.isinf(found).any()
    assert (np.abs(found[found != 0]) < 2.0**-126).any()


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
    found, wanted = multiplied(device, a, b), by_ieee(a, b)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
    if np.isfinite(a).all() and np.isfinite(b).all():
        assert np.array_equal(found, split_product(a, b))


def _huge(rng, a, b):
    """One element of a row is far larger than the others; what it meets is small, or nothing."""
    where = rng.integers(a.shape[1])
    a[rng.integers(a.shape[0]), where] *= np.float32(np.exp2(rng.integers(12, 100)))
    b[where] *= np.float32(rng.choice([0.0, 2.0**-30, 1.0]))


def _subnormal(rng, a, b):
    a *= np.float32(np.exp2(rng.integers(-148, -120)))
    b[rng.integers(b.shape[0])] = np.float32(2.0**-149)


def _cancelling(rng, a, b):
    """Signs alternate, and pairs of terms differ by a unit in the last place, or not at all."""
    k = a.shape[1] // 2 * 2
    a[:, 1:k:2] = -a[:, 0:k:2]
    b[1:k:2] = b[0:k:2]
    a[:, k:] = 0
    where = rng.integers(k), rng.integers(b.shape[1])
    b[where] = np.nextafter(b[where], np.float32(np.inf))


def _overflowing(rng, a, b):
    """Beyond the largest number in some results, and near it in others."""
    a *= np.float32(np.exp2(rng.integers(60, 70)))
    b *= np.float32(np.exp2(rng.integers(55, 62)))


def _special(rng, a, b):
    for matrix in (a, b):
        for number in NOT_FINITE:
            matrix[tuple(map(rng.integers, matrix.shape))] = number


ADVERSARIAL = [_huge, _subnormal, _cancelling, _overflowing, _special]


@settings(max_examples=4, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@pytest.mark.parametrize("spoil", ADVERSARIAL, ids=lambda each: each.__name__.strip("_"))
@given(
    seed=st.integers(0, 2**32), shape=st.tuples(*[st.integers(1, 40)] * 2), k=st.integers(32, 45)
)
@pytest.mark.sample(2)
def test_adversarial_inputs_are_within_the_bound(device, spoil, seed, shape, k):
    """Of random shapes, and lines of random exponents."""
    rng, k = np.random.default_rng(seed), 2 * k + 1
    a, b = (rng.standard_normal(each, np.float32) for each in ((shape[0], k), (k, shape[1])))
    a *= np.float32(np.exp2(rng.integers(-20, 20, (shape[0], 1))))
    with np.errstate(over="ignore"):
        spoil(rng, a, b)
    # `multiplied` compares with the bound.
    found, wanted = multiplied(device, a, b), by_ieee(a, b)
    if spoil is _special:
        assert np.array_equal(np.isnan(found), np.isnan(wanted))
        assert np.array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
    else:
        assert np.array_equal(found, split_product(a, b))
        assert not np.isnan(found).any()


def test_terms_that_cancel(device):
    """To the last bit of the largest term, and to zero."""
    a = np.ones((3, 65), np.float32)
    a[:, 1::2] = -1
    a[:, 64] = 0
    b = np.float32(1 + np.random.default_rng(8).random((65, 4)))
    b[1::2] = b[:-1:2]
    b[5, 1] = np.nextafter(b[5, 1], np.float32(4))
    found = multiplied(device, a, b)
    assert np.array_equal(found[:, 1], np.full(3, -(2.0**-23)))
    assert not found[:, [0, 2, 3]].any()


@pytest.mark.parametrize("chunk", [16, 96, 128])
def test_chunks_that_the_bound_is_not_of_are_refused(chunk):
    config, problem = KERNEL.configure(NARROW | {"BK": chunk}), GemmProblem(8, 8, 256)
    refused = KERNEL.supports(replace(problem, precision="fp32"), config, H100)
    assert refused == (
        f"BK = {chunk}: use 32 or 64, the elements of k after which sums are promoted"
    )


def test_products_of_a_short_k_are_refused():
    short = GemmProblem(64, 64, LEAST_K - 1, precision="fp32")
    with pytest.raises(UnsupportedProblem, match=f"k = {LEAST_K - 1} is less than {LEAST_K}"):
        KERNEL.plan(short, KERNEL.default, H100)
    whole = replace(short, precision="ieee")
    assert "--precision fp32 allows that" in KERNEL.supports(whole, KERNEL.default, H100)
