"""Where a few wrong elements lie in the tiles of the kernel that computed them."""

from __future__ import annotations

import msgspec

from gemmkit.frontends.tiles import block_tile
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import Diagnosis


def placed(
    diagnosis: Diagnosis | None, kernel: Kernel, config: TileConfig, problem: GemmProblem
) -> Diagnosis | None:
    """The diagnosis with a sentence for each of few wrong elements: its tile, its place in it.

    As it was where many are wrong, where the kernel's launch shows no tiles, or has one only, and
    of groups, which are diagnosed one by one.
    """
    if diagnosis is None or not diagnosis.places or problem.groups is not None:
        return diagnosis
    tile = block_tile(kernel, config)
    if tile is None or (tile[0] >= problem.m and tile[1] >= problem.n):
        return diagnosis
    found = tuple(_sentence(place, tile, problem) for place in diagnosis.places)
    return msgspec.structs.replace(diagnosis, details=(*diagnosis.details, *found))


def _sentence(place: tuple[int, int], tile: tuple[int, int], problem: GemmProblem) -> str:
    (row, column), (rows, columns) = place, tile
    down, along = row // rows, column // columns
    whole = (down + 1) * rows <= problem.m and (along + 1) * columns <= problem.n
    return (
        f"[{row}, {column}] is element [{row % rows}, {column % columns}] of the {rows} × {columns}"
        f" tile ({down}, {along}){'' if whole else ', a residue tile'}."
    )
