"""How the rungs are launched: template arguments, grid, block and memory of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.grids import banded, batched, cuda_bool, tile_grid
from gemmkit.kernels.plan import MAX_GRID_YZ, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.rules import (
    MAP_K,
    PAD,
    STATIC_SHARED_BYTES,
    resident_blocks,
    ring_bytes,
    split_k_shared_bytes,
    thread_count,
)
from gemmkit.kernels.strips import strips_for
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# How a kernel is launched for a problem and a configuration on a board.
LaunchFunction = Callable[[GemmProblem, TileConfig, GpuSpec], LaunchShape]

# Layouts as layout.cuh calls them.
CUDA_LAYOUTS = {"nn": "A_B", "nt": "A_BT", "tn": "AT_B", "tt": "AT_BT"}

# Steps of k below which `stream_k` gives no block a share of its own.
LEAST_STEPS = 4

# A long k is added up in so many runs, apart, where shared memory has room for them. In
# `async_copy` they take up to 3 % of the speed, and are only for k for which cuBLAS cuts sums too.
RUNS, LONG_STREAM, LONG_WHOLE = 4, range(1025, 2**31), range(2049, 8193)


def vector_width(problem: GemmProblem) -> int:
    """Floats per global access: 4 where rows start at multiples of 16 bytes and end there, else 1.

    Matrices of a batch must do so too. With whole vectors only, no kernel has to take one apart at
    an edge.
    """
    rows = (problem.m if problem.transa else problem.k) | (problem.k if problem.transb else 0)
    extents = problem.n | rows | problem.lda | problem.ldb | problem.ldc
    stride_a, stride_b, stride_c = problem.strides
    aligned = (extents | stride_a | stride_b | stride_c) % 4 == problem.alignment % 16 == 0
    return 4 if aligned else 1


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


def vectorized(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """The same with all keys of the configuration, and how wide accesses are."""
    return block_per_tile(*config.as_dict(), "VEC")(problem, config, gpu)


def _places(problem: GemmProblem) -> tuple[str, str]:
    """The template arguments that tell where matrices and their elements are."""
    return batched(problem), CUDA_LAYOUTS[problem.layout]


def async_copy(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """The same with a ring of stages in shared memory, and strips for a fringe."""
    shape, ring = vectorized(problem, config, gpu), ring_bytes(problem, config)
    runs, apart = _runs(problem, LONG_WHOLE, config, gpu, ring)
    places = gpu.sm_count * resident_blocks(config, gpu, ring)
    in_bands = banded(problem, config["BM"], config["BN"], places)
    strips = strips_for(problem, config, gpu, ring + apart)
    return replace(
        shape,
        template=(*shape.template, runs, cuda_bool(in_bands), strips.template, *_places(problem)),
        grid=strips.grid(problem, config) if strips else shape.grid,
        shared_bytes=max(ring + apart, strips.shared_bytes),
        fringe=strips.fringe,
        runs=runs,
        banded=in_bands,
    )


def _runs(
    problem: GemmProblem, long: range, config: TileConfig, gpu: GpuSpec, shared_bytes: int
) -> tuple[int, int]:
    """Runs of k, and the shared bytes that their sums take besides.

    There is one where k is not `long`, or more would not fit or cost blocks their place on an SM.
    """
    apart = FLOAT_BYTES * config["BM"] * config["BN"]
    most = shared_bytes + apart + STATIC_SHARED_BYTES
    without, with_sums = (resident_blocks(config, gpu, each) for each in (shared_bytes, most))
    fits = most <= gpu.capability.max_shared_per_block and without == with_sums
    return (RUNS, apart) if problem.k in long and fits else (1, 0)


def split_k_parts(problem: GemmProblem, config: TileConfig) -> int:
    """Blocks that share a tile: no more than there are steps of k.

    It is one only where rows of tiles or products take the grid's z.
    """
    rows = ceil_div(problem.m, config["BM"])
    most = MAX_GRID_YZ // max(problem.batch, 1) if rows <= MAX_GRID_YZ else 1
    return max(1, min(config["split_k"], ceil_div(problem.k, config["BK"]), most))


def split_k(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y, the parts of each on z; strips for a fringe."""
    BM, BN = config["BM"], config["BN"]
    parts, shared_bytes = split_k_parts(problem, config), split_k_shared_bytes(problem, config)
    strips = strips_for(problem, config, gpu, shared_bytes, parts)
    rows, columns = strips.tiles(problem, config)
    tiles = rows * columns * problem.batch if parts > 1 else 0
    return LaunchShape(
        template=(
            *_without_split(config),
            vector_width(problem),
            strips.template,
            *_places(problem),
        ),
        grid=strips.grid(problem, config) if strips else tile_grid(problem, BM, BN, parts),
        block=(thread_count(config), 1, 1),
        shared_bytes=max(shared_bytes, strips.shared_bytes),
        workspace_bytes=FLOAT_BYTES * tiles * parts * BM * BN,
        arrivals=tiles,
        fringe=strips.fringe,
    )


def _without_split(config: TileConfig) -> tuple[int, ...]:
    """Values of the configuration but for `split_k`, which kernels learn from their grid."""
    return tuple(value for key, value in config.as_dict().items() if key != "split_k")


def cut_tiles(tiles: int, blocks: int) -> int:
    """Tiles that `stream_k` cuts, as `Stream` in stream.cuh does.

    These are what whole waves leave over, and one wave more if they leave anything.
    """
    left = tiles % blocks if blocks else 0
    return left + blocks if left and tiles > blocks else left


def stream_k(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As many blocks as the board holds, but none with less than `LEAST_STEPS` of work.

    Further lines of them have strips for a fringe. A block leaves at most the last part of one tile
    and the first of another in the workspace.
    """
    shape = vectorized(problem, config, gpu)
    ring = ring_bytes(problem, config)
    runs, apart = _runs(problem, LONG_STREAM, config, gpu, ring)
    strips = strips_for(problem, config, gpu, ring + apart)
    rows, columns = strips.tiles(problem, config)
    tiles = columns * rows * problem.batch
    shares = tiles * max(1, ceil_div(problem.k, config["BK"]) // LEAST_STEPS)
    blocks = min(gpu.sm_count * resident_blocks(config, gpu, ring), shares)
    cut = cut_tiles(tiles, blocks)
    slots = 2 * blocks if cut else 0
    return LaunchShape(
        template=(*shape.template, runs, strips.template, *_places(problem)),
        grid=(blocks, 1 + (ceil_div(strips.count(problem), blocks) if strips else 0), 1),
        block=shape.block,
        shared_bytes=max(ring + apart, strips.shared_bytes),
        workspace_bytes=FLOAT_BYTES * slots * config["BM"] * config["BN"],
        arrivals=cut,
        fringe=strips.fringe,
        runs=runs,
        banded=True,
    )
