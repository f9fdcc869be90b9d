"""The same inputs, references and verdicts on any number of cores, and nothing twice."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gemmkit.groups import Groups
from gemmkit.problem import GemmProblem
from gemmkit.verify import Reference, make_inputs, row_blocks
from gemmkit.verify import encoding as encoding_module
from gemmkit.verify import reference as reference_module
from gemmkit.verify.arithmetic import FP32, Arithmetic
from gemmkit.verify.blas_threads import controller, one_blas_thread
from gemmkit.verify.bounds import Rounding
from gemmkit.verify.encoding import Matrix, decode, encode, extremes
from gemmkit.verify.freivalds import Freivalds
from gemmkit.verify.overwritten import overwritten
from gemmkit.verify.row_blocks import of_products, on_all_cores

RAGGED = GemmProblem.of_groups(
    Groups.of([3, 0, 40, 7, 1, 22], 30, 24, ragged=True), dtype="bfloat16"
)


@pytest.fixture
def cores(monkeypatch):
    def given(count: int) -> None:
        monkeypatch.setattr(row_blocks, "usable_cores", lambda: count)

    return given


def test_results_are_in_order_and_work_within_work_is_done_one_by_one(cores):
    cores(4)
    together, threads = threading.Barrier(4, timeout=30), set()

    def inner(number):
        threads.add(threading.get_ident())
        return number

    def outer(number):
        together.wait()  # Four items are at work at once.
        assert on_all_cores(inner, range(3)) == [0, 1, 2]
        return 10 * number

    assert on_all_cores(outer, range(8)) == [0, 10, 20, 30, 40, 50, 60, 70]
    assert threading.get_ident() not in threads
    assert len(threads) <= 4
    # Afterwards this thread still shares its work.
    threads.clear()
    on_all_cores(inner, range(8))
    assert threading.get_ident() not in threads


def blas_threads():
    """Threads of each BLAS that is loaded."""
    found = controller().select(user_api="blas")
    return [each.get_num_threads() for each in found.lib_controllers]


def test_products_by_many_threads_take_one_thread_each(cores):
    """As many as before afterwards, also where work fails."""
    if not blas_threads():
        pytest.skip("NumPy's BLAS is not one of which the threads can be set")
    cores(2)
    with controller().limit(limits=2, user_api="blas"):
        of_work = on_all_cores(lambda _: blas_threads(), range(4))
        assert of_work == 4 * [[1] * len(of_work[0])]
        assert set(blas_threads()) == {2}
        with pytest.raises(ZeroDivisionError):
            on_all_cores(lambda each: 1 // each, (0, 1))
        assert set(blas_threads()) == {2}
        with one_blas_thread():
            on_all_cores(lambda _: None, range(2))
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {2}


def test_few_products_have_all_cores_each(cores):
    cores(8)
    seen = of_products(lambda _: threading.get_ident(), range(3))
    assert set(seen) == {threading.get_ident()}
    seen = of_products(lambda _: threading.get_ident(), range(4))
    assert threading.get_ident() not in seen


def test_how_numpy_treats_errors_holds_on_all_cores(cores):
    cores(2)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        on_all_cores(lambda each: np.float32(each) / np.zeros(1, np.float32), (1, 2))
    with np.errstate(divide="ignore"):
        on_all_cores(lambda each: np.float32(each) / np.zeros(1, np.float32), (1, 2))


@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_groups_are_the_same_on_any_number_of_cores(cores, monkeypatch, kind):
    monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", 100)
    found = []
    for count in (1, 3):
        cores(count)
        inputs = make_inputs(RAGGED, 5, kind)
        reference = Reference(RAGGED, inputs)
        result = inputs.c.copy()
        views = reference.placements["c"].view(result)
        for product, view in zip(reference.products, views, strict=True):
            view[...] = encode(product.blocks[0][2].values.astype(np.float32), "bfloat16")
        wrong = result.copy()
        wrong[17] ^= 0x4000
        found.append((inputs, reference.check(result), reference.check(wrong)))
    (one, right, wrong), (other, right_too, wrong_too) = found
    for name, each in one.arrays.items():
        assert np.array_equal(each, other.arrays[name])
    assert (right, right.correct) == (right_too, True)
    assert (wrong.detail, wrong.correct) == (wrong_too.detail, False)
    assert "product" in wrong.detail


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
def test_large_matrices_are_rounded_as_small_ones(cores, monkeypatch, dtype):
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore", under="ignore"):
        powers = rng.integers(-140, 140, (70, 50))
        values = np.ldexp(rng.standard_normal((70, 50)), powers).astype(np.float32)
    values[3, 4], values[69, 49], values[0, 0] = np.nan, np.inf, -np.inf
    with np.errstate(over="ignore"):
        whole = encode(values, dtype)
        monkeypatch.setattr(encoding_module, "CHUNK", 64)
        monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", 1000)
        cores(3)
        in_parts, of_columns = encode(values, dtype), encode(values.T, dtype)
    assert whole.shape == in_parts.shape
    bits = f"u{whole.itemsize}"
    assert np.array_equal(whole.view(bits), in_parts.view(bits))
    assert np.array_equal(whole.T.copy().view(bits), of_columns.copy().view(bits))


def test_bfloat16_is_to_nearest_even():
    """Halfway between two numbers, the one with an even last bit; past the largest, infinity."""
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7F8000], np.uint32)
    assert encode(bits.view(np.float32), "bfloat16").tolist() == [
        *(0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80)
    ]
    patterns = np.arange(1 << 16, dtype=np.uint16)
    numbers = decode(patterns, "bfloat16")
    again = encode(numbers, "bfloat16")
    assert np.array_equal(again[~np.isnan(numbers)], patterns[~np.isnan(numbers)])
    assert set(again[np.isnan(numbers)]) == {0x7FC0}


def test_extremes_leave_out_what_is_not_finite(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", 6)
    values = np.array([[1, -9, 2], [3, 4, 5], [-6, 7, 8]], np.float32)
    assert extremes(Matrix(values, "float32")) == (9, True)
    values[0, 1], values[2, 2] = np.nan, -np.inf
    assert extremes(Matrix(values, "float32")) == (7, False)
    assert extremes(Matrix(np.empty((0, 3), np.float32), "float32")) == (0, True)


@pytest.mark.parametrize(("m", "n"), [(5, 700), (700, 5), (70, 700)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_products_of_few_lines_are_those_of_all_cores(cores, monkeypatch, m, n, dtype):
    rng = np.random.default_rng(1)
    problem = GemmProblem(m, n, 60, dtype=dtype)
    inputs = make_inputs(problem, 2)
    cores(1)
    expected = reference_module.evaluate(problem, inputs)
    monkeypatch.setattr(reference_module, "ONCE_ELEMENTS", 6000)
    cores(3)
    found = reference_module.evaluate(problem, inputs)
    rows = np.sort(rng.choice(m, 3, replace=False))
    some = reference_module.evaluate(problem, inputs, rows)
    for name in ("values", "magnitude"):
        right = getattr(expected, name)
        np.testing.assert_allclose(getattr(found, name), right, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(getattr(some, name), right[rows], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_other_bounds_of_freivalds_check_need_no_other_sums(kind):
    problem = GemmProblem(60, 50, 40, dtype="bfloat16", beta=0.5)
    inputs = make_inputs(problem, 1, kind)
    looser = Arithmetic(tolerance=1e-2)
    roundings = [Rounding.of(problem, inputs, each) for each in (FP32, looser)]
    first = Freivalds(problem, inputs, roundings[0])
    again, fresh = first.under(roundings[1]), Freivalds(problem, inputs, roundings[1])
    assert again.sums is first.sums
    assert np.array_equal(again.tolerance, fresh.tolerance)
    assert np.array_equal(again.sums, fresh.sums)
    assert not np.array_equal(again.tolerance, first.tolerance)


def test_one_bit_that_a_kernel_changes_is_found_in_any_block(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", 100)
    problem = GemmProblem(30, 20, 25)
    inputs = make_inputs(problem)
    after = {"a": inputs.a.copy(), "b": inputs.b.copy()}
    assert overwritten(problem, inputs, after) == ""
    after["b"].view(np.uint32)[499] ^= 1
    assert "B[24, 19] was" in overwritten(problem, inputs, after)
