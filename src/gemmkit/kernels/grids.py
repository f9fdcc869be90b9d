"""Which blocks of a grid get which tiles of which product; the kernels undo it."""

from __future__ import annotations

from gemmkit.gpu import MAX_GRID_YZ
from gemmkit.kernels.plan import Dim3, ceil_div
from gemmkit.problem import GemmProblem


def spread_over_yz(tiles: int) -> tuple[int, int]:
    """Tiles along the grid's y and, where 65,535 do not suffice, along z too.

    The kernels undo this with `grid_row()` of `layout.cuh`; a surplus block returns at once.
    """
    layers = ceil_div(tiles, MAX_GRID_YZ)
    return (ceil_div(tiles, layers), layers) if layers else (0, 0)


def tile_grid(problem: GemmProblem, BM: int, BN: int, parts: int = 1) -> Dim3:
    """Column tiles on x, row tiles on y and z; for a batch, `batch_grid`."""
    columns, rows = ceil_div(problem.n, BN), ceil_div(problem.m, BM)
    if problem.batch != 1:
        return batch_grid(columns, rows, problem.batch, parts)
    y, layers = spread_over_yz(rows)
    return columns, y, max(layers, parts) if rows else 0


def batch_grid(columns: int, rows: int, batch: int, parts: int = 1) -> Dim3:
    """Tiles of a product on x and y, products on z, with the parts of their k.

    The kernels undo this with `BatchPlace` of `scheduler/batch.cuh`. Only where y and z have room
    for all may there be more than one part.
    """
    y, layers = spread_over_yz(rows)
    z, lines = spread_over_yz(batch * parts)
    return columns * layers * lines, y, z


def cuda_bool(value: bool) -> str:
    """As C++ writes it."""
    return str(value).lower()
