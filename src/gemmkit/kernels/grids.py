"""Which blocks of a grid get which tiles of which product; the kernels undo it."""

from __future__ import annotations

from gemmkit.kernels.plan import MAX_GRID_YZ, Dim3, ceil_div
from gemmkit.problem import GemmProblem

# Rows of C in a band of tiles, as in async_copy.cu; and how many times as much a wave of blocks
# must read without bands.
BAND, LEAST_SAVING = 2048, 2.5


def spread_over_yz(tiles: int) -> tuple[int, int]:
    """Tiles along the grid's y and, where 65,535 do not suffice, along z too.

    The kernels undo this with `grid_row()` of `layout.cuh`; a surplus block returns at once.
    """
    layers = ceil_div(tiles, MAX_GRID_YZ)
    return (ceil_div(tiles, layers), layers) if layers else (0, 0)


def banded(problem: GemmProblem, BM: int, BN: int, places: int) -> bool:
    """Whether tiles come in bands of rows, column by column, rather than row by row.

    Blocks at work together, `places` of them, then share more of what they read: the L2 cache gets
    that from memory once for all. It pays where it saves 60 % and more.
    """
    rows, columns = ceil_div(problem.m, BM), ceil_div(problem.n, BN)
    if problem.batch != 1 or not rows * columns:
        return False

    def read_by_wave(height: int) -> int:
        """Rows of A and columns of B, in bands of so many tiles."""
        bands = ceil_div(places, height * columns)
        return min(columns, ceil_div(places, height)) * BN + min(rows, bands * height) * BM

    return read_by_wave(1) > LEAST_SAVING * read_by_wave(min(rows, BAND // BM))


def tile_grid(problem: GemmProblem, BM: int, BN: int, parts: int = 1) -> Dim3:
    """Column tiles on x, row tiles on y and z; for a batch, `batch_grid`."""
    columns, rows = ceil_div(problem.n, BN), ceil_div(problem.m, BM)
    if problem.batch != 1:
        return batch_grid(columns, rows, problem.batch, parts)
    y, layers = spread_over_yz(rows)
    return columns, y, max(layers, parts) if rows else 0


def batch_grid(columns: int, rows: int, batch: int, parts: int = 1) -> Dim3:
    """Tiles of a product on x and y, products on z, with the parts of their k.

    The kernels undo this with `BatchPlace` of `batch.cuh`. Only where y and z have room for all may
    there be more than one part.
    """
    y, layers = spread_over_yz(rows)
    z, lines = spread_over_yz(batch * parts)
    return columns * layers * lines, y, z


def batched(problem: GemmProblem) -> str:
    """A kernel's template argument BATCHED: single products need no search for their place."""
    return cuda_bool(problem.batch != 1)


def cuda_bool(value: bool) -> str:
    """As C++ writes it."""
    return str(value).lower()
