"""`LADDER`: the only list of rungs; for each its idea, configurations, launch and rules."""

from __future__ import annotations

import difflib

from gemmkit.errors import UsageError
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.kernel import (
    Kernel,
    LaunchShape,
    TileConfig,
    ceil_div,
    spread_over_yz,
    tile_grid,
)
from gemmkit.problem import FLOAT_BYTES, GemmProblem

STATIC_SHARED_LIMIT = 48 * 1024
MAX_RESULTS_PER_THREAD = 256
COARSENING_STRIDES = (1, 2, 4, 8, 16)
PAD = 4
"""Floats of padding per row of a transposed A tile; the kernels' own constant of that name."""


def vector_width(problem: GemmProblem) -> int:
    """Floats per global access: 4 where rows start at multiples of 16 bytes and end there, else 1.

    With whole vectors only, no kernel has to take one apart at an edge.
    """
    extents = (problem.n, problem.k, problem.lda, problem.ldb, problem.ldc)
    return 4 if all(extent % 4 == 0 for extent in extents) else 1


def thread_count(config: TileConfig) -> int:
    """Threads of a block in which each thread has TM×TN results (1 where a key is not used)."""
    return config["BM"] * config["BN"] // ((config.TM or 1) * (config.TN or 1))


# --- launch -----------------------------------------------------------------------------------


def _launch_naive_uncoalesced(problem: GemmProblem, config: TileConfig) -> LaunchShape:
    BM, BN = config["BM"], config["BN"]
    grid = (ceil_div(problem.m, BM), *spread_over_yz(ceil_div(problem.n, BN)))
    return LaunchShape(template=(BM, BN), grid=grid, block=(BM, BN, 1))


def _launch_thread_per_result(problem: GemmProblem, config: TileConfig) -> LaunchShape:
    BM, BN = config["BM"], config["BN"]
    return LaunchShape(
        template=tuple(config.as_dict().values()),
        grid=tile_grid(problem, BM, BN),
        block=(BN, BM, 1),
    )


def _launch_coarsened(problem: GemmProblem, config: TileConfig) -> LaunchShape:
    return LaunchShape(
        template=tuple(config.as_dict().values()),
        grid=tile_grid(problem, config["BM"], config["BN"]),
        block=(thread_count(config), 1, 1),
    )


def _launch_vectorized(problem: GemmProblem, config: TileConfig) -> LaunchShape:
    shape = _launch_coarsened(problem, config)
    return LaunchShape((*shape.template, vector_width(problem)), shape.grid, shape.block)


def _launch_async_copy(problem: GemmProblem, config: TileConfig) -> LaunchShape:
    shape = _launch_vectorized(problem, config)
    shared_bytes = config["stages"] * _stage_bytes(config, PAD)
    return LaunchShape(shape.template, shape.grid, shape.block, shared_bytes)


# --- rules ------------------------------------------------------------------------------------


def _stage_bytes(config: TileConfig, pad: int = 0) -> int:
    """Shared bytes of one pair of tiles."""
    return FLOAT_BYTES * config["BK"] * (config["BM"] + pad + config["BN"])


def _first(*reasons: str | None) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _divides(config: TileConfig, part: str, whole: str) -> str | None:
    if config[whole] % config[part] == 0:
        return None
    return f"{whole} = {config[whole]} is not a multiple of {part} = {config[part]}"


def _quads(config: TileConfig, *keys: str) -> str | None:
    for key in keys:
        if config[key] % 4 != 0:
            return f"{key} = {config[key]} is not a multiple of 4, as 128-bit accesses need"
    return None


def _positive(config: TileConfig) -> str | None:
    for key, value in config.as_dict().items():
        if value < 1:
            return f"{key} = {value}: values must be 1 or more"
    return None


def _threads(config: TileConfig, gpu: GpuSpec) -> str | None:
    threads, limit = thread_count(config), gpu.capability.max_threads_per_block
    if threads > limit:
        return f"{threads} threads a block are more than the {limit} that a GPU allows"
    return None


def _static_shared(shared_bytes: int) -> str | None:
    if shared_bytes > STATIC_SHARED_LIMIT:
        return f"its tiles take {shared_bytes} bytes of shared memory, more than 48 KiB"
    return None


def _even_shares(config: TileConfig, vector: int) -> str | None:
    """Every thread must copy equally many vectors of each tile, as `TileWalk` needs."""
    threads = thread_count(config)
    for tile, rows, columns in (("A", "BM", "BK"), ("B", "BK", "BN")):
        for width in {1, vector}:
            across = min(config[columns] // width, threads)
            per_step = threads // across
            if (
                threads % across != 0
                or config[columns] // width % across != 0
                or config[rows] % per_step != 0
            ):
                return (
                    f"{threads} threads cannot share the {tile} tile evenly "
                    f"({rows} x {columns} = {config[rows]} x {config[columns]} floats)"
                )
    return None


def _rule_naive(config: TileConfig, gpu: GpuSpec) -> str | None:
    return _positive(config) or _threads(config, gpu)


def _rule_shared_tiling(config: TileConfig, gpu: GpuSpec) -> str | None:
    square = config["BM"] == config["BN"] == config["BK"]
    return _first(
        _positive(config),
        None if square else "BM, BN and BK must be equal: a thread copies one float of each tile",
        _threads(config, gpu),
    )


def _rule_coarsening_1d(config: TileConfig, gpu: GpuSpec) -> str | None:
    strides = ", ".join(map(str, COARSENING_STRIDES))
    return _first(
        _positive(config),
        None if config["TM"] in COARSENING_STRIDES else f"TM (the stride) is one of {strides}",
        _divides(config, "TM", "BM"),
        _threads(config, gpu),
        _even_shares(config, 1),
        _static_shared(_stage_bytes(config)),
    )


def _rule_coarsened(config: TileConfig, gpu: GpuSpec, vector: int, stages: int) -> str | None:
    results = config["TM"] * config["TN"]
    return _first(
        f"{results} results a thread do not fit its registers; {MAX_RESULTS_PER_THREAD} may"
        if results > MAX_RESULTS_PER_THREAD
        else None,
        _divides(config, "TM", "BM"),
        _divides(config, "TN", "BN"),
        _threads(config, gpu),
        _even_shares(config, vector),
        _static_shared(stages * _stage_bytes(config, PAD if vector > 1 else 0)),
    )


def _rule_coarsening_2d(config: TileConfig, gpu: GpuSpec) -> str | None:
    return _positive(config) or _rule_coarsened(config, gpu, vector=1, stages=1)


def _rule_vectorized(config: TileConfig, gpu: GpuSpec) -> str | None:
    return _first(
        _positive(config),
        _quads(config, "BM", "BN", "BK", "TM", "TN"),
        _rule_coarsened(config, gpu, vector=4, stages=1),
    )


def _rule_double_buffered(config: TileConfig, gpu: GpuSpec) -> str | None:
    return _rule_vectorized(config, gpu) or _static_shared(2 * _stage_bytes(config, PAD))


def _warps(config: TileConfig) -> str | None:
    lanes = config["WM"] * config["WN"] // (config["TM"] * config["TN"])
    return _first(
        _divides(config, "WM", "BM"),
        _divides(config, "WN", "BN"),
        _divides(config, "TM", "WM"),
        _divides(config, "TN", "WN"),
        None
        if lanes == WARP_SIZE
        else f"a WM*WN warp tile with TM*TN results a thread needs {lanes} lanes; a warp has 32",
    )


def _rule_warp_tiled(config: TileConfig, gpu: GpuSpec) -> str | None:
    return _positive(config) or _warps(config) or _rule_double_buffered(config, gpu)


def _rule_async_copy(config: TileConfig, gpu: GpuSpec) -> str | None:
    capability = gpu.capability
    if capability.major < 8:
        return f"cp.async needs compute capability 8.0; {gpu.name} has {capability}"
    shared = config["stages"] * _stage_bytes(config, PAD)
    limit = capability.max_shared_per_block
    return _first(
        _positive(config),
        None if config["stages"] >= 2 else "stages must be 2 or more: one computes, one copies",
        _warps(config),
        _rule_vectorized(config, gpu),
        f"{config['stages']} stages take {shared} bytes of shared memory; {gpu.name} has {limit}"
        if shared > limit
        else None,
    )


# --- the rungs --------------------------------------------------------------------------------

_REGISTER_TILES = {
    "BM": (32, 64, 128),
    "BN": (32, 64, 128),
    "BK": (8, 16),
    "TM": (4, 8),
    "TN": (4, 8),
}

LADDER: tuple[Kernel, ...] = (
    Kernel(
        name="naive_uncoalesced",
        rung=1,
        idea="One thread computes one result, but neighbouring threads take neighbouring rows, so "
        "each warp touches 32 sectors of A to fetch 32 floats.",
        default=TileConfig(BM=32, BN=32),
        space={"BM": (8, 16, 32), "BN": (8, 16, 32)},
        launch=_launch_naive_uncoalesced,
        rule=_rule_naive,
        fuses=False,
    ),
    Kernel(
        name="naive",
        rung=2,
        idea="Neighbouring threads take neighbouring columns, so a warp reads B and writes C in "
        "whole 128-byte lines and needs a single sector of A.",
        default=TileConfig(BM=32, BN=32),
        space={"BM": (4, 8, 16, 32), "BN": (16, 32, 64)},
        launch=_launch_thread_per_result,
        rule=_rule_naive,
    ),
    Kernel(
        name="shared_tiling",
        rung=3,
        idea="A block copies tiles of A and B to shared memory once and reads them there many "
        "times, which divides global traffic by the tile size.",
        default=TileConfig(BM=32, BN=32, BK=32),
        space={"BM": (8, 16, 32), "BN": (8, 16, 32), "BK": (8, 16, 32)},
        launch=_launch_thread_per_result,
        rule=_rule_shared_tiling,
    ),
    Kernel(
        name="coarsening_1d",
        rung=4,
        idea="A thread computes TM results of a column and uses each float of B for all of them, "
        "which saves shared-memory reads and gives it independent work.",
        default=TileConfig(BM=16, BN=16, BK=16, TM=8),
        space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (8, 16, 32), "TM": COARSENING_STRIDES},
        launch=_launch_coarsened,
        rule=_rule_coarsening_1d,
        aliases={"stride": "TM"},
    ),
    Kernel(
        name="coarsening_2d",
        rung=5,
        idea="A thread computes TM×TN results as outer products in registers: its reads grow as "
        "TM+TN while its arithmetic grows as TM·TN.",
        default=TileConfig(BM=64, BN=64, BK=8, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_coarsened,
        rule=_rule_coarsening_2d,
    ),
    Kernel(
        name="vectorized",
        rung=6,
        idea="Global and shared memory are read four floats at a time, with A transposed on the "
        "way in, so a quarter of the load instructions move the same data.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_vectorized,
        rule=_rule_vectorized,
    ),
    Kernel(
        name="conflict_free",
        rung=7,
        idea="Padding, and columns dealt to threads in quads, keep the accesses of a warp in "
        "different banks, so shared memory serves each in the fewest cycles.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_vectorized,
        rule=_rule_vectorized,
    ),
    Kernel(
        name="double_buffered",
        rung=8,
        idea="The next tiles are fetched while the current ones are multiplied, so the latency of "
        "global memory hides behind arithmetic and one barrier a step suffices.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=_launch_vectorized,
        rule=_rule_double_buffered,
    ),
    Kernel(
        name="warp_tiled",
        rung=9,
        idea="Each warp owns a compact piece of the block's tile, so its lanes share rows and "
        "columns and shared memory delivers fewer bytes per multiply-add.",
        default=TileConfig(BM=128, BN=128, BK=16, WM=32, WN=64, TM=8, TN=8),
        space={
            "BM": (32, 64, 128),
            "BN": (32, 64, 128),
            "BK": (8, 16),
            "WM": (16, 32, 64),
            "WN": (16, 32, 64),
            "TM": (4, 8),
            "TN": (4, 8),
        },
        launch=_launch_vectorized,
        rule=_rule_warp_tiled,
    ),
    Kernel(
        name="async_copy",
        rung=10,
        idea="cp.async copies tiles to shared memory several stages ahead without passing through "
        "registers, which leaves room for 16×8 results a thread.",
        default=TileConfig(BM=128, BN=256, BK=8, WM=64, WN=64, TM=16, TN=8, stages=3),
        space={
            "BM": (32, 64, 128, 256),
            "BN": (32, 64, 128, 256),
            "BK": (8, 16),
            "WM": (16, 32, 64),
            "WN": (16, 32, 64, 128),
            "TM": (4, 8, 16),
            "TN": (4, 8),
            "stages": (2, 3, 4),
        },
        launch=_launch_async_copy,
        rule=_rule_async_copy,
    ),
)


def find_kernel(name: str) -> Kernel:
    """The rung of that name; case and dashes do not matter.

    Raises:
        UsageError: no such kernel; the text lists the nearest names.
    """
    wanted = name.strip().lower().replace("-", "_")
    by_name = {kernel.name: kernel for kernel in LADDER}
    kernel = by_name.get(wanted)
    if kernel is None:
        near = difflib.get_close_matches(wanted, by_name, n=3) or list(by_name)
        raise UsageError(f"unknown kernel '{name}': did you mean {', '.join(near)}?")
    return kernel
