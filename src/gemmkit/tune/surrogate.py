"""`Surrogate`: what the times measured so far say about configurations that were not tried.

A Gaussian process over the logarithm of measured / estimated time: the closed form tells the large
differences between configurations, the process learns where it is wrong, and how sure that is
(C. E. Rasmussen, C. K. I. Williams, *Gaussian Processes for Machine Learning*, 2006, chapter 2).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.kernels.kernel import TileConfig
from gemmkit.tune.space import Candidate

Vector = NDArray[np.float64]

# Of the logarithm of measured / estimated: its spread, at least, and what a short look and what is
# peculiar to one configuration add to it.
SPREAD = 0.25
NOISE = 0.05
# Distances in which that spread is forgotten: from one value of a key to the next is 1.
LENGTH = 1.5
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
        # Estimates that are worse than usual are trusted less.
        spread = max(SPREAD, float(np.std(wrong)))
        own = self._covariance(seen, seen, spread) + NOISE**2 * np.eye(seen.size)
        factor = np.linalg.cholesky(own)
        across = np.linalg.solve(factor, self._covariance(seen, numbers, spread))
        weights = np.linalg.solve(factor, wrong - offset)
        variance = np.maximum(spread**2 - np.sum(across**2, axis=0), NOISE**2)
        return expected + offset + across.T @ weights, np.sqrt(variance)

    def _covariance(
        self, first: NDArray[np.intp], second: NDArray[np.intp], spread: float
    ) -> Vector:
        a, b = self._features[first], self._features[second]
        squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2 * a @ b.T
        covariance: Vector = spread**2 * np.exp(-np.maximum(squares, 0.0) / (2 * LENGTH**2))
        return covariance


def _features(candidates: Sequence[Candidate]) -> Vector:
    """Steps along each key, and which kernel it is."""
    names = np.array([each.kernel.name for each in candidates])
    which = (names[:, None] == np.unique(names)) * (KERNELS_APART / math.sqrt(2))
    return np.hstack([key_steps(candidates), which])


def key_steps(candidates: Sequence[Candidate]) -> Vector:
    """A row for each candidate: the places of its values among all values of their keys.

    A kernel without a key counts as one with the value 1.
    """
    keys = [field.name for field in dataclasses.fields(TileConfig)]
    rows = np.array([[getattr(each.config, key) or 1 for key in keys] for each in candidates])
    steps = [np.unique(column, return_inverse=True)[1] for column in rows.T]
    return np.array(steps, np.float64).T.reshape(len(candidates), len(keys))
