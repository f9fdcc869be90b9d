"""How `gemm_split_k` is launched: thread blocks, and slices of each, share the k of a tile."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import MAX_GRID_YZ, GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.dependent_launch import DEPENDENT_SINCE, dependent
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launches import vector_width
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.production import cp_async_fma
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, SPLIT_SIGNATURE, access, launch_shape
from gemmkit.kernels.production.residue import cut_with_residue
from gemmkit.kernels.production.schedule import schedule_argument
from gemmkit.kernels.rules import (
    STATIC_SHARED_BYTES,
    divides,
    dynamic_shared,
    first_reason,
    positive,
    thread_count,
)
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem


def parts_of(problem: GemmProblem, config: TileConfig) -> int:
    """Blocks that share a tile: no more than there are steps of k.

    It is one only where rows of tiles or products take the grid's z.
    """
    rows = ceil_div(problem.m, config["BM"])
    most = MAX_GRID_YZ // max(problem.batch, 1) if rows <= MAX_GRID_YZ else 1
    return max(1, min(config["split_k"], ceil_div(problem.k, config["BK"]), most))


def shared_bytes(problem: GemmProblem | None, config: TileConfig) -> int:
    """Shared bytes of the stages, and then in their place the sums of the slices.

    Biases of the tile's columns stay there besides.
    """
    slices = config["slice_k"]
    sums = FLOAT_BYTES * slices * config["BM"] * config["BN"] if slices > 1 else 0
    biased = problem is not None and problem.epilogue.bias == "column"
    biases = FLOAT_BYTES * config["BN"] if biased else 0
    return max(cp_async_fma.pipeline_bytes(problem, config), sums) + biases


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y, the parts of each on z; residue tiles in further rows.

    Where each block has an SM to itself, they start while the kernel before them ends.
    """
    BM, BN, width = config["BM"], config["BN"], vector_width(problem)
    parts, taken = parts_of(problem, config), shared_bytes(problem, config)
    found, residue = cut_with_residue(problem, config, gpu, taken, parts)
    tiles = found.tiles if parts > 1 else 0
    shape = launch_shape(
        (
            cp_async_fma.tile_argument(config),
            access(width, width, width),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem, residue=residue),
        ),
        residue.grid(problem, config) if residue else tile_grid(problem, BM, BN, parts),
        thread_count(config),
        max(taken, residue.shared_bytes),
    )
    if gpu.capability.major >= DEPENDENT_SINCE and prod(shape.grid) <= gpu.sm_count:
        shape = dependent(shape, gpu)
    return replace(
        shape,
        workspace_bytes=FLOAT_BYTES * tiles * parts * BM * BN,
        semaphores=tiles,
        residue=residue.extents,
    )


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """Parts of a tile per block, and residue tiles."""
    taken = shared_bytes(problem, config)
    found = cut_with_residue(problem, config, gpu, taken, parts_of(problem, config))
    return cp_async_fma.work(problem, config, gpu, found, taken, STATIC_SHARED_BYTES)


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words | str:
    """Tiles, and the partial sums of their parts and slices."""
    parts = parts_of(problem, config)
    found, residue = cut_with_residue(problem, config, gpu, shared_bytes(problem, config), parts)
    plain = cp_async_fma.words(problem, config, vector_width(problem), residue)
    return plain if isinstance(plain, str) else loads.with_parts(plain, config, found.tiles, parts)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The pipeline for several slices, each with whole lines of k."""
    return first_reason(
        lambda: positive(config),
        lambda: divides(config, "slice_k", "BK"),
        lambda: cp_async_fma.rule(config, gpu),
        lambda: dynamic_shared(shared_bytes(None, config), gpu, "slices' sums"),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What a problem's layout and bias ask for besides."""
    return first_reason(
        lambda: cp_async_fma.even_copies(problem, config),
        lambda: dynamic_shared(shared_bytes(problem, config), gpu),
    )


KERNEL = Kernel(
    name="gemm_split_k",
    rung=None,
    idea="Several blocks, and several warps of each, share the k of one tile, so that small "
    "products keep the whole board busy too.",
    default=TileConfig(
        BM=64,
        BN=128,
        BK=32,
        WM=32,
        WN=64,
        TM=8,
        TN=8,
        stages=3,
        split_k=2,
        slice_k=2,
        interleave=4,
        order=5,
    ),
    space={
        "BM": (16, 32, 48, 64, 96, 128, 192),
        "BN": (32, 48, 64, 96, 128),
        "BK": (16, 32, 64),
        "WM": (16, 32, 48, 64, 96),
        "WN": (32, 48, 64, 96),
        "TM": (4, 8, 12, 16),
        "TN": (4, 8, 12),
        "stages": (2, 3, 4),
        "split_k": (1, 2, 3, 4, 7, 8),
        "slice_k": (1, 2, 4, 8),
    },
    refinements=cp_async_fma.INNER_LOOPS,
    launch=launch,
    work=work,
    loads=words,
    rule=rule,
    layouts=LAYOUTS,
    pairing=pairing,
    signature=SPLIT_SIGNATURE,
)
