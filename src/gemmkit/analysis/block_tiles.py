"""How the blocks of a launch cover C: tiles per block, and boards for smaller launches."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.errors import GemmkitError
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig, ceil_div
from gemmkit.problem import GemmProblem

# k steps of the launch that determines how a grid covers C.
_STEP = 64


def tile_sides(
    kernel: Kernel, config: TileConfig, problem: GemmProblem, spec: GpuSpec
) -> tuple[int, int]:
    """Rows and columns of a tile of C."""
    work = kernel.work(problem, config, spec)
    return work.rows, work.columns


def tiles_per_block(
    kernel: Kernel, config: TileConfig, problem: GemmProblem, spec: GpuSpec, plan: LaunchPlan
) -> float:
    """Tiles of C per block; one if blocks neither share tiles nor go from tile to tile."""
    if not plan.blocks:
        return 1.0
    if not kernel.shares_tiles:
        return visited(kernel, config, problem, spec)
    rows, columns = tile_sides(kernel, config, problem, spec)
    return ceil_div(problem.m, rows) * ceil_div(problem.n, columns) / plan.blocks


def visited(kernel: Kernel, config: TileConfig, problem: GemmProblem, spec: GpuSpec) -> float:
    """Whole tiles that a block of a persistent kernel computes on average, 1 of other kernels."""
    if kernel.user_defined or problem.groups is not None:
        return 1.0
    cut = kernel.work(problem, config, spec).cut
    return cut.tiles / cut.ctas if cut.tiles > cut.ctas > 0 else 1.0


def in_turn(
    kernel: Kernel, config: TileConfig, problem: GemmProblem, spec: GpuSpec, tiles: float
) -> tuple[float, int]:
    """Tiles of the busiest block, and the teams of its warps that take them in turn."""
    if not goes_on(kernel) or problem.groups is not None:
        return tiles, 1
    work = kernel.work(problem, config, spec)
    return (float(work.visits) if tiles > 1 else tiles), work.teams


def goes_on(kernel: Kernel) -> bool:
    """Whether blocks may go from tile to tile, and it is known how."""
    return not (kernel.user_defined or kernel.shares_tiles)


def cut_board(
    spec: GpuSpec, kernel: Kernel, config: TileConfig, problem: GemmProblem, small: GemmProblem
) -> GpuSpec:
    """A board scaled down like the problem, for kernels whose grid depends on the number of SMs."""
    if not kernel.shares_tiles:
        return spec
    rows, columns = tile_sides(kernel, config, problem, spec)
    tiles, left = (ceil_div(each.m, rows) * ceil_div(each.n, columns) for each in (problem, small))
    return replace(spec, sm_count=max(1, round(spec.sm_count * left / max(tiles, 1))))


def columns_on_x(
    kernel: Kernel, config: TileConfig, spec: GpuSpec, rows: int, columns: int
) -> bool:
    """Whether consecutive blocks of the grid are adjacent in a row of C.

    This is true of most kernels, and assumed for one that refuses the small problem.
    """
    try:
        probe = kernel.plan(GemmProblem(2 * rows, 3 * columns, _STEP), config, spec)
    except GemmkitError:
        return True
    return probe.grid[0] != 2
