"""How the rungs are launched: template arguments, grid, block and memory of each."""

from __future__ import annotations

from collections.abc import Callable

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.rules import MAP_K, PAD, thread_count
from gemmkit.kernels.work import VECTOR_BYTES
from gemmkit.problem import GemmProblem

# How a kernel is launched for a problem and a configuration on a board.
LaunchFunction = Callable[[GemmProblem, TileConfig, GpuSpec], LaunchShape]


def vector_width(problem: GemmProblem) -> int:
    """Elements per global access: those of 16 bytes where rows start at multiples of that and end
    there, else 1.

    Matrices of a batch must do so too. With whole vectors only, no kernel has to take one apart at
    an edge.
    """
    rows = (problem.m if problem.transa else problem.k) | (problem.k if problem.transb else 0)
    extents = problem.n | rows | problem.lda | problem.ldb | problem.ldc
    stride_a, stride_b, stride_c = problem.strides
    width = VECTOR_BYTES // problem.item_bytes
    extents |= stride_a | stride_b | stride_c
    return width if extents % width == problem.alignment % VECTOR_BYTES == 0 else 1


def template(config: TileConfig, problem: GemmProblem, names: tuple[str, ...]) -> tuple[int, ...]:
    """Template arguments of a rung, given by the parameters' names as its `.cu` file has them.

    These are keys of the configuration (`STAGES` is `stages`), `PAD` and `MAP_K` of `rules`, and
    `VEC`, the floats per global access.
    """
    values = config.as_dict()
    values |= {"STAGES": values.get("stages", 0), "PAD": PAD, "MAP_K": MAP_K}
    return tuple(vector_width(problem) if name == "VEC" else values[name] for name in names)


def thread_per_result(*names: str) -> LaunchFunction:
    """One thread per result in two-dimensional blocks; `names` are the template's, in order."""

    def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
        BM, BN = config["BM"], config["BN"]
        return LaunchShape(
            template=template(config, problem, names),
            grid=tile_grid(problem, BM, BN),
            block=(BN, BM, 1),
        )

    return launch


def block_per_tile(*names: str) -> LaunchFunction:
    """TM×TN results per thread, one-dimensional blocks; `names` are the template's, in order."""

    def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
        return LaunchShape(
            template=template(config, problem, names),
            grid=tile_grid(problem, config["BM"], config["BN"]),
            block=(thread_count(config), 1, 1),
        )

    return launch
