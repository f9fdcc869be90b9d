"""The histogram of errors: what it counts, how its quantiles are read, and that old records do."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gemmkit.check_record import CheckRecord
from gemmkit.error_histogram import ErrorHistogram
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.verify import Reference, make_inputs
from gemmkit.verify.tally import Tally


def tally(ratios, signs=1.0):
    error = np.asarray(ratios, dtype=float)[None]
    return Tally.of(error * np.asarray(signs), error, error.copy())


def test_bins_are_powers_of_two_that_belong_to_the_bin_they_end():
    found = tally([0, 0, 0.25, 0.3, 0.5, 0.5000001, 1.0, 1.0000001]).histogram()
    assert found == ErrorHistogram(exact=2, first=-3, counts=(1, 2, 2, 1), bias=1.0)
    assert found.elements == 8
    assert found.wrong == 1


def test_the_ends_hold_what_is_smaller_and_larger():
    found = tally([1e-300, 2.0**-40, 2.0**40, 2.0**41, np.inf]).histogram()
    assert found.exact == 0
    assert (found.first, found.counts[0], found.counts[-1], found.beyond) == (-40, 2, 1, 2)
    assert found.wrong == 3


def test_an_infinite_error_is_left_out_of_the_bias():
    error = np.array([[1.0, 3.0, np.inf]])
    found = Tally.of(np.array([[1.0, -3.0, np.nan]]), error, error.copy()).histogram()
    assert found.bias == -0.5
    assert found.beyond == 1


def test_nothing_compared_has_no_histogram_and_exact_results_no_bins():
    assert tally([]).histogram() is None
    found = tally([0.0, 0.0]).histogram()
    assert (found.exact, found.counts, found.bias, found.quantile(0.99)) == (2, (), 0.0, 0.0)


def test_quantiles_are_within_their_bins():
    rng = np.random.default_rng(0)
    for ratios in (rng.exponential(1e-3, 10_000), np.abs(rng.normal(0, 1e-2, 10_000))):
        found = tally(ratios).histogram()
        for share in (0.1, 0.5, 0.99):
            assert found.quantile(share) == pytest.approx(np.quantile(ratios, share), rel=0.08)
        assert ratios.max() <= found.quantile(1.0) < 2 * ratios.max()
    assert tally([1.0, np.inf]).histogram().quantile(0.99) == float("inf")


def test_a_verdict_counts_the_ratios_of_all_elements():
    problem = GemmProblem(48, 40, 64)
    inputs = make_inputs(problem, 3, "normal")
    a, b = inputs.a.reshape(48, 64), inputs.b.reshape(64, 40)
    c = a @ b
    seen = Reference(problem, inputs).check(c.ravel())
    exact = a.astype(float) @ b.astype(float)
    error = c - exact
    assert seen.errors.elements == 48 * 40
    assert seen.errors.wrong == 0
    assert seen.errors.bias == pytest.approx(error.sum() / np.abs(error).sum(), rel=1e-6)
    top = seen.errors.first + len(seen.errors.counts)
    assert 2.0 ** (top - 1) < seen.error_ratio <= 2.0**top
    c[3, 5] += 1.0
    c[7, 5] = np.nan
    wrong = Reference(problem, inputs).check(c.ravel()).errors
    assert (wrong.elements, wrong.wrong, wrong.beyond) == (48 * 40, 2, 1)


def test_sampled_rows_and_columns_count_each_element_once():
    problem = GemmProblem(100, 90, 32)
    inputs = make_inputs(problem, 1, "normal")
    c = inputs.a.reshape(100, 32) @ inputs.b.reshape(32, 90)
    seen = Reference(problem, inputs, "sampled").check(c.ravel())
    assert seen.method.startswith("16 rows and 16 columns")
    assert seen.errors.elements == 16 * 90 + 16 * (100 - 16)
    # Freivalds' check adds whole rows, whose elements in sampled columns are there already.
    wrong = np.flatnonzero(~np.isin(np.arange(100), sampled_rows(problem, inputs)))[0]
    c[wrong] += 10
    more = Reference(problem, inputs, "sampled").check(c.ravel())
    assert more.errors.wrong == 90
    assert more.errors.elements == seen.errors.elements + 90 - 16


def sampled_rows(problem, inputs):
    return Reference(problem, inputs, "sampled").products[0].blocks[0][0]


def test_products_of_a_batch_are_counted_together():
    problem = GemmProblem(16, 8, 4, batch=3)
    inputs = make_inputs(problem, 0, "normal")
    product = inputs.a.reshape(3, 16, 4) @ inputs.b.reshape(3, 4, 8)
    assert Reference(problem, inputs).check(product.ravel()).errors.elements == 3 * 16 * 8


def test_records_keep_it_and_old_ones_have_none(make_record):
    errors = ErrorHistogram(exact=2, first=-9, counts=(1, 5), bias=-0.25)
    record = make_record(errors=errors)
    assert Record.from_json(record.to_json()).errors == errors
    old = json.loads(record.to_json())
    del old["errors"]
    assert Record.from_json(json.dumps(old)).errors is None
    assert "errors" in CheckRecord.__struct_fields__
