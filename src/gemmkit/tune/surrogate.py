"""`Surrogate`: what the times measured so far say about configurations that were not tried.

The closed form tells the large differences between configurations; where it is wrong by some
factor, it is wrong by about that for their neighbors too. So the logarithm of measured / estimated
time is averaged over what was measured nearby (kernel regression: E. A. Nadaraya, *On estimating
regression*, 1964; G. S. Watson, *Smooth regression analysis*, 1964). That costs a few additions per
candidate and measurement: on an H100's times it ranks as well as a Gaussian process, whose matrices
would take the cores from the compiler.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.kernels.plan import TileConfig
from gemmkit.tune.space import Candidate

Vector = NDArray[np.float64]

# Of the logarithm of measured / estimated time, over the configurations of a shape.
SPREAD = 0.25
# How far a measurement speaks: from one value of a key to the next is 1, and so is from one kernel
# to another with the same keys.
REACH = 1.0
KERNELS_APART = 1.0
# The weight of the median of all, where little was measured nearby.
DOUBT = 0.1


class Surrogate:
    """Predicts the times of candidates from those of some of them; they go by number."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.log_estimates: Vector = np.log([each.estimate_us for each in candidates])
        self._places = _places(candidates)
        self._weights = np.zeros(len(candidates))
        self._sums = np.zeros(len(candidates))
        self._wrong: list[float] = []

    def tell(self, number: int, microseconds: float) -> None:
        """A candidate takes that long."""
        wrong = math.log(microseconds) - float(self.log_estimates[number])
        squares = np.sum((self._places - self._places[number]) ** 2, axis=1)
        weights = np.exp(-squares / (2 * REACH**2))
        self._weights += weights
        self._sums += weights * wrong
        self._wrong.append(wrong)

    def predict(self) -> tuple[Vector, Vector]:
        """Logarithms of all candidates' microseconds, and their standard deviations."""
        usual = float(np.median(self._wrong)) if self._wrong else 0.0
        wrong = (self._sums + DOUBT * usual) / (self._weights + DOUBT)
        return self.log_estimates + wrong, SPREAD / np.sqrt(1 + self._weights)


def _places(candidates: Sequence[Candidate]) -> NDArray[np.float32]:
    """Coordinates in which alike candidates lie near: steps along each key, and the kernel."""
    names = np.array([each.kernel.name for each in candidates])
    which = (names[:, None] == np.unique(names)) * (KERNELS_APART / math.sqrt(2))
    return np.hstack([key_steps(candidates), which]).astype(np.float32)


def key_steps(candidates: Sequence[Candidate]) -> Vector:
    """A row for each candidate: the places of its values among all values of their keys.

    A kernel without a key counts as one with the value 1.
    """
    keys = [field.name for field in dataclasses.fields(TileConfig)]
    rows = np.array([[getattr(each.config, key) or 1 for key in keys] for each in candidates])
    steps = [np.unique(column, return_inverse=True)[1] for column in rows.T]
    return np.array(steps, np.float64).T.reshape(len(candidates), len(keys))
