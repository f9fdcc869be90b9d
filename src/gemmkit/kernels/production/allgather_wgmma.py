"""How `allgather_wgmma` is launched: A gathered from several GPUs under the product, by wgmma."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import (
    ARRIVAL_ARGUMENTS,
    MAP_ARGUMENTS,
    LaunchShape,
    Signature,
    TileConfig,
    ceil_div,
)
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production import gemm_wgmma, wgmma_tiles
from gemmkit.kernels.production.arguments import SIGNATURE
from gemmkit.kernels.production.schedule import RASTER_EXTENT, schedule_argument
from gemmkit.kernels.warpgroups import is_swapped, unaligned
from gemmkit.problem import GemmProblem

# The kernel whose mainloop, tiles and bits it has.
SINGLE = gemm_wgmma.KERNEL

_NAME = "allgather_wgmma"
_ARRIVALS: Signature = ("map_own", *ARRIVAL_ARGUMENTS)


class Shares(NamedTuple):
    """Whose rows A has: each of `ranks` has `rows` of them, the last one what is left, and one at
    least. `rank` is the one that multiplies."""

    rank: int
    ranks: int
    rows: int

    def numbers(self, problem: GemmProblem) -> dict[str, int]:
        """The kernel's arguments for them, but for addresses; own rows are contiguous."""
        first = self.rank * self.rows
        return {
            "first_row": first,
            "share_rows": self.rows,
            "ranks": self.ranks,
            "own_rows": min(self.rows, problem.m - first),
            "own_ld": problem.k,
        }


@lru_cache(maxsize=256)
def allgather_kernel(ranks: int, rows: int) -> Kernel:
    """The kernel for an A that comes in shares of so many rows. Tiles are those of `gemm_wgmma`, of
    which it is no candidate beside: a product on one GPU has nothing to wait for."""
    return replace(
        SINGLE,
        name=_NAME,
        idea="Tiles of the rows that are there are multiplied first, and the warp that loads waits "
        "for the flags of the others, so that one launch runs under all transfers.",
        launch=partial(_launch, rows),
        mainloop=SINGLE,
        signature=(*MAP_ARGUMENTS, *_ARRIVALS, *SIGNATURE),
        layouts=("nn", "nt"),
        condition=partial(_condition, ranks, rows),
        pairing=partial(_pairing, rows),
    )


def _launch(share: int, problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As `gemm_wgmma`, with a map of this GPU's own rows."""
    shape = wgmma_tiles.launch_shape(
        problem,
        config,
        gpu,
        gemm_wgmma.operands(problem),
        (CUDA_TYPES[problem.dtype],),
        entry=_NAME,
        signature=(*_ARRIVALS, *SIGNATURE),
    )
    raster = raster_rows(share, config)
    of_a = next(each for each in shape.tensor_maps if each.operand == "A")
    return replace(
        shape,
        # The schedule comes last.
        template=(*shape.template[:-1], schedule_argument(problem, raster=raster)),
        tensor_maps=(*shape.tensor_maps, replace(of_a, name="map_own", operand="own")),
    )


def rows_of_tile(config: TileConfig) -> int:
    """Rows of a cluster's tile."""
    return config["BM"] * config["cluster_m"]


def raster_rows(share: int, config: TileConfig) -> int:
    """Rows of tiles in a group.

    A group that has rows of two shares begins to wait for the second while there are tiles of the
    first, so groups divide shares, unless they would have to be much smaller for that.
    """
    of_tile = rows_of_tile(config)
    most, tiles = max(1, RASTER_EXTENT // of_tile), share // of_tile
    whole = next(each for each in range(min(most, tiles), 0, -1) if tiles % each == 0)
    return whole if 2 * whole > min(most, tiles) else most


def _condition(ranks: int, share: int, problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A Hopper board, operands in place, and rows on each rank."""
    if problem.batch != 1:
        return f"'{_NAME}' computes one product per launch, not a batch"
    if ranks < 2 or share < 1 or ceil_div(problem.m, share) != ranks:
        return (
            f"{problem.m} rows in shares of {share} are not those of {ranks} ranks, of which each "
            "has some"
        )
    return wgmma_tiles.condition(problem, gpu) or unaligned(problem)


def _pairing(share: int, problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Shares of whole tiles, with wgmma's rows along those of A, and room for results."""
    of_tile = rows_of_tile(config)
    return rules.first_reason(
        lambda: (
            f"cluster_k = {config['cluster_k']}: blocks that share a tile's k wait for no rows"
            if config["cluster_k"] > 1
            else None
        ),
        lambda: (
            f"BM = {config['BM']}: tiles that are computed as their transposes wait for no rows"
            if is_swapped(config)
            else None
        ),
        lambda: (
            f"shares of {share} rows are not whole tiles of BM × cluster_m = {of_tile} rows"
            if share % of_tile
            else None
        ),
        lambda: gemm_wgmma.pairing(problem, config, gpu),
    )
