"""The accuracy of predicted times, over rows that were also measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray


class PredictedRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One launch, predicted and measured; one JSON line.

    Times are in microseconds, speeds in TFLOP/s. `fitted` marks rows used to fit the model's
    parameters. `measured_us` is null if only a speed was published.
    """

    board: str
    kernel: str
    config: dict[str, int]
    m: int
    n: int
    k: int
    predicted_us: float
    predicted_tflops: float
    measured_us: float | None
    measured_tflops: float
    limiter: str
    registers: int
    occupancy: float
    fitted: bool
    source: str
    epilogue: str = "none"

    @property
    def error(self) -> float:
        """Predicted over measured time, minus 1: negative if the model is too fast."""
        return self.measured_tflops / self.predicted_tflops - 1


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Statistics of rows: median and 90th percentile of |error|, worst error, rank correlation.

    Errors are relative, of times; `rank_correlation` is Spearman's, of TFLOP/s.
    """

    rows: int
    median_error: float
    p90_error: float
    worst_error: float
    rank_correlation: float


def accuracy(rows: Sequence[PredictedRow]) -> Accuracy:
    """Summarize rows; there must be at least one."""
    errors = np.array([row.error for row in rows])
    size = np.abs(errors)
    measured = _ranks(np.array([row.measured_tflops for row in rows]))
    predicted = _ranks(np.array([row.predicted_tflops for row in rows]))
    spread = float(np.std(measured) * np.std(predicted))
    covariance = float(np.mean((measured - measured.mean()) * (predicted - predicted.mean())))
    return Accuracy(
        rows=len(rows),
        median_error=float(np.median(size)),
        p90_error=float(np.percentile(size, 90)),
        worst_error=float(errors[size.argmax()]),
        rank_correlation=covariance / spread if spread else 1.0,
    )


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0; equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    places: NDArray[np.float64] = last - (counts + 1) / 2
    return places[inverse]
