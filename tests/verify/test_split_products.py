"""The bounds of fp32 in three products of parts, of fp16 and of TF32, against what such products
are to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.split_products import (
    LEAST_K,
    LONGEST_CHUNK,
    MOST_BLOCKS,
    SHORTEST_CHUNK,
    SPLIT_PRODUCTS,
    TF32_CHUNK,
    TF32_PRODUCTS,
)
from gemmkit.verify import Reference, make_inputs
from gemmkit.verify.arithmetic import FP32, named_arithmetic
from gemmkit.verify.bounds import Rounding, gamma
from gemmkit.verify.encoding import Matrix
from gemmkit.verify.line_sizes import LineSizes, of_lines
from gemmkit.verify.split_products import (
    BY_CHUNK,
    IN_TF32,
    TF32_OVERFLOW,
    TF32_UNDERFLOW,
    UNDERFLOW,
    UNIT,
    SplitProducts,
)
from split_model import (
    FAMILIES,
    fused_chain,
    split,
    split_product,
    split_product_by_chunk,
    split_tf32,
    tf32x3_product,
    tf32x3_sums,
)

SPLIT, TF32 = (named_arithmetic(each, None) for each in (SPLIT_PRODUCTS, TF32_PRODUCTS))
DEPTHS = (SHORTEST_CHUNK, LONGEST_CHUNK)


def exact(a, b):
    """A·B and |A|·|B| in extended precision."""
    left, right = a.astype(np.longdouble), b.astype(np.longdouble)
    return left @ right, np.abs(left) @ np.abs(right)


def bounded(a, b, found, k=None):
    """The largest error relative to the bound."""
    values, magnitude = exact(a, b)
    lines = of_lines(Matrix(a, "float32"), Matrix(b, "float32"))
    bound = SplitProducts().relative(k or a.shape[1]) * magnitude + UNDERFLOW * lines + 2.0**-150
    return float(np.max(np.abs(found - values) / bound))


def test_the_kernel_has_these_chunks_and_no_more_blocks_share_k():
    kernel = find_kernel("gemm_fp16x3")
    assert kernel.space["BK"] == DEPTHS == SplitProducts().chunks
    assert max(kernel.space["cluster_k"]) == MOST_BLOCKS
    assert kernel.compute_dtype == SPLIT_PRODUCTS


def test_from_the_least_k_on_the_bound_is_at_most_that_of_fp32():
    larger = [
        k
        for k in (*range(1, 3000), *range(3001, 40_000, 97))
        if SplitProducts().relative(k) > gamma(k, UNIT)
    ]
    assert max(larger) == 34 < LEAST_K
    for k in (2**17, 2**20, 2**23):
        assert SplitProducts().relative(k) < gamma(k, UNIT) / 30


def test_in_norms_the_bound_is_below_that_of_fp32():
    """X·Σ|b| + Y·Σ|a| ≤ 2·√k·‖a‖·‖b‖, and Σ|a||b| ≤ ‖a‖·‖b‖."""
    for k in (*range(LEAST_K, 3000), *range(3001, 40_000, 97), 2**17, 2**20):
        assert SplitProducts().relative(k) + 2 * UNDERFLOW * k**0.5 < gamma(k, UNIT)
    assert 2 * UNDERFLOW * LEAST_K**0.5 < 0.001 * UNIT


@pytest.mark.parametrize(("k", "units"), [(64, 51.2), (1024, 63.2), (4096, 155.1)])
def test_the_bound_in_units(k, units):
    assert SplitProducts().relative(k) / UNIT == pytest.approx(units, abs=0.05)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_errors_are_within_the_bound(family, depth):
    rng = np.random.default_rng(3)
    for k, blocks in ((64, 1), (100, 2), (1000, 4)):
        a, b = FAMILIES[family](rng, 12, 10, k)
        assert bounded(a, b, split_product(a, b, depth, blocks)) < 1


@pytest.mark.parametrize("family", FAMILIES)
def test_errors_are_within_the_bound_where_chunks_have_scales(family):
    rng = np.random.default_rng(3)
    for k, depth, blocks in ((64, 32, 1), (100, 64, 2), (1000, 64, 4)):
        a, b = FAMILIES[family](rng, 12, 10, k)
        assert bounded(a, b, split_product_by_chunk(a, b, depth, blocks)) < 1


def test_only_sums_without_the_scales_of_lines_may_overflow():
    of_lines, of_chunks = SplitProducts(), BY_CHUNK
    assert of_lines.relative(1000) == of_chunks.relative(1000)
    assert of_lines.of_lines == of_chunks.of_lines
    assert [each.may_overflow(64, 2.0**60, 2.0**61) for each in (of_lines, of_chunks)] == [0, 1]
    assert not of_chunks.may_overflow(64, 2.0**60, 2.0**60)
    # Parts of TF32 overflow for themselves, those with scales do not.
    assert not of_chunks.may_overflow(64, 2.0**127.9, 2.0**-10)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sample(2)
def test_long_sums_are_more_exact_than_those_of_fused_multiply_adds(family):
    """Norm-wise, each line relative to its own norm, and by the worst element."""
    rng = np.random.default_rng(5)
    for k in (512, 2048):
        a, b = FAMILIES[family](rng, 16, 16, k)
        values, magnitude = exact(a, b)
        own = np.multiply.outer(*(np.linalg.norm(x.astype(float), axis=1) for x in (a, b.T)))
        split_errors, chain_errors = (
            np.abs(each - values) for each in (split_product(a, b), fused_chain(a, b))
        )
        assert np.linalg.norm(split_errors / own) < np.linalg.norm(chain_errors / own)
        assert np.max(split_errors / magnitude) < np.max(chain_errors / magnitude)


def test_the_bound_is_nearly_reached():
    """After 1 tensor cores cut off each product below 2^-25 whole."""
    a = np.full((1, 64), 2.0**-25 * (1 - 2.0**-11), np.float32)
    a[0, 0] = 1
    b = np.ones((64, 1), np.float32)
    ratio = bounded(a, b, split_product(a, b))
    assert 0.6 < ratio < 1
    # Fused multiply-adds lose as many terms, and of twice the size.
    assert fused_chain(a, b)[0, 0] == split_product(a, b)[0, 0] == 1


numbers = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True)


@settings(max_examples=60)
@given(st.data())
def test_any_numbers(data):
    m, n = (data.draw(st.integers(1, 3)) for _ in range(2))
    k = data.draw(st.integers(1, 70))
    spread = data.draw(st.sampled_from((0, 3, 12, 17, 20, 30, 60)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a, b = (
        np.float32(rng.standard_normal(shape) * np.exp2(rng.uniform(-spread, spread, shape)))
        for shape in ((m, k), (k, n))
    )
    if data.draw(st.booleans()):
        a[rng.integers(m), rng.integers(k)] = data.draw(numbers)
    if data.draw(st.booleans()):
        b[rng.integers(k)] = 0
    with np.errstate(over="ignore"):
        found = split_product(a, b, data.draw(st.sampled_from(DEPTHS)))
    if np.isfinite(found).all():
        assert bounded(a, b, found, k=max(k, 64)) < 1


@given(st.floats(2.0**-20, 2.0**15 - 1, width=32))
def test_parts_are_within_two_units_of_a_number(x):
    line = np.array([[x, 2.0**15 - 1]], np.float32)
    high, low, _ = split(line)
    off = abs(float(high[0, 0]) + float(low[0, 0]) - x)
    assert off <= max(2 * UNIT * x, 2.0**-25)
    assert abs(float(low[0, 0])) <= 2.0**-11 * x


def test_integers_of_eleven_bits_are_exact():
    assert (SPLIT.operand_bits, SPLIT.sum_bits) == (11, 24)
    rng = np.random.default_rng(0)
    for most, k in ((2048, 4), (64, 2048)):
        a = rng.integers(-most, most, (4, k), endpoint=True).astype(np.float32)
        b = rng.integers(0, most, (k, 4), endpoint=True).astype(np.float32)
        assert np.array_equal(split_product(a, b), a.astype(float) @ b.astype(float))


PROBLEM = GemmProblem(24, 20, 300, precision="fp32")


def inputs_of(a, b):
    made = make_inputs(replace(PROBLEM, m=a.shape[0], n=b.shape[1], k=a.shape[1]))
    return replace(made, a=a.ravel(), b=b.ravel())


def wide(seed=0):
    """Rows with one element that is far larger than the others."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((24, 300), (300, 20)))
    a[:, 7] *= 2.0**36
    b[7] = 0
    return a, b


def test_what_underflows_is_relative_to_the_lines():
    a, b = wide()
    inputs, found = inputs_of(a, b), split_product(a, b)
    verdict = Reference(PROBLEM, inputs, "full", SPLIT).check(found.ravel())
    assert verdict.correct
    assert verdict.error_ratio > 1 / 16
    assert not Reference(PROBLEM, inputs, "full", FP32).check(found.ravel()).correct
    # The same error in a row without such an element is wrong.
    calm = a.copy()
    calm[3, 7] = 0
    off = found.copy()
    assert (
        Reference(PROBLEM, inputs_of(calm, b), "full", SPLIT)
        .check(split_product(calm, b).ravel())
        .correct
    )
    assert not Reference(PROBLEM, inputs_of(calm, b), "full", SPLIT).check(off.ravel()).correct


def test_freivalds_check_knows_of_it():
    a, b = wide()
    reference = Reference(PROBLEM, inputs_of(a, b), "sampled", SPLIT)
    assert "Freivalds" in reference.method
    found = split_product(a, b)
    assert reference.check(found.ravel()).correct
    freivalds = reference.products[0].freivalds
    assert freivalds is not None
    off = found.copy()
    off[11, 5] += np.float32(2.0**26)
    assert freivalds.suspects(Matrix(off, "float32")).tolist() == [11]
    # Errors of the lines count by their own norms.
    rows, columns = (
        LineSizes.of_rows(Matrix(a, "float32")),
        LineSizes.of_columns(Matrix(b, "float32")),
    )
    of_rows = rows.largest * np.linalg.norm(columns.sums)
    assert (freivalds.tolerance > 8 * UNDERFLOW * of_rows).all()


def test_tiles_that_are_not_finite_have_the_bound_of_fused_multiply_adds():
    problem = GemmProblem(24, 20, 4096, precision="fp32")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((24, 4096), (4096, 20)))
    finite = Rounding.of(problem, replace(make_inputs(problem), a=a.ravel(), b=b.ravel()), SPLIT)
    a[3, 5] = np.nan
    other = Rounding.of(problem, replace(make_inputs(problem), a=a.ravel(), b=b.ravel()), SPLIT)
    assert finite.relative == pytest.approx(155.1 * UNIT, rel=1e-3)
    assert other.relative == pytest.approx(4096 * UNIT, rel=1e-3)


def test_other_roundings_come_on_top():
    """α, β·C and the bias round as in fp32; a result of 16 bits is rounded once more."""
    inputs = make_inputs(replace(PROBLEM, alpha=0.3, beta=0.7))
    more = Rounding.of(replace(PROBLEM, alpha=0.3, beta=0.7), inputs, SPLIT)
    plain = Rounding.of(PROBLEM, inputs, SPLIT)
    assert 2 * UNIT < more.relative - plain.relative < 2.01 * UNIT
    assert more.of_lines == plain.of_lines == UNDERFLOW
    half = replace(PROBLEM, out_dtype="float16")
    assert Rounding.of(half, make_inputs(half), SPLIT).stored.name == "float16"
    nothing = replace(PROBLEM, alpha=0.0, beta=0.3)
    unread = Rounding.of(nothing, make_inputs(nothing), SPLIT)
    assert (unread.relative / UNIT, unread.of_lines) == (pytest.approx(2), 0)


def test_sizes_of_lines_leave_out_what_is_not_finite():
    values = np.array([[1, -3, np.inf], [np.nan, 2, 0]], np.float32)
    rows, columns = (
        each(Matrix(values, "float32")) for each in (LineSizes.of_rows, LineSizes.of_columns)
    )
    assert (rows.largest.tolist(), rows.sums.tolist()) == ([3, 2], [4, 2])
    assert (columns.largest.tolist(), columns.sums.tolist()) == ([1, 3, 0], [1, 5, 0])
    assert LineSizes.of_rows(Matrix(values[:0], "float32")).sums.size == 0


def bounded_in_tf32(a, b, found):
    """The largest error relative to the bound of parts of TF32."""
    k, (values, magnitude) = a.shape[1], exact(a, b)
    largest = [float(np.max(np.abs(x), initial=0.0)) for x in (a, b)]
    lost = IN_TF32.underflow(k, *largest) + k * 2.0**-149
    return float(np.max(np.abs(found - values) / (IN_TF32.relative(k) * magnitude + lost)))


def test_the_kernel_of_tf32_has_this_chunk():
    kernel = find_kernel("gemm_tf32x3")
    assert IN_TF32.chunks == (TF32_CHUNK,)
    assert all(each % TF32_CHUNK == 0 for each in kernel.space["BK"])
    assert (kernel.compute_dtype, kernel.precision) == (TF32_PRODUCTS, "fp32")


def test_from_the_least_k_on_the_bound_of_tf32_is_at_most_that_of_fp32():
    larger = [
        k
        for k in (*range(1, 3000), *range(3001, 40_000, 97))
        if IN_TF32.relative(k) > gamma(k, UNIT)
    ]
    assert max(larger) == 22 < LEAST_K


@pytest.mark.parametrize(("k", "units"), [(64, 27.1), (1024, 147.1), (4096, 531.1)])
def test_the_bound_of_tf32_in_units(k, units):
    assert IN_TF32.relative(k) / UNIT == pytest.approx(units, abs=0.1)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sample(3)
def test_errors_of_tf32_are_within_the_bound(family, capability):
    rng = np.random.default_rng(3)
    for k in (64, 100, 600):
        a, b = FAMILIES[family](rng, 12, 10, k)
        assert bounded_in_tf32(a, b, tf32x3_product(a, b, capability)) < 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sample(2)
def test_long_sums_of_tf32_are_more_exact_than_those_of_fused_multiply_adds(family):
    """Norm-wise, each line relative to its own norm."""
    rng = np.random.default_rng(5)
    a, b = FAMILIES[family](rng, 16, 16, 2048)
    values, _ = exact(a, b)
    own = np.multiply.outer(*(np.linalg.norm(x.astype(float), axis=1) for x in (a, b.T)))
    off = [np.abs(each - values) for each in (tf32x3_product(a, b), fused_chain(a, b))]
    assert np.linalg.norm(off[0] / own) < np.linalg.norm(off[1] / own)


def test_the_bounds_of_tf32_are_nearly_reached():
    """After 1 tensor cores of Ampere cut off each product of the chunk below 2^-24 whole; and a
    part of twelve bits loses its last."""
    a = np.full((1, 8), 2.0**-24 * (1 - 2.0**-11), np.float32)
    a[0, 0] = 1
    b = np.ones((8, 1), np.float32)
    assert tf32x3_product(a, b)[0, 0] == 1
    assert 6.9 < abs(1 - exact(a, b)[0][0, 0]) / UNIT < 7
    number = 1 + 2.0**-12 + 2.0**-23
    assert number - sum(as_read(number)) == 2.0**-23


def as_read(number):
    """The parts of a number as tensor cores read them."""
    parts = split_tf32(np.array([number], np.float32))
    return [float((each & np.uint32(0xFFFFE000)).view(np.float32)[0]) for each in parts]


@settings(max_examples=80)
@given(st.data())
def test_any_numbers_in_tf32(data):
    m, n = (data.draw(st.integers(1, 3)) for _ in range(2))
    k = data.draw(st.integers(1, 70))
    spread = data.draw(st.sampled_from((0, 3, 12, 17, 20, 30, 60)))
    shift = data.draw(st.sampled_from((0, 0, -60, -90, -110, -125, -140)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a, b = (
        rng.standard_normal(shape) * np.exp2(rng.uniform(-spread, spread, shape))
        for shape in ((m, k), (k, n))
    )
    a, b = np.float32(np.ldexp(a, shift)), np.float32(b)
    if data.draw(st.booleans()):
        a[rng.integers(m), rng.integers(k)] = data.draw(numbers)
    if data.draw(st.booleans()):
        b[rng.integers(k)] = 0
    for capability in ((8, 0), (9, 0)):
        found = tf32x3_sums(a, b, capability)
        if np.isfinite(found).all():
            assert bounded_in_tf32(a, b, found) < 1


@given(st.floats(2.0**-149, float(np.finfo(np.float32).max), width=32))
def test_parts_of_tf32_are_within_two_units_of_a_number(x):
    seen = as_read(x)
    if x >= TF32_OVERFLOW:
        assert seen == [np.inf, -np.inf]
        return
    assert abs(sum(seen) - x) <= max(2 * UNIT * x, TF32_UNDERFLOW)
    assert abs(seen[1]) <= 2.0**-11 * x


def test_integers_of_eleven_bits_are_exact_in_tf32():
    assert (TF32.operand_bits, TF32.sum_bits) == (11, 24)
    rng = np.random.default_rng(0)
    for most, k in ((2048, 4), (64, 2048)):
        a = rng.integers(-most, most, (4, k), endpoint=True).astype(np.float32)
        b = rng.integers(0, most, (k, 4), endpoint=True).astype(np.float32)
        assert np.array_equal(tf32x3_product(a, b), a.astype(float) @ b.astype(float))


def test_what_underflows_in_tf32_is_relative_to_no_line():
    """Numbers below 2^-113: the bound allows what they lose, and no more."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((24, 300), (300, 20)))
    a = np.float32(np.ldexp(a.astype(float), -125))
    inputs, found = inputs_of(a, b), tf32x3_product(a, b)
    assert Reference(PROBLEM, inputs, "full", TF32).check(found.ravel()).correct
    assert not Reference(PROBLEM, inputs, "full", FP32).check(found.ravel()).correct
    off = found.copy()
    off[3, 7] += np.float32(2.0**-120)
    assert not Reference(PROBLEM, inputs, "full", TF32).check(off.ravel()).correct


@pytest.mark.parametrize("number", [np.inf, TF32_OVERFLOW, 2.0**120])
def test_sums_that_may_not_be_finite_have_the_bound_of_fused_multiply_adds(number):
    problem = GemmProblem(24, 20, 4096, precision="fp32")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((24, 4096), (4096, 20)))
    made = make_inputs(problem)
    finite = Rounding.of(problem, replace(made, a=a.ravel(), b=b.ravel()), TF32)
    assert finite.relative == pytest.approx(531 * UNIT, rel=1e-3)
    assert finite.of_lines == 0
    a[3, 5] = number
    other = Rounding.of(problem, replace(made, a=a.ravel(), b=b.ravel()), TF32)
    assert other.relative == pytest.approx(4096 * UNIT, rel=1e-3)
