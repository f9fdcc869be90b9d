"""How large the elements of rows and columns are: what norm-wise errors are in proportion to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.verify.encoding import Matrix
from gemmkit.verify.row_blocks import row_blocks


@dataclass(frozen=True, slots=True)
class LineSizes:
    """The largest magnitude of each row or column, X, and the sum of its magnitudes."""

    largest: NDArray[np.float64]
    sums: NDArray[np.float64]

    @classmethod
    def of_rows(cls, values: Matrix) -> LineSizes:
        """Those of the rows; elements that are not finite do not count."""
        parts = [(each.max(axis=1, initial=0.0), each.sum(axis=1)) for each in _sizes(values)]
        found = zip(*parts, strict=True) if parts else ((), ())
        largest, sums = (np.concatenate([*each, ()]) for each in found)
        return cls(largest, sums)

    @classmethod
    def of_columns(cls, values: Matrix) -> LineSizes:
        """Those of the columns, likewise."""
        largest, sums = np.zeros(values.shape[1]), np.zeros(values.shape[1])
        for each in _sizes(values):
            np.maximum(largest, each.max(axis=0, initial=0.0), out=largest)
            sums += each.sum(axis=0)
        return cls(largest, sums)


def of_lines(a: Matrix, b: Matrix) -> NDArray[np.float64]:
    """X·Σ|y| + Y·Σ|x| of each row of A and column of B."""
    rows, columns = LineSizes.of_rows(a), LineSizes.of_columns(b)
    found: NDArray[np.float64] = np.outer(rows.largest, columns.sums)
    found += np.outer(rows.sums, columns.largest)
    return found


def _sizes(values: Matrix) -> Iterator[NDArray[np.float64]]:
    """Finite magnitudes, a block of rows at a time."""
    for rows in row_blocks(*values.shape):
        found = np.abs(values[rows].astype(float))
        found[~np.isfinite(found)] = 0.0
        yield found
