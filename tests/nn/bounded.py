"""Float64 values with how far fp32 arithmetic may have led from them: running error analysis.

Each operation adds its own rounding to what its operands bring along (Higham, *Accuracy and
Stability of Numerical Algorithms*, 2nd ed., section 3.3). A reference that is written with these
numbers is at once its own tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.verify.bounds import gamma

# What libraries leave exp, tanh and their kin wrong by, in units of rounding; few are so bad.
UNIT_ROUNDOFF = 2.0**-24
FUNCTION_ERROR = 8 * UNIT_ROUNDOFF
_erf = np.vectorize(math.erf, otypes=[float])


@dataclass(frozen=True)
class Bounded:
    """Exact values, and bounds of |computed - exact|."""

    value: NDArray[np.float64]
    error: NDArray[np.float64]

    @classmethod
    def of(cls, array: Any) -> Bounded:
        """Numbers that are as they are given."""
        value = np.asarray(array, dtype=np.float64)
        return cls(value, np.zeros_like(value))

    def __add__(self, other: Bounded) -> Bounded:
        return _rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return _rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded) -> Bounded:
        value = self.value * other.value
        error = (
            np.abs(self.value) * other.error
            + self.error * np.abs(other.value)
            + self.error * other.error
        )
        return _rounded(value, error)

    def __matmul__(self, other: Bounded) -> Bounded:
        """Summed in any order, by fused multiply-adds or without."""
        k = self.value.shape[-1]
        left, right = np.abs(self.value) + self.error, np.abs(other.value) + other.error
        brought = left @ right - np.abs(self.value) @ np.abs(other.value)
        return Bounded(
            self.value @ other.value, brought + gamma(k + 1, UNIT_ROUNDOFF) * (left @ right)
        )

    def __getitem__(self, key: Any) -> Bounded:
        return Bounded(self.value[key], self.error[key])

    @property
    def mT(self) -> Bounded:
        """The last two axes exchanged."""
        return Bounded(self.value.swapaxes(-1, -2), self.error.swapaxes(-1, -2))

    def parts(self, count: int) -> list[Bounded]:
        """Equal parts along the last axis."""
        values = np.split(self.value, count, axis=-1)
        return [
            Bounded(*both)
            for both in zip(values, np.split(self.error, count, axis=-1), strict=True)
        ]

    def sigmoid(self) -> Bounded:
        """1 / (1 + exp(-x)), whose slope is at most 1/4."""
        return _function(1 / (1 + np.exp(-self.value)), self.error / 4)

    def tanh(self) -> Bounded:
        """Of slope at most 1."""
        return _function(np.tanh(self.value), self.error)

    def relu(self) -> Bounded:
        """Exact; of slope at most 1."""
        return Bounded(np.maximum(self.value, 0), self.error)

    def gelu(self) -> Bounded:
        """x·Φ(x), of slope below 1.13; Φ is computed as a sum with 1."""
        value = self.value * 0.5 * (1 + _erf(self.value / math.sqrt(2)))
        return _function(value, 1.13 * self.error + FUNCTION_ERROR * np.abs(self.value))

    def softmax(self) -> Bounded:
        """Along the last axis; a row of -inf becomes zeros.

        A quotient exp(x_i - m) / Σ exp(x_j - m) is wrong by a factor within exp(±2(e + r)), where e
        is the largest error of the row's x and r what subtracting m rounds, and by the roundings of
        the functions, of the sum and of the division.
        """
        count = self.value.shape[-1]
        m = np.max(self.value, axis=-1, keepdims=True)
        m = np.where(np.isinf(m), 0, m)
        powers = np.exp(self.value - m)
        total = powers.sum(axis=-1, keepdims=True)
        value = powers / np.where(total == 0, 1, total)
        seen = np.isfinite(self.value)
        distance = np.max(np.where(seen, np.abs(self.value - m), 0), axis=-1, keepdims=True)
        error = np.max(np.where(seen, self.error, 0), axis=-1, keepdims=True)
        argument = 2 * error + 2 * UNIT_ROUNDOFF * (distance + error)
        relative = np.expm1(argument) + 2 * FUNCTION_ERROR + gamma(count + 1, UNIT_ROUNDOFF)
        return Bounded(value, 1.01 * relative * value + 2.0**-126)

    def check(self, computed: Any) -> None:
        """See that a result lies within the bound, in every element.

        Raises:
            AssertionError: it does not, or has another shape.
        """
        found = np.asarray(computed, dtype=np.float64)
        assert found.shape == self.value.shape
        excess = np.abs(found - self.value) - self.error
        worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), found.shape)
        assert np.all(excess <= 0), (
            f"{found[worst]!r} at {worst} is not {self.value[worst]!r} ± {self.error[worst]:.2g}"
        )


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Random numbers; others for each shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def stack(items: list[Bounded], axis: int) -> Bounded:
    """Numbers one after the other along a new axis."""
    return Bounded(
        np.stack([each.value for each in items], axis),
        np.stack([each.error for each in items], axis),
    )


def _rounded(value: NDArray[np.float64], error: NDArray[np.float64]) -> Bounded:
    return Bounded(value, error + UNIT_ROUNDOFF * (np.abs(value) + error) + 2.0**-149)


def _function(value: NDArray[np.float64], error: NDArray[np.float64]) -> Bounded:
    return Bounded(value, error + FUNCTION_ERROR * (np.abs(value) + error) + 2.0**-126)
