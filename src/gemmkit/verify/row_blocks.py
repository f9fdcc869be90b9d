"""Processes a large matrix in blocks of rows, on all cores; NumPy releases the GIL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gemmkit.cores import usable_cores

# Elements per row block: a float64 copy fits a core's share of the cache.
BLOCK_ELEMENTS = 2**20


def row_blocks(rows: int, columns: int) -> list[slice]:
    """The rows of a matrix, divided into blocks of about a million elements."""
    step = max(1, BLOCK_ELEMENTS // max(columns, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def for_each_row_block(rows: int, columns: int, work: Callable[[slice], object]) -> None:
    """Call `work` for each row block of a rows × columns matrix, in no particular order.

    The blocks depend only on the sizes, not on the number of cores.
    """
    parts = row_blocks(rows, columns)
    if len(parts) <= 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(max_workers=usable_cores()) as executor:
        # `list` re-raises an exception of a block.
        list(executor.map(work, parts))
