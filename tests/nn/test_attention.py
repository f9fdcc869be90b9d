"""`nn.attention` against softmax(scale · q · kᵀ + mask) · v, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bounded import check, normal

from gemmkit.errors import UsageError
from gemmkit.nn import attention
from gemmkit.verify.running import Bounded


def reference(q, k, v, scale, mask=0.0):
    """`mask` is added; -inf leaves a key out."""
    scores = (Bounded.of(q) @ Bounded.of(k).mT) * Bounded.of(np.float32(scale))
    value, error = np.broadcast_arrays(scores.value + mask, scores.error)
    finite = np.isfinite(value)
    rounding = 2.0**-24 * np.where(finite, np.abs(value), 0)
    return Bounded(value, np.where(finite, error, 0) + rounding).softmax() @ Bounded.of(v)


def test_heads():
    q, k, v = normal(2, 3, 17, 8), normal(2, 3, 21, 8), normal(2, 3, 21, 12)
    result = attention(q, k, v, device="emulator")
    check(reference(q, k, v, 1 / math.sqrt(8)), result)


def test_causal():
    q, k, v = normal(2, 17, 8), normal(2, 21, 8), normal(2, 21, 12)
    mask = np.where(np.arange(17)[:, None] >= np.arange(21), 0, -np.inf)
    result = attention(q, k, v, causal=True, scale=0.5, device="emulator")
    check(reference(q, k, v, 0.5, mask), result)


def test_a_mask_that_is_added():
    q, k, v, mask = normal(2, 17, 8), normal(2, 21, 8), normal(2, 21, 12), normal(17, 21)
    result = attention(q, k, v, mask=mask, device="emulator")
    check(reference(q, k, v, 1 / math.sqrt(8), mask), result)


def test_a_query_that_may_look_at_no_key_gets_zeros():
    q, k, v = normal(2, 17, 8), normal(2, 21, 8), normal(2, 21, 12)
    seen = np.random.default_rng(0).random((2, 17, 21)) < 0.5
    seen[0, 3] = seen[1, 16] = False
    result = attention(q, k, v, mask=seen, device="emulator")
    check(reference(q, k, v, 1 / math.sqrt(8), np.where(seen, 0, -np.inf)), result)
    assert not result[0, 3].any()
    assert not result[1, 16].any()


def test_large_scores_do_not_overflow():
    q, k, v = 100 * normal(2, 17, 8), 100 * normal(2, 21, 8), normal(2, 21, 12)
    result = attention(q, k, v, scale=1, device="emulator")
    assert np.isfinite(result).all()
    best = np.argmax(q.astype(float) @ k.astype(float).swapaxes(-1, -2), axis=-1)
    np.testing.assert_allclose(result, np.take_along_axis(v, best[..., None], 1), atol=1e-3)


def test_no_keys():
    q, k, v = normal(2, 17, 8), normal(2, 0, 8), normal(2, 0, 12)
    np.testing.assert_array_equal(attention(q, k, v, device="emulator"), np.zeros((2, 17, 12)))


def test_float64_stays_so():
    q, k, v = (normal(1, 17, 8).astype(np.float64) for _ in range(3))
    result = attention(q, k, v, device="emulator")
    assert result.dtype == np.float64
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(result, exact, rtol=1e-13)


@pytest.mark.parametrize(
    ("q", "k", "v", "rest", "message"),
    [
        (normal(8), normal(21, 8), normal(21, 12), {}, "q must have 2 or more dimensions"),
        (normal(17, 8), normal(21, 9), normal(21, 12), {}, "do not fit"),
        (normal(17, 8), normal(21, 8), normal(20, 12), {}, "do not fit"),
        (normal(17, 8), normal(21, 8), normal(21, 12), {"mask": normal(3, 21)}, r"mask .* \(3,"),
        (normal(17, 8), normal(21, 8), normal(21, 12), {"mask": normal(2, 17, 21)}, "broadcast"),
        (normal(2, 17, 8), normal(3, 21, 8), normal(21, 12), {"mask": normal(21)}, "leading sizes"),
        (normal(2, 17, 8), normal(21, 8), normal(3, 21, 12), {}, "leading sizes of q .* and v"),
    ],
)
def test_what_does_not_fit_is_refused(q, k, v, rest, message):
    with pytest.raises(UsageError, match=message):
        attention(q, k, v, **rest, device="emulator")


def test_halves_have_scores_of_fp32():
    q, k, v = (normal(2, size, 8).astype(np.float16) for size in (17, 21, 21))
    result = attention(q, k, v, scale=16.0, device="emulator")
    assert result.dtype == np.float16
    exact = reference(q, k, v, 16.0).value
    # The weights and the result are rounded to halves, twice 2⁻¹¹ of numbers up to |v|.
    assert np.max(np.abs(result - exact)) < 2 * 2.0**-11 * np.max(np.abs(v))
