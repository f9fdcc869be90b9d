"""Bands of rows of a large matrix, worked on by all cores: NumPy lets other threads run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gemmkit.cores import usable_cores

# Elements of a band: small enough that a float64 copy stays in a core's share of the cache.
BAND_ELEMENTS = 2**20


def bands(rows: int, columns: int) -> list[slice]:
    """The rows of a matrix, cut into bands of about a million elements."""
    step = max(1, BAND_ELEMENTS // max(columns, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def over_bands(rows: int, columns: int, work: Callable[[slice], object]) -> None:
    """Call `work` with each band of a rows × columns matrix, in no order.

    The bands depend on the sizes alone, not on the number of cores.
    """
    parts = bands(rows, columns)
    if len(parts) <= 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(max_workers=usable_cores()) as executor:
        # `list` raises what a band has raised.
        list(executor.map(work, parts))
