"""Rules that kernels share: which configurations a kernel refuses on a board, and the reason.

Each rule takes a configuration and a board and returns the reason, or None where it is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

STATIC_SHARED_LIMIT = 48 * 1024
# What a kernel's own variables take before its dynamic shared memory, which begins at a line of 128
# bytes: blocks that share a tile keep there who came last.
STATIC_SHARED_BYTES = 128
MAX_RESULTS_PER_THREAD = 256
MAX_RESULTS_IN_128 = 64
# 32-bit registers for the results of a thread that has fragments of other types; the rest of its
# 255 is for what it multiplies.
RESULT_REGISTERS = 128

# Passed as template arguments: floats of padding in each row of a tile that is transposed on its
# way, and the width along k of the thread map of such copies.
PAD = 4
MAP_K = 8


def thread_count(config: TileConfig) -> int:
    """Threads of a block in which each thread has TM×TN results (1 where a key is not used)."""
    per_slice = config["BM"] * config["BN"] // ((config.TM or 1) * (config.TN or 1))
    return per_slice * (config.slice_k or 1)


def stage_bytes(config: TileConfig, pad: int = 0) -> int:
    """Shared bytes of one pair of tiles."""
    return FLOAT_BYTES * config["BK"] * (config["BM"] + pad + config["BN"])


def resident_blocks(config: TileConfig, gpu: GpuSpec, shared_bytes: int) -> int:
    """Blocks with warp tiles that an SM holds at once, as their launch bounds see to it.

    Up to 64 results per thread these allow it 128 registers, beyond that all there are; see
    `BLOCKS_PER_SM` in fragment.cuh.
    """
    registers = 128 if config["TM"] * config["TN"] <= MAX_RESULTS_IN_128 else 256
    return blocks_that_fit(thread_count(config), registers, gpu, shared_bytes)


def blocks_that_fit(threads: int, registers: int, gpu: GpuSpec, shared_bytes: int) -> int:
    """Blocks of so many threads, each with so many registers, that an SM holds; at least one."""
    limits = gpu.capability
    by_shared = limits.shared_per_sm // (shared_bytes + limits.shared_reserved_per_block)
    by_threads = limits.max_threads_per_sm // threads
    return max(1, min(limits.registers_per_sm // (registers * threads), by_shared, by_threads))


def first_reason(*rules: Callable[[], str | None]) -> str | None:
    """The first reason that a rule gives; each may rely on those before it."""
    # A generator would take half as long again, and a search goes through 100,000 configurations.
    for rule in rules:
        reason = rule()
        if reason is not None:
            return reason
    return None


def positive(config: TileConfig) -> str | None:
    """All values are 1 or more."""
    for key, value in config.as_dict().items():
        if value < 1:
            return f"{key} = {value}: values must be 1 or more"
    return None


def divides(config: TileConfig, part: str | int, whole: str) -> str | None:
    """A key's value is a multiple of another's, or of a number."""
    divisor = config[part] if isinstance(part, str) else part
    if config[whole] % divisor == 0:
        return None
    name = f"{part} = {divisor}" if isinstance(part, str) else str(part)
    return f"{whole} = {config[whole]} is not a multiple of {name}"


def power_of_two(config: TileConfig, key: str) -> str | None:
    """A key's value is a power of two."""
    value = config[key]
    return f"{key} = {value} is not a power of two" if value & (value - 1) else None


def threads_fit(config: TileConfig, gpu: GpuSpec) -> str | None:
    """A block has no more threads than the GPU allows."""
    threads, limit = thread_count(config), gpu.capability.max_threads_per_block
    if threads > limit:
        return f"{threads} threads per block are more than the {limit} that a GPU allows"
    return None


def thread_tile(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The TM×TN results of a thread fit its registers and divide the block's tile."""
    results = config["TM"] * config["TN"]
    if results > MAX_RESULTS_PER_THREAD:
        return f"{results} results per thread do not fit its registers: {MAX_RESULTS_PER_THREAD} do"
    return first_reason(
        lambda: divides(config, "TM", "BM"),
        lambda: divides(config, "TN", "BN"),
        lambda: threads_fit(config, gpu),
    )


def quads(config: TileConfig, gpu: GpuSpec) -> str | None:
    """What 128-bit accesses need, besides positive values and a thread tile that fits."""
    return first_reason(
        lambda: positive(config),
        lambda: thread_tile(config, gpu),
        *(partial(divides, config, 4, key) for key in ("BK", "TM", "TN")),
    )


def warps(config: TileConfig) -> str | None:
    """The 32 lanes of a warp cover its tile, and warp tiles the block's."""
    lanes = config["WM"] * config["WN"] // (config["TM"] * config["TN"])
    return first_reason(
        lambda: divides(config, "WM", "BM"),
        lambda: divides(config, "WN", "BN"),
        lambda: divides(config, "TM", "WM"),
        lambda: divides(config, "TN", "WN"),
        lambda: (
            None
            if lanes == WARP_SIZE
            else f"a WM*WN warp tile with TM*TN results per lane needs {lanes} lanes; a warp has 32"
        ),
    )


def static_shared(shared_bytes: int) -> str | None:
    """Static shared memory has room for that much."""
    if shared_bytes > STATIC_SHARED_LIMIT:
        return f"its tiles take {shared_bytes} bytes of shared memory, more than 48 KiB"
    return None


def dynamic_shared(shared_bytes: int, gpu: GpuSpec, what: str = "stages") -> str | None:
    """A block may have that much shared memory on this board besides its kernel's own variables."""
    limit = gpu.capability.max_shared_per_block - STATIC_SHARED_BYTES
    if shared_bytes > limit:
        return f"its {what} take {shared_bytes} bytes of shared memory; {gpu.name} allows {limit}"
    return None


def even_shares(
    config: TileConfig,
    *,
    a_vector: int = 1,
    b_vector: int = 1,
    a_width: int | None = None,
    narrow_b: bool = False,
) -> str | None:
    """Every thread must copy equally many vectors of each tile, as `TileWalk` in tile_io.cuh needs.

    `a_vector` and `b_vector` are the widest accesses (single floats must work too), `a_width` is
    how many columns the thread map of the A tile is wide. With `narrow_b` that of a B tile whose
    width is no power of two is narrower too, and as many vectors wide whatever `b_vector` is.
    """
    return first_reason(
        lambda: shared_evenly(config, "A", "BM", "BK", a_vector, a_width or config["BK"]),
        lambda: shared_evenly(
            config, "B", "BK", "BN", b_vector, None if narrow_b else config["BN"]
        ),
    )


def shared_evenly(
    config: TileConfig, tile: str, rows: str, columns: str, vector: int, width: int | None
) -> str | None:
    """The same of one tile, its rows and columns given by their keys.

    Its thread map is `width` columns wide; by default a whole row, or as many vectors as divide one
    whose width is no power of two.
    """
    threads, divisor = thread_count(config), config[columns] & -config[columns]
    fixed = divisor // vector if width is None and divisor < config[columns] else None
    for floats in (1, vector):
        vectors = config[columns] // floats
        wide = fixed or (width or config[columns]) // floats
        across = max(min(wide, threads), threads // config[rows])
        if threads % across or vectors % across or config[rows] % (threads // across):
            return (
                f"{threads} threads cannot share the {tile} tile evenly "
                f"({rows} x {columns} = {config[rows]} x {config[columns]} floats)"
            )
    return None


def whole_elements(problem: GemmProblem) -> str | None:
    """A problem's elements lie at multiples of their size, of which the larger one goes without
    saying."""
    least = min(problem.item_bytes, problem.out_item_bytes)
    if problem.alignment % least:
        return f"addresses must be multiples of {least} bytes, not {problem.alignment}: copy first"
    return None


def has_cp_async(gpu: GpuSpec) -> str | None:
    """The GPU has cp.async."""
    if gpu.capability.major < 8:
        return f"cp.async needs compute capability 8.0; {gpu.name} has {gpu.capability}"
    return None


def enough_stages(config: TileConfig) -> str | None:
    """One stage computes while at least one is copied."""
    return None if config["stages"] >= 2 else "stages must be 2 or more: one computes"
