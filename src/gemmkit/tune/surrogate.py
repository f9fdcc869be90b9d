"""`Surrogate`: what the times measured so far say about configurations that were not tried.

A Gaussian process over the logarithm of measured / estimated time: the closed form tells the large
differences between configurations, the process learns where it is wrong, and how sure that is
(C. E. Rasmussen, C. K. I. Williams, *Gaussian Processes for Machine Learning*, 2006, chapter 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.tune.space import Candidate

Vector = NDArray[np.float64]

# Of the logarithm of measured / estimated: its spread over the rungs, and that of a short look.
SPREAD = 0.25
NOISE = 0.01
# Distances in which that spread is forgotten: a factor of two in one key counts as 1.
LENGTH = 2.0
# How far two kernels with the same keys are from each other.
KERNELS_APART = 1.5
# More would take longer to invert than to measure; the slowest are left out.
MOST_SAMPLES = 400


class Surrogate:
    """Predicts the time of candidates, by number, from those that were timed."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.log_estimates: Vector = np.log([each.estimate_us for each in candidates])
        self._features = _features(candidates)
        self._seen: dict[int, float] = {}

    def tell(self, number: int, microseconds: float) -> None:
        """A candidate takes that long."""
        self._seen[number] = math.log(microseconds)

    def predict(self, numbers: NDArray[np.intp]) -> tuple[Vector, Vector]:
        """Logarithms of microseconds, and their standard deviations."""
        seen = np.array(sorted(self._seen, key=self._seen.__getitem__)[:MOST_SAMPLES], np.intp)
        expected = self.log_estimates[numbers]
        if not seen.size:
            return expected, np.full(numbers.size, SPREAD)
        wrong = np.array([self._seen[each] for each in seen]) - self.log_estimates[seen]
        offset = float(np.median(wrong))
        own = self._covariance(seen, seen) + NOISE**2 * np.eye(seen.size)
        factor = np.linalg.cholesky(own)
        across = np.linalg.solve(factor, self._covariance(seen, numbers))
        weights = np.linalg.solve(factor, wrong - offset)
        variance = np.maximum(SPREAD**2 - np.sum(across**2, axis=0), NOISE**2)
        return expected + offset + across.T @ weights, np.sqrt(variance)

    def _covariance(self, first: NDArray[np.intp], second: NDArray[np.intp]) -> Vector:
        a, b = self._features[first], self._features[second]
        squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2 * a @ b.T
        covariance: Vector = SPREAD**2 * np.exp(-np.maximum(squares, 0.0) / (2 * LENGTH**2))
        return covariance


def _features(candidates: Sequence[Candidate]) -> Vector:
    """Base-2 logarithms of all keys in use, 0 where a kernel has none, and which kernel it is."""
    keys = sorted({key for each in candidates for key in each.config.as_dict()})
    kernels = sorted({each.kernel.name for each in candidates})
    rows = np.zeros((len(candidates), len(keys) + len(kernels)))
    for row, each in zip(rows, candidates, strict=True):
        for key, value in each.config.as_dict().items():
            row[keys.index(key)] = math.log2(max(value, 1))
        row[len(keys) + kernels.index(each.kernel.name)] = KERNELS_APART / math.sqrt(2)
    return rows
