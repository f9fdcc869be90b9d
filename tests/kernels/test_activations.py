"""Activations of epilogues, as exact as promised where their branches change and in their tails."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import gemmkit
from gemmkit.verify.bounds import EVALUATION

UNIT = {np.float32: 2.0**-24, np.float64: 2.0**-53}


def sigmoid(t):
    with np.errstate(over="ignore"):
        return np.exp(np.minimum(t, 0)) / (1 + np.exp(-np.abs(t)))


EXACT = {
    "gelu": lambda x: np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()]),
    "gelu_tanh": lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * sigmoid(x),
}


def activated(x, activation):
    """Each x after the activation, by a product with ones on the emulator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ones = np.ones((1, 4), x.dtype)
        made = gemmkit.matmul(x[:, None], ones, epilogue=activation, device="emulator")
    assert all(np.array_equal(made[:, 0], each, equal_nan=True) for each in made.T)
    return made[:, 0].astype(float)


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("activation", EXACT)
def test_activations_are_within_their_bound_everywhere(activation, dtype):
    sizes = np.logspace(-44, 38, 300)
    x = np.concatenate([np.linspace(-14, 14, 1001), sizes, -sizes, [-87.3, -88.7, -104, -800]])
    x = x.astype(dtype)
    exact = EXACT[activation](x.astype(float))
    tiny = np.finfo(dtype).tiny
    bound = EVALUATION * UNIT[dtype] * np.abs(x.astype(float)) + tiny
    assert (np.abs(activated(x, activation) - exact) <= bound).all()


@pytest.mark.parametrize("activation", EXACT)
def test_left_tails_in_fp32_keep_small_values(activation):
    x = np.linspace(-9, -0.01, 500).astype(np.float32)
    exact = EXACT[activation](x.astype(float))
    # What the exponent of e is rounded by, and the last places of two approximations.
    exponents = {"gelu": x**2 / 2, "silu": -x, "gelu_tanh": -1.6 * (x + 0.045 * x**3)}
    allowed = 8 * UNIT[np.float32] * (1 + exponents[activation].astype(float) / 2)
    errors = np.abs(activated(x, activation) / exact - 1)
    assert (errors <= allowed).all()


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("activation", EXACT)
def test_numbers_without_a_size_go_through_activations(activation, dtype):
    x = np.array([math.inf, -math.inf, math.nan, 0.0], dtype)
    made = activated(x, activation)
    # As in PyTorch, what -inf × 0 is.
    assert made[0] == math.inf
    assert np.isnan(made[1:3]).all()
    assert made[3] == 0
