"""Rung 12's side of the host: which problems are skinny, which configurations fit, the launch."""

from __future__ import annotations

from collections.abc import Iterator

from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.fitting import SKINNY
from gemmkit.kernels.grids import batch_grid, batched
from gemmkit.kernels.kernel import LaunchShape, TileConfig, ceil_div
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# A thread's piece of the streamed matrix is 4 x 4 floats, so a warp reads 512 a step.
PIECE = 16
WARP_PIECE = WARP_SIZE * PIECE

# Threads that may have 128 registers each.
MAX_THREADS = 512

# Rows of the small side up to which pieces on their way stay in registers.
IN_REGISTERS = 8

# Registers besides those for sums, lines and pieces: addresses mostly, by floats per access.
OTHER_REGISTERS = {4: 40, 1: 72}

# What a kernel's own variables take of the shared memory.
STATIC_SHARED_BYTES = 16
PAD = 4


def is_tall(problem: GemmProblem) -> bool:
    """Whether B's columns are the small side, so that A streams."""
    return problem.n <= SKINNY


def padded_side(problem: GemmProblem) -> int:
    """The small side, rounded up to a power of two."""
    return 1 << (max(problem.n if is_tall(problem) else problem.m, 1) - 1).bit_length()


def accepts(problem: GemmProblem, _: GpuSpec) -> str | None:
    """The reason why a problem is not skinny, or None."""
    if min(problem.m, problem.n) <= SKINNY:
        return None
    return (
        f"it takes products of at most {SKINNY} rows or columns; 'split_k' and 'async_copy' take "
        "any"
    )


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The reason why a configuration is refused on a board, or None."""
    return next(_reasons(config, gpu), None)


def _reasons(config: TileConfig, gpu: GpuSpec) -> Iterator[str]:
    if gpu.capability.major < 8:
        yield f"cp.async needs compute capability 8.0; {gpu.name} has {gpu.capability}"
    for key, value in config.as_dict().items():
        if value < 1:
            yield f"{key} = {value}: values must be 1 or more"
    for key in ("BN", "BK", "WN"):
        if config[key] & (config[key] - 1):
            yield f"{key} = {config[key]} is not a power of two"
    if not PIECE <= config["WN"] <= WARP_PIECE // 4:
        yield f"WN = {config['WN']}: a warp reads {PIECE} to {WARP_PIECE // 4} neighbours of a row"
    for along, across in (("BN", "BK"), ("BK", "BN")):
        needed = WARP_PIECE // min(config["WN"], config[along])
        if config[across] < needed:
            yield f"{across} = {config[across]} is less than the {needed} lines that a warp reads"
    if threads(config) > MAX_THREADS:
        yield f"{threads(config)} threads a block are more than {MAX_THREADS}, of 128 registers"
    stages = 2 * stage_bytes(config, SKINNY, staged=True)
    sums = max(sum_bytes(config, SKINNY, tall=tall) for tall in (False, True))
    needed, limit = max(stages, sums) + STATIC_SHARED_BYTES, gpu.capability.max_shared_per_block
    if needed > limit:
        what = "its sums" if sums > stages else "two stages"
        yield f"{what} take {needed} bytes of shared memory; {gpu.name} allows {limit}"


def threads(config: TileConfig) -> int:
    """Threads of a block."""
    return config["BN"] * config["BK"] // PIECE


def sums_per_thread(problem: GemmProblem) -> int:
    """Of four results in each row of the small side, as a piece of 4 x 4 gives."""
    return 4 * padded_side(problem)


def stage_bytes(config: TileConfig, side: int, *, staged: bool) -> int:
    """Shared bytes of a stage: pieces that registers do not hold, and lines of the small matrix."""
    pieces = PIECE * threads(config) if side > IN_REGISTERS else 0
    lines = side * (config["BK"] + PAD) if staged else 0
    return FLOAT_BYTES * (pieces + lines)


def neighbours(config: TileConfig, *, tall: bool) -> int:
    """Floats of a row that a warp reads together; a tile may be narrower than `WN`."""
    return min(config["WN"], config["BK" if tall else "BN"])


def sum_bytes(config: TileConfig, side: int, *, tall: bool) -> int:
    """Shared bytes of the sums that the warps along k leave for each other."""
    read = neighbours(config, tall=tall)
    warps = config["BK"] // (read if tall else WARP_PIECE // read)
    return FLOAT_BYTES * warps * side * config["BN"]


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """At most `split_k` parts of k, and no more than give every SM a block.

    There are fewer stages than asked for where registers or shared memory do not hold them.
    """
    tall, side = is_tall(problem), padded_side(problem)
    BN, BK = config["BN"], config["BK"]
    long = problem.m if tall else problem.n

    stride_a, stride_b, _ = problem.strides
    by_a, by_b = problem.lda | stride_a, problem.ldb | stride_b
    width = 4 if (problem.k | by_a if tall else problem.n | by_b) % 4 == 0 else 1
    # A single column without gaps is a line along k already.
    staged = side > IN_REGISTERS or (tall and (problem.n > 1 or problem.ldb > 1))
    if staged:
        small_width = width if tall else 4
    elif tall:
        small_width = width if stride_b % 4 == 0 else 1
    else:
        small_width = 4 if (problem.k | by_a) % 4 == 0 else 1

    stage = stage_bytes(config, side, staged=staged)
    stages = min(config["stages"], _most_stages(config, gpu, side, stage, width))

    tiles = ceil_div(long, BN) if min(problem.m, problem.n) else 0
    steps = ceil_div(problem.k, BK)
    all_tiles = tiles * problem.batch
    parts = max(1, min(config["split_k"], steps, gpu.sm_count // max(all_tiles, 1)))
    left = all_tiles if parts > 1 else 0
    return LaunchShape(
        template=(
            *(side, str(tall).lower(), str(staged).lower()),
            *(BN, BK, neighbours(config, tall=tall), stages, width, small_width),
            batched(problem),
        ),
        grid=batch_grid(tiles, parts, problem.batch),
        block=(threads(config), 1, 1),
        shared_bytes=max((stages + 1) * stage, sum_bytes(config, side, tall=tall)),
        workspace_bytes=FLOAT_BYTES * left * parts * side * BN,
        arrivals=left,
    )


def _most_stages(config: TileConfig, gpu: GpuSpec, side: int, stage: int, width: int) -> int:
    """Pieces of a thread that can be on their way, where a stage takes so many shared bytes."""
    most = config["stages"]
    if side <= IN_REGISTERS:
        registers = gpu.capability.registers_per_sm // threads(config)
        # Of each small row four sums and four floats of a line, and a piece that is at work.
        pieces = (registers - OTHER_REGISTERS[width] - 8 * side) // PIECE
        most = max(1, pieces - 1)
    if stage:
        room = gpu.capability.max_shared_per_block - STATIC_SHARED_BYTES
        most = min(most, room // stage - 1)
    return most
