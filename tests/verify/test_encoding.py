"""Rounding to 8 bits: float32 by a table of upper halves, others by the nearest number."""

import numpy as np
import pytest

from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.verify.encoding import decode, encode


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
def test_float32_is_rounded_as_float64_is(dtype):
    every = decode(np.arange(256, dtype=np.uint8), dtype)
    numbers = np.sort(every[np.isfinite(every)]).astype(np.float64)
    ties = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    special = np.float32([0.0, -0.0, 1e-45, -1e-45, 1e38, -1e38, np.inf, -np.inf, np.nan])
    random = np.random.default_rng(0).standard_normal(10_000, dtype=np.float32)
    values = np.concatenate([ties, *beside, numbers.astype(np.float32), special, random])
    found = encode(values, dtype)
    assert np.array_equal(found, encode(values.astype(np.float64), dtype))
    # The nearest number, and of two the one whose pattern is even.
    inside = np.abs(values) <= numbers[-1]
    wide = values[inside].astype(np.float64)
    distance = np.abs(numbers - wide[:, None])
    seen = decode(found[inside], dtype).astype(np.float64)
    assert np.array_equal(np.abs(seen - wide), distance.min(axis=1))
    tied = np.isin(wide, ties.astype(np.float64))
    assert not (found[inside][tied] % 2).any()


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
def test_any_strides_and_patterns(dtype):
    bits = np.random.default_rng(1).integers(0, 1 << 32, (64, 33), np.uint32)
    values = bits.view(np.float32).T
    with np.errstate(invalid="ignore"):
        assert np.array_equal(encode(values, dtype), encode(values.astype(np.float64), dtype))
