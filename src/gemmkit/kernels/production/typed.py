"""How `typed` is launched, and which configurations it refuses: matrices of other types than fp32.

What lies in shared memory and registers is of the type of the sums, fp32 or fp64, whatever the
matrices hold.
"""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES, RESULT_TYPES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads, rules
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import converted
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production import cp_async_fma
from gemmkit.kernels.production.arguments import (
    CUDA_LAYOUTS,
    SCALED_SIGNATURE,
    SIGNATURE,
    access,
    launch_shape,
    named,
    scales_argument,
)
from gemmkit.kernels.production.schedule import schedule_argument
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Bytes of the widest access to memory, and of a row of a thread map along k: a sector. Elements of
# the widest: the shortest step along k is one.
WIDEST, SECTOR, MOST_AT_ONCE = 16, 32, 8


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y, products on z; types and access widths as arguments."""
    scales = (scales_argument(problem.scales),) if problem.scales else ()
    shape = launch_shape(
        (*template(problem, config), schedule_argument(problem), *scales),
        tile_grid(problem, config["BM"], config["BN"]),
        rules.thread_count(config),
        shared_bytes(problem, config),
    )
    if not problem.scales:
        return shape
    return replace(shape, entry="typed_scaled", signature=SCALED_SIGNATURE)


def template(problem: GemmProblem, config: TileConfig) -> tuple[str, ...]:
    """The mainloop's template arguments: type, tile, access widths and layout."""
    threads, results = rules.thread_count(config), _sums(problem, config)
    tile = {
        **config.as_dict(),
        "pad": rules.PAD,
        "threads": threads,
        "min_blocks": min_blocks(problem, threads, results),
    }
    return (
        CUDA_TYPES[problem.dtype],
        named("Tile", tile),
        access(*access_widths(problem, WIDEST // ITEM_BYTES[problem.sum_dtype])),
        CUDA_LAYOUTS[problem.layout],
    )


def _sums(problem: GemmProblem, config: TileConfig) -> int:
    """Sums of a thread: two for each result where chunks of k have scales of their own."""
    return config["TM"] * config["TN"] * (2 if problem.scales.of_chunks else 1)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec, found: Cut | None = None) -> Work:
    """A tile per block; with `found`, blocks that share the problem as that says."""
    threads = rules.thread_count(config)
    return converted(threads, shared_bytes(problem, config), problem, config, found)


def min_blocks(problem: GemmProblem, threads: int, results: int) -> int:
    """Blocks that the compiler is to leave registers for on an SM.

    fp64 accumulators take two registers each, and so do the numbers that are multiplied.
    """
    if problem.sum_dtype != "float64" or results < 32:
        return cp_async_fma.min_blocks(threads, results)
    if results < 64 and threads <= 384:
        return 384 // threads
    return 256 // threads if threads <= 256 else 1


def access_widths(problem: GemmProblem, width_of_c: int) -> tuple[int, int, int]:
    """Elements of A, B and C that a thread reads or writes at once.

    As many as 16 bytes hold, at most 8, or fewer, so that rows and matrices of all products begin
    and end at multiples of them. Of C it is either `width_of_c`, the neighboring results that a
    thread has, or one.
    """
    p = problem
    a, b, c = p.extents
    aligned_c = c % width_of_c == 0
    aligned_c &= p.alignment % min(WIDEST, width_of_c * p.out_item_bytes) == 0
    return (
        _widest(a, p.item_bytes, p.alignment),
        _widest(b, p.item_bytes, p.alignment),
        width_of_c if aligned_c else 1,
    )


def _widest(extents: int, item_bytes: int, alignment: int) -> int:
    """The largest power of two of elements, up to 8, that divides all extents (joined by or) and
    16 bytes."""
    width = min(WIDEST // item_bytes, MOST_AT_ONCE)
    while width > 1 and (extents % width or alignment % (width * item_bytes)):
        width //= 2
    return width


def shared_bytes(problem: GemmProblem, config: TileConfig) -> int:
    """Shared bytes of its two stages, all lines padded."""
    numbers = config["BM"] + config["BN"] + 2 * rules.PAD
    return 2 * ITEM_BYTES[problem.sum_dtype] * config["BK"] * numbers


def condition(problem: GemmProblem, _: GpuSpec) -> str | None:
    """Elements lie at multiples of their size."""
    return rules.whole_elements(problem)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles, whole quads of results."""
    return rules.first_reason(
        lambda: rules.quads(config, gpu),
        lambda: rules.warps(config),
    )


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What depends on the types: room for sums and tiles, and even shares of what is copied."""
    registers = _sums(problem, config) * ITEM_BYTES[problem.sum_dtype] // 4
    if registers > rules.RESULT_REGISTERS:
        return (
            f"TM*TN {problem.sum_dtype} sums take {registers} registers: a thread has "
            f"{rules.RESULT_REGISTERS} for them"
        )
    return rules.first_reason(
        lambda: even_shares(problem, config, rules.thread_count(config)),
        lambda: rules.dynamic_shared(shared_bytes(problem, config), gpu, "tiles"),
    )


def even_shares(
    problem: GemmProblem, config: TileConfig, threads: int, *, in_pairs: bool = False
) -> str | None:
    """A thread must have whole steps of each row of a tile, as `TypedFetch` needs.

    With `in_pairs`, two rows count as one where neighbors along k are none in memory.
    """
    BK = config["BK"]
    widths = access_widths(problem, 1)
    for operand, side, width, along_k in (
        ("A", "BM", widths[0], not problem.transa),
        ("B", "BN", widths[1], problem.transb),
    ):
        across_k = BK // 2 if in_pairs else BK
        rows, columns = (config[side], BK) if along_k else (across_k, config[side])
        vectors = columns // width
        map_width = SECTOR // problem.item_bytes // width if along_k else vectors
        least = threads // rows if map_width * rows < threads else map_width
        across = min(least, vectors, threads)
        if columns % width or not across or vectors % across or threads % across:
            return (
                f"{threads} threads cannot share the {operand} tile ({rows} x {columns} elements, "
                f"{width} at a time)"
            )
    return None


KERNEL = Kernel(
    name="typed",
    rung=None,
    idea="Elements stay in their own type until they are stored in shared memory as what the "
    "sums are made of, so that one kernel serves all types, layouts and alignments.",
    default=TileConfig(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8),
    space={
        "BM": (32, 64, 128),
        "BN": (32, 64, 128),
        "BK": (8, 16),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "TM": (4, 8),
        "TN": (4, 8),
    },
    launch=launch,
    work=work,
    loads=loads.tiles,
    rule=rule,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    dtypes=(*RESULT_TYPES, *OPERAND_TYPES),
    takes_scales=True,
    result_dtypes=(*RESULT_TYPES, *OPERAND_TYPES),
    condition=condition,
    pairing=pairing,
)
