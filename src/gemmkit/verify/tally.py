"""Counts errors by their size relative to their bounds, from the bits of the ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.error_histogram import LARGEST, SMALLEST, ErrorHistogram

# Ratios whose bits are looked at together: they fit a core's second-level cache.
CHUNK = 2**16
_FRACTION_BITS, _EXPONENT_BIAS, _EXPONENTS = 52, 1023, 2**11


@dataclass(frozen=True, slots=True)
class Tally:
    """Elements by the exponent of error / bound, and the sums of their errors.

    `counts[0]` are those without an error, `counts[e + 1024]` those above 2^e and up to 2^(e + 1).
    `signed` and `absolute` are sums over the finite errors.
    """

    counts: NDArray[np.int64]
    signed: float
    absolute: float

    @classmethod
    def of(
        cls, difference: NDArray[np.float64], error: NDArray[np.float64], ratio: NDArray[np.float64]
    ) -> Tally:
        """Of the elements of a block.

        Args:
            difference: C - reference.
            error: its magnitude; 0 where a result counts as right, infinite where it is NaN.
            ratio: error / bound, 0 where the error is 0, never NaN.
        """
        counts = np.zeros(_EXPONENTS, np.int64)
        bits = np.ascontiguousarray(ratio).reshape(-1).view(np.int64)
        for start in range(0, bits.size, CHUNK):
            # One less, so that a power of two belongs to the bin that it ends; -1 for 0.
            exponents = (bits[start : start + CHUNK] - 1) >> _FRACTION_BITS
            exponents += 1
            counts += np.bincount(exponents, minlength=_EXPONENTS)
        with np.errstate(all="ignore"):
            signed, absolute = float(difference.sum()), float(error.sum())
            if not math.isfinite(signed + absolute):
                usable = np.isfinite(difference) & np.isfinite(error) & (error > 0)
                signed = float(difference[usable].sum())
                absolute = float(error[usable].sum())
        return cls(counts, signed, absolute)

    @classmethod
    def total(cls, parts: Iterable[Tally]) -> Tally:
        """Of the elements of all."""
        found = list(parts)
        counts = sum((each.counts for each in found), np.zeros(_EXPONENTS, np.int64))
        return cls(counts, sum(each.signed for each in found), sum(each.absolute for each in found))

    def histogram(self) -> ErrorHistogram | None:
        """The compact form; None if nothing was compared."""
        if not self.counts.any():
            return None
        zero = _EXPONENT_BIAS + 1
        bins = self.counts[zero + SMALLEST : zero + LARGEST].copy()
        bins[0] += self.counts[1 : zero + SMALLEST].sum()
        filled = np.flatnonzero(bins)
        first, end = (
            (int(filled[0]), int(filled[-1]) + 1) if filled.size else (-SMALLEST, -SMALLEST)
        )
        return ErrorHistogram(
            exact=int(self.counts[0]),
            first=first + SMALLEST,
            counts=tuple(bins[first:end].tolist()),
            beyond=int(self.counts[zero + LARGEST :].sum()),
            bias=self.signed / self.absolute if 0 < self.absolute < math.inf else 0.0,
        )
