"""Float64 values with how far fp32 arithmetic may have led from them: running error analysis.

Each operation adds its own rounding to what its operands bring along (Higham, *Accuracy and
Stability of Numerical Algorithms*, 2nd ed., section 3.3). A reference that is written with these
numbers is at once its own tolerance. Layers of several products and functions are checked so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.verify.bounds import EVALUATION, SLOPE, gamma
from gemmkit.verify.tally import Tally
from gemmkit.verify.verdict import Verdict

UNIT_ROUNDOFF = 2.0**-24
# What libraries leave exp, tanh and their kin wrong by, as a share of their values.
FUNCTION_ERROR = EVALUATION * UNIT_ROUNDOFF
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
        return _function(value, SLOPE * self.error + FUNCTION_ERROR * np.abs(self.value))

    def softmax(self, parts: int = 1) -> Bounded:
        """Along the last axis; a row of -inf becomes zeros.

        A quotient exp(x_i - m) / Σ exp(x_j - m) is wrong by a factor within exp(±2(e + r)), where e
        is the largest error of the row's x and r what subtracting m rounds, and by the roundings of
        the functions, of the sum and of the division.

        A softmax that is computed in `parts`, each with the largest x so far, multiplies what it
        has by exp(m_old - m_new) before each further part (Milakov and Gimelshein, "Online
        normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022): a function's
        error and a product's rounding each time, above and below the fraction bar. It may round x
        and m before it subtracts them.
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
        if parts > 1:
            size = np.max(np.where(seen, np.abs(self.value), 0), axis=-1, keepdims=True)
            argument = argument + 4 * UNIT_ROUNDOFF * (distance + size + error)
            argument = argument + 2 * (parts - 1) * (FUNCTION_ERROR + UNIT_ROUNDOFF)
        relative = np.expm1(argument) + 2 * FUNCTION_ERROR + gamma(count + 1, UNIT_ROUNDOFF)
        return Bounded(value, 1.01 * relative * value + 2.0**-126)

    def check(self, computed: Any) -> Verdict:
        """Whether a result of the same shape lies within the bound, in every element."""
        found = np.asarray(computed, dtype=np.float64)
        if found.shape != self.value.shape:
            raise ValueError(f"the result has shape {found.shape}, not {self.value.shape}")
        with np.errstate(all="ignore"):
            difference = found - self.value
            error = np.abs(difference)
            ratio = np.where(error == 0, 0.0, error / self.error)
        error[np.isnan(error)] = np.inf
        ratio[np.isnan(ratio)] = np.inf
        largest = np.unravel_index(int(np.argmax(error)), error.shape)
        worst = tuple(map(int, np.unravel_index(int(np.argmax(ratio)), ratio.shape)))
        correct = bool(ratio[worst] <= 1)
        detail = f"{found[worst]:.9g} at {worst} is not {self.value[worst]:.9g} ± "
        return Verdict(
            correct=correct,
            max_error=float(error[largest]),
            error_bound=float(self.error[largest]),
            error_ratio=float(ratio[worst]),
            ratio_error=float(error[worst]),
            ratio_bound=float(self.error[worst]),
            method="every element",
            detail="" if correct else f"{detail}{self.error[worst]:.2g}",
            arithmetic="fp32",
            errors=Tally.of(difference, error, ratio).histogram(),
        )


def concatenated(*items: Bounded) -> Bounded:
    """Numbers side by side along the last axis."""
    return _joined(np.concatenate, items, -1)


def stack(items: Sequence[Bounded], axis: int) -> Bounded:
    """Numbers one after the other along a new axis."""
    return _joined(np.stack, items, axis)


def _joined(join: Callable[..., Any], items: Sequence[Bounded], axis: int) -> Bounded:
    values, errors = [each.value for each in items], [each.error for each in items]
    return Bounded(join(values, axis=axis), join(errors, axis=axis))


def _rounded(value: NDArray[np.float64], error: NDArray[np.float64]) -> Bounded:
    return Bounded(value, error + UNIT_ROUNDOFF * (np.abs(value) + error) + 2.0**-149)


def _function(value: NDArray[np.float64], error: NDArray[np.float64]) -> Bounded:
    return Bounded(value, error + FUNCTION_ERROR * (np.abs(value) + error) + 2.0**-126)
