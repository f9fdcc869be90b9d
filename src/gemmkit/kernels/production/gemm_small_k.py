"""How `gemm_small_k` is launched: products of a short k, whose time is that of writing C."""

from __future__ import annotations

from gemmkit.dtypes import FLOAT_BYTES, ITEM_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import loads, rules
from gemmkit.kernels.cut import whole_tiles
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.limits import SHORT_K
from gemmkit.kernels.mainloops.short_sides import outer_products
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production import typed
from gemmkit.kernels.production.arguments import (
    CUDA_LAYOUTS,
    SIGNATURE,
    access,
    launch_shape,
    named,
)
from gemmkit.kernels.production.schedule import schedule_argument
from gemmkit.kernels.work import WORD_BYTES, Work
from gemmkit.problem import GemmProblem

# 32-bit registers of a lane for its columns of B, and for them with its accumulators.
B_REGISTERS, HELD_REGISTERS = 64, 96

# Elements of A's type of accumulators in the widest access to shared memory.
WIDEST = 16

# Threads that an SM shall hold at least, which leaves each of them 128 registers.
RESIDENT_THREADS = 512


def thread_count(config: TileConfig) -> int:
    """Threads of a block."""
    return WARP_SIZE * (config["BM"] // config["WM"]) * (config["BN"] // config["WN"])


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y, products on z."""
    threads, columns = thread_count(config), config["WN"] // WARP_SIZE
    fields = config.as_dict() | {
        "TN": columns,
        "threads": threads,
        "min_blocks": max(RESIDENT_THREADS // threads, 1),
    }
    # As many neighbors as a lane stores at once, or one.
    width = min(columns, WIDEST // problem.out_item_bytes)
    return launch_shape(
        (
            CUDA_TYPES[problem.dtype],
            named("Tile", fields),
            access(1, 1, typed.access_widths(problem, width)[2]),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem),
        ),
        tile_grid(problem, config["BM"], config["BN"]),
        threads,
        0,
    )


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, in one step."""
    found = whole_tiles(problem, config, config["BM"], config["BN"])
    return outer_products(found, problem, config, thread_count(config))


def words(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> loads.Words:
    """A once for each column of tiles, B for each row of warp tiles; of A in shared memory each
    lane reads the rows that its warp computes, TM at a time."""
    BM, BN, WM = config["BM"], config["BN"], config["WM"]
    elements = rows = 0
    for each in loads.products(problem):
        down, across = ceil_div(each.m, BM), ceil_div(each.n, BN)
        elements += each.number * each.k * (each.m * across + each.n * down * (BM // WM))
        whole, rest = divmod(each.m, WM)
        computed = whole * WM + ceil_div(rest, config["TM"]) * config["TM"]
        rows += each.number * computed * across * (BN // config["WN"])
    words = ITEM_BYTES[problem.sum_dtype] // WORD_BYTES
    return loads.Words(
        elements * problem.item_bytes / WORD_BYTES, words * rows * config["BK"] * WARP_SIZE
    )


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """Products of a short k."""
    if problem.k > SHORT_K:
        return f"it takes products of k up to {SHORT_K}, not {problem.k}"
    return typed.condition(problem, gpu)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Whole warps side by side, each with 32 lanes across its tile."""
    return rules.first_reason(
        lambda: rules.positive(config),
        lambda: rules.divides(config, WARP_SIZE, "WN"),
        lambda: rules.divides(config, WIDEST // FLOAT_BYTES, "BK"),
        lambda: rules.divides(config, "TM", "WM"),
        lambda: rules.divides(config, "WM", "BM"),
        lambda: rules.divides(config, "WN", "BN"),
        lambda: (
            None
            if thread_count(config) <= gpu.capability.max_threads_per_block
            else f"{thread_count(config)} threads per block are more than a GPU allows"
        ),
        lambda: _registers(config, 1),
        lambda: rules.static_shared(FLOAT_BYTES * config["BM"] * config["BK"]),
    )


def pairing(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> str | None:
    """A step as long as k, and room for numbers of the accumulator's type."""
    if problem.k > config["BK"]:
        return f"BK = {config['BK']} is less than k = {problem.k}, which it takes in one step"
    item_bytes = ITEM_BYTES[problem.sum_dtype]
    return rules.first_reason(
        lambda: _registers(config, item_bytes // FLOAT_BYTES),
        lambda: rules.static_shared(item_bytes * config["BM"] * config["BK"]),
    )


def _registers(config: TileConfig, words: int) -> str | None:
    """A lane has registers for its columns of B and its accumulators, of so many words each."""
    columns = config["WN"] // WARP_SIZE
    of_b, sums = words * config["BK"] * columns, words * config["TM"] * columns
    if of_b > B_REGISTERS or of_b + sums > HELD_REGISTERS:
        return (
            f"BK × WN/32 numbers of B and TM × WN/32 sums take {of_b} + {sums} registers of each "
            f"lane: it has {B_REGISTERS} for B, {HELD_REGISTERS} in all"
        )
    return None


KERNEL = Kernel(
    name="gemm_small_k",
    rung=None,
    idea="With a short k the time is that of writing C: a lane keeps its columns of B in "
    "registers, and each store of a warp covers 32 neighbors of a row.",
    default=TileConfig(BM=64, BN=128, BK=32, WM=16, WN=64, TM=4),
    space={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256, 512),
        "BK": (4, 8, 12, 16, 20, 24, 28, 32),
        "WM": (8, 16, 32, 64),
        "WN": (32, 64, 128),
        "TM": (1, 2, 4, 8),
    },
    launch=launch,
    work=work,
    loads=words,
    rule=rule,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    condition=condition,
    pairing=pairing,
)
