"""How the rungs are launched: template arguments, grid, block and memory of each."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import cut
from gemmkit.kernels.grids import banded, batched, cuda_bool, tile_grid
from gemmkit.kernels.plan import LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.rules import (
    STATIC_SHARED_BYTES,
    resident_blocks,
    ring_bytes,
    split_k_shared_bytes,
    thread_count,
)
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# Layouts as layout.cuh calls them.
CUDA_LAYOUTS = {"nn": "A_B", "nt": "A_BT", "tn": "AT_B", "tt": "AT_BT"}

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


def thread_per_result(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """One thread a result."""
    BM, BN = config["BM"], config["BN"]
    return LaunchShape(
        template=tuple(config.as_dict().values()),
        grid=tile_grid(problem, BM, BN),
        block=(BN, BM, 1),
    )


def coarsened(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """TM×TN results per thread, one-dimensional blocks."""
    return LaunchShape(
        template=tuple(config.as_dict().values()),
        grid=tile_grid(problem, config["BM"], config["BN"]),
        block=(thread_count(config), 1, 1),
    )


def vectorized(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """The same, and how wide accesses are."""
    shape = coarsened(problem, config, gpu)
    return LaunchShape((*shape.template, vector_width(problem)), shape.grid, shape.block)


def _places(problem: GemmProblem) -> tuple[str, str]:
    """The template arguments that tell where matrices and their elements are."""
    return batched(problem), CUDA_LAYOUTS[problem.layout]


def async_copy(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """The same with a ring of stages in shared memory, and strips for a fringe."""
    shape, ring = vectorized(problem, config, gpu), ring_bytes(problem, config)
    runs, apart = _runs(problem, LONG_WHOLE, config, gpu, ring)
    places = gpu.sm_count * resident_blocks(config, gpu, ring)
    in_bands = banded(problem, config["BM"], config["BN"], places)
    strips = cut.with_strips(problem, config, gpu, ring).strips
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


def split_k(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y, the parts of each on z; strips for a fringe."""
    BM, BN = config["BM"], config["BN"]
    shared_bytes = split_k_shared_bytes(problem, config)
    parts = cut.split_k_parts(problem, config)
    found = cut.with_strips(problem, config, gpu, shared_bytes, parts)
    strips, tiles = found.strips, found.tiles if parts > 1 else 0
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


def stream_k(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As many blocks as the board holds, but none with less than `LEAST_STEPS` of work.

    Further lines of them have strips for a fringe. A block leaves at most the last part of one tile
    and the first of another in the workspace.
    """
    shape = vectorized(problem, config, gpu)
    ring = ring_bytes(problem, config)
    runs, apart = _runs(problem, LONG_STREAM, config, gpu, ring)
    found = cut.stream_k(problem, config, gpu, ring)
    strips, blocks = found.strips, found.ctas
    slots = 2 * blocks if found.cut_tiles else 0
    return LaunchShape(
        template=(*shape.template, runs, strips.template, *_places(problem)),
        grid=(blocks, 1 + (ceil_div(strips.count(problem), blocks) if strips else 0), 1),
        block=shape.block,
        shared_bytes=max(ring + apart, strips.shared_bytes),
        workspace_bytes=FLOAT_BYTES * slots * config["BM"] * config["BN"],
        arrivals=found.cut_tiles,
        fringe=strips.fringe,
        runs=runs,
        banded=True,
    )
