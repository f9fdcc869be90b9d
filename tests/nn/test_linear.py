"""`nn.linear` against the written-out formula."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from bounded import check, normal

import gemmkit
from gemmkit.errors import UsageError
from gemmkit.nn import column_parallel_linear, linear, row_parallel_linear
from gemmkit.verify.running import Bounded


def reference(x, weight, bias, activation="none", residual=None):
    result = Bounded.of(x) @ Bounded.of(weight).mT + Bounded.of(bias)
    if activation != "none":
        result = getattr(result, activation)()
    return result if residual is None else result + Bounded.of(residual)


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_bias_and_activation(activation):
    x, weight, bias = normal(33, 20), normal(40, 20), normal(40)
    result = linear(x, weight, bias, activation=activation, device="emulator")
    check(reference(x, weight, bias, activation), result)


def test_leading_axes_become_rows_and_a_residual_is_added_last():
    x, weight, bias, residual = normal(3, 11, 20), normal(40, 20), normal(40), normal(3, 11, 40)
    result = linear(x, weight, bias, activation="relu", residual=residual, device="emulator")
    check(reference(x, weight, bias, "relu", residual), result)


def test_a_vector_and_no_bias():
    x, weight = normal(20), normal(40, 20)
    result = linear(x, weight, device="emulator")
    check(reference(x, weight, np.zeros(40)), result)


@pytest.mark.parametrize("shape", [(0, 20), (2, 0, 20)])
def test_no_rows(shape):
    result = linear(np.zeros(shape, np.float32), normal(40, 20), device="emulator")
    assert result.shape == (*shape[:-1], 40)


@pytest.mark.parametrize(
    ("x", "weight", "rest", "message"),
    [
        (normal(3, 20), normal(20, 40), {}, r"weight has the shape \(20, 40\).* \(20, 20\)"),
        (normal(3, 20), normal(40), {}, r"weight must have 2 dimensions, not the shape \(40,\)"),
        (normal(3, 20), normal(40, 20), {"bias": normal(20)}, r"bias has the shape \(20,\)"),
        (normal(3, 20), normal(40, 20), {"residual": normal(40)}, r"residual .* \(3, 40\)"),
        (
            np.float32(3),
            normal(40, 20),
            {},
            r"x must have 1 or more dim.* \(\)",
        ),
        (3.0, normal(40, 20), {}, "x has type float, which is not an array"),
    ],
)
def test_what_does_not_fit_is_refused(x, weight, rest, message):
    with pytest.raises(UsageError, match=message):
        linear(x, weight, **rest, device="emulator")


def test_layers_are_there_without_an_import_of_their_own():
    assert gemmkit.nn.linear is linear


def test_activations_follow_the_rules_of_epilogues():
    x, weight = (np.arange(-8, 8, dtype=np.float32).reshape(4, 4) for _ in range(2))
    plain = gemmkit.nn.linear(x, weight, device="emulator")
    np.testing.assert_array_equal(
        gemmkit.nn.linear(x, weight, activation=None, device="emulator"), plain
    )
    np.testing.assert_array_equal(
        gemmkit.nn.linear(x, weight, activation="ReLU", device="emulator"), np.maximum(plain, 0)
    )


def test_layers_over_ranks_say_that_they_need_pytorch(monkeypatch):
    from gemmkit import distributed

    monkeypatch.delitem(vars(distributed), "matmul", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    ones = np.ones((2, 2), np.float32)
    for layer in (column_parallel_linear, row_parallel_linear):
        with pytest.raises(ImportError, match="pip install 'gemmkit\\[torch\\]'"):
            layer(ones, ones)
