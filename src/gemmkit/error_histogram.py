"""`ErrorHistogram`: the errors of a result relative to their bounds, counted by powers of two."""

from __future__ import annotations

import math

import msgspec

# Errors below 2^SMALLEST of their bound count as in the bin above it; those above 2^LARGEST of it,
# or not finite, are `beyond`.
SMALLEST, LARGEST = -40, 40


class ErrorHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """The elements of a result by |C - reference| / bound.

    `exact` elements have no error, or are not finite where they need not be. `counts[i]` have a
    ratio above 2^(first + i) and up to twice that, so a correct result has none from exponent 0 on;
    the first bin also holds smaller ones if it is that of 2^-40. `beyond` have a larger ratio than
    2^40, or one that is not finite. `bias` is the signed mean error in units of the mean absolute
    error: 1 if all errors are positive, 0 if they cancel or there are none.
    """

    exact: int
    first: int
    counts: tuple[int, ...]
    beyond: int = 0
    bias: float = 0.0

    @property
    def elements(self) -> int:
        """All elements that were compared."""
        return self.exact + sum(self.counts) + self.beyond

    @property
    def wrong(self) -> int:
        """The elements outside their bounds."""
        return sum(self.counts[max(-self.first, 0) :]) + self.beyond

    def quantile(self, share: float) -> float:
        """The ratio that a share (0 to 1) of the elements does not exceed, to a few percent as a
        rule; infinite if those beyond 2^40 begin before.

        Within a bin, the logarithm of the number of larger ratios is taken to be linear, as in the
        tail of a distribution.
        """
        above = (1 - share) * self.elements
        larger = self.elements - self.exact
        if larger <= above:
            return 0.0
        for exponent, count in enumerate(self.counts, self.first):
            if count and larger - count <= above:
                # Half an element, where none is larger than the bin.
                start, end, wanted = (
                    math.log(max(each, 0.5)) for each in (larger, larger - count, above)
                )
                part = (start - wanted) / (start - end) if start > end else 1.0
                return float(2.0**exponent * (1 + part))
            larger -= count
        return math.inf
