"""Rung 1: the wrong index order, kept to be seen."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.grids import spread_over_yz
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder.naive import rule
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import LaunchShape, TileConfig, ceil_div
from gemmkit.problem import GemmProblem


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """Row tiles on x, column tiles on y: the wrong way round."""
    BM, BN = config["BM"], config["BN"]
    grid = (ceil_div(problem.m, BM), *spread_over_yz(ceil_div(problem.n, BN)))
    return LaunchShape(template=(BM, BN), grid=grid, block=(BM, BN, 1))


KERNEL = Kernel(
    name="naive_uncoalesced",
    rung=1,
    idea="One thread computes one result, but neighboring threads take neighboring rows, so "
    "each warp touches 32 sectors of A to fetch 32 floats.",
    default=TileConfig(BM=32, BN=32),
    space={"BM": (8, 16, 32), "BN": (8, 16, 32)},
    launch=launch,
    work=fp32.per_result(coalesced=False),
    loads=loads.per_result,
    rule=rule,
    fuses=False,
)
