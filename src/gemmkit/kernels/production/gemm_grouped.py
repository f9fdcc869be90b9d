"""How `gemm_grouped.cu` is launched: which tiles, whose they are, and the table that tells it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.grouped_problem import GroupedProblem, Sizes
from gemmkit.kernels import source_text
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import (
    MAX_EXTENT,
    LaunchPlan,
    Signature,
    TileConfig,
)
from gemmkit.kernels.policy import policy, source_file
from gemmkit.kernels.production import cp_async_fma
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, access, arguments_place, only
from gemmkit.kernels.production.schedule import RASTER_ROWS, schedule_argument
from gemmkit.kernels.rules import resident_blocks, thread_count

NAME = "gemm_grouped"

# The kernel whose configurations and mainloop it has.
TILED = "gemm_tiled"

SIGNATURE: Signature = only("groups", "group_count", "tile_count", "alpha", "beta", "scale")

# `Group` of scheduler/grouped.cuh.
GROUP = np.dtype(
    [(name, np.uint64) for name in ("A", "B", "C", "bias", "residual", "auxiliary")]
    + [(name, np.int32) for name in ("M", "N", "K", "lda", "ldb", "ldc", "ldr", "ldx")]
    + [(name, np.int32) for name in ("first_tile", "tile_rows", "tile_cols", "unused")]
)

# A tile's number is 32-bit in the kernel, which adds half a tile and the grid's blocks to it.
MAX_TILES = 2**31 - 2**17

# Multiply-adds of a tile that are worth a block of its own: on an H100 its start takes less time
# than blocks that share tiles lose from one to the next.
OWN_BLOCK = 2**15

Addresses = NDArray[np.uint64] | Iterable[int] | int


def vector_width(problem: GroupedProblem) -> int:
    """Floats per global access: 4 where rows begin and end at 16 bytes in every product, else 1.

    Matrices that are neither read nor written do not count.
    """
    along_a = problem.m if problem.transa else problem.k
    along_b = problem.k if problem.transb else problem.n
    written = (problem.m > 0) & (problem.n > 0)
    read = written & (problem.k > 0)
    pitches_read = (along_a | along_b | problem.lda | problem.ldb)[read]
    pitches_written = (problem.n | problem.ldc)[written]
    odd = any((each % 4).any() for each in (pitches_read, pitches_written))
    return 1 if odd or problem.alignment % 16 else 4


def tile_counts(problem: GroupedProblem, config: TileConfig) -> tuple[Sizes, Sizes]:
    """Rows and columns of tiles of each product; an empty one has none."""
    return -(-problem.m // config["BM"]), -(-problem.n // config["BN"])


def supports(problem: GroupedProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Why the products cannot be computed with this configuration on this board, or None.

    Configurations are those of `gemm_tiled`.
    """
    for name in ("m", "n", "k", "lda", "ldb", "ldc"):
        sizes = getattr(problem, name)
        if sizes.max(initial=0) > MAX_EXTENT:
            number = int(sizes.argmax())
            return (
                f"product {number} has {name} = {sizes[number]}: indices are 32-bit, {MAX_EXTENT} "
                "is the most"
            )
    rows, columns = tile_counts(problem, config)
    tiles = int((rows * columns).sum())
    if tiles > MAX_TILES:
        return f"{tiles} tiles are more than a launch can number ({MAX_TILES}): take several"
    return find_kernel(TILED).supports(problem.single, config, gpu)


def plan(problem: GroupedProblem, config: TileConfig, gpu: GpuSpec) -> LaunchPlan:
    """How to launch it.

    Tiles of little work, where all products have the same k, are shared evenly by as many blocks as
    the board holds. Otherwise each tile has a block of its own, which the board starts as soon as
    another has ended, those with the longest k first.

    Raises:
        UnsupportedProblem: `supports` gave a reason.
    """
    reason = supports(problem, config, gpu)
    if reason is not None:
        raise UnsupportedProblem(f"{NAME} ({config}): {reason}")
    rows, columns = tile_counts(problem, config)
    tiles = rows * columns
    blocks, depths = int(tiles.sum()), problem.k[tiles > 0]
    shared_bytes = cp_async_fma.pipeline_bytes(problem.single, config)
    small = blocks and config["BM"] * config["BN"] * int(depths[0]) < OWN_BLOCK
    if small and (depths == depths[0]).all():
        resident = resident_blocks(config, gpu, shared_bytes)
        blocks = min(blocks, gpu.sm_count * resident)
    width = vector_width(problem)
    template = ", ".join(
        (
            cp_async_fma.tile_argument(config),
            access(width, width, width),
            CUDA_LAYOUTS[problem.single.layout],
            schedule_argument(problem.single, raster=RASTER_ROWS),
            policy(problem.single),
        )
    )
    return LaunchPlan(
        kernel=NAME,
        source=source_file(NAME, _source(), problem.single),
        entry=f"{NAME}<{template}>",
        grid=(blocks, 1, 1),
        block=(thread_count(config), 1, 1),
        signature=(*SIGNATURE, *problem.epilogue.arguments),
        shared_bytes=shared_bytes,
        structs=arguments_place(problem.single),
    )


def describe(
    problem: GroupedProblem,
    config: TileConfig,
    a: Addresses,
    b: Addresses,
    c: Addresses,
    *,
    bias: Addresses = 0,
    residual: Addresses = 0,
    ldr: ArrayLike = 0,
    auxiliary: Addresses = 0,
    ldx: ArrayLike = 0,
) -> NDArray[np.void]:
    """The table of products that the kernel reads, of dtype `GROUP`, the longest k first.

    Addresses are those of each product's matrices, in the problem's order; `ldr` and `ldx` are
    elements from a row of a residual or auxiliary output to the next.

    Raises:
        UnsupportedProblem: there are more elements from a row to the next than a kernel can count.
    """
    for name, pitches in (("ldr", ldr), ("ldx", ldx)):
        longest = int(np.max(pitches, initial=0))
        if longest > MAX_EXTENT:
            raise UnsupportedProblem(
                f"{NAME}: {name} = {longest}: indices are 32-bit, {MAX_EXTENT} is the most"
            )
    table = np.zeros(problem.count, GROUP)
    for name, addresses in zip(
        ("A", "B", "C", "bias", "residual", "auxiliary"),
        (a, b, c, bias, residual, auxiliary),
        strict=True,
    ):
        table[name] = addresses
    for name, sizes in zip(
        ("M", "N", "K", "lda", "ldb", "ldc", "ldr", "ldx"),
        (problem.m, problem.n, problem.k, problem.lda, problem.ldb, problem.ldc, ldr, ldx),
        strict=True,
    ):
        table[name] = sizes
    table["tile_rows"], table["tile_cols"] = tile_counts(problem, config)
    table = table[np.argsort(-problem.k, kind="stable")]
    tiles = table["tile_rows"].astype(np.int64) * table["tile_cols"]
    table["first_tile"] = np.cumsum(tiles) - tiles
    return table


def arguments(
    problem: GroupedProblem, table: NDArray[np.void], address: int
) -> dict[str, int | float]:
    """The value of each name of the signature, the table being at that address."""
    last = table[-1:]
    tiles = last["first_tile"] + last["tile_rows"] * last["tile_cols"]
    return {
        "groups": address,
        "group_count": table.size,
        "tile_count": int(tiles.sum()),
        "alpha": problem.alpha,
        "beta": problem.beta,
        "scale": problem.epilogue.scale,
        **problem.epilogue.arguments,
    }


@cache
def _source() -> str:
    return source_text(NAME)
