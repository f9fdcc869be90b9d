"""`LADDER`: the only list of rungs; for each its idea, configurations, launch and rule."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.errors import UsageError, unknown_name
from gemmkit.kernels import launches, rules, skinny
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.off_ladder import LIBRARY
from gemmkit.kernels.plan import (
    FULL_SCRATCH_SIGNATURE,
    FULL_SIGNATURE,
    LAYOUTS,
    TileConfig,
)
from gemmkit.kernels.rules import (
    COARSENING_STRIDES,
)
from gemmkit.problem import GemmProblem

# --- rungs ------------------------------------------------------------------------------------

_REGISTER_TILES = {
    "BM": (32, 64, 128),
    "BN": (32, 64, 128),
    "BK": (8, 16),
    "TM": (4, 8),
    "TN": (4, 8),
}

_INNER_LOOPS = {"bursts": (1, 2, 4, 8, 16), "order": tuple(range(1, rules.ORDERS + 1))}

LADDER: tuple[Kernel, ...] = (
    Kernel(
        name="naive_uncoalesced",
        rung=1,
        idea="One thread computes one result, but neighbouring threads take neighbouring rows, so "
        "each warp touches 32 sectors of A to fetch 32 floats.",
        default=TileConfig(BM=32, BN=32),
        space={"BM": (8, 16, 32), "BN": (8, 16, 32)},
        launch=launches.naive_uncoalesced,
        rule=rules.naive,
        fuses=False,
    ),
    Kernel(
        name="naive",
        rung=2,
        idea="Neighbouring threads take neighbouring columns, so a warp reads B and writes C in "
        "whole 128-byte lines and needs a single sector of A.",
        default=TileConfig(BM=32, BN=32),
        space={"BM": (4, 8, 16, 32), "BN": (16, 32, 64)},
        launch=launches.thread_per_result,
        rule=rules.naive,
    ),
    Kernel(
        name="shared_tiling",
        rung=3,
        idea="A block copies tiles of A and B to shared memory once and reads them there many "
        "times, which divides global traffic by the tile size.",
        default=TileConfig(BM=32, BN=32, BK=32),
        space={"BM": (8, 16, 32), "BN": (8, 16, 32), "BK": (8, 16, 32)},
        launch=launches.thread_per_result,
        rule=rules.shared_tiling,
    ),
    Kernel(
        name="coarsening_1d",
        rung=4,
        idea="A thread computes TM results of a column and uses each float of B for all of them, "
        "which saves shared-memory reads and gives it independent work.",
        default=TileConfig(BM=16, BN=16, BK=16, TM=8),
        space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (8, 16, 32), "TM": COARSENING_STRIDES},
        launch=launches.coarsened,
        rule=rules.coarsening_1d,
        aliases={"stride": "TM"},
    ),
    Kernel(
        name="coarsening_2d",
        rung=5,
        idea="A thread computes TM×TN results as outer products in registers: its reads grow as "
        "TM+TN while its arithmetic grows as TM·TN.",
        default=TileConfig(BM=64, BN=64, BK=8, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=launches.coarsened,
        rule=rules.coarsening_2d,
    ),
    Kernel(
        name="vectorized",
        rung=6,
        idea="Global and shared memory are read four floats at a time, with A transposed on the "
        "way in, so a quarter of the load instructions move the same data.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=launches.vectorized,
        rule=rules.vectorized,
    ),
    Kernel(
        name="conflict_free",
        rung=7,
        idea="Padding, and columns dealt to threads in quads, keep the accesses of a warp in "
        "different banks, so shared memory serves each in as few cycles as its bytes need.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=launches.vectorized,
        rule=rules.conflict_free,
    ),
    Kernel(
        name="double_buffered",
        rung=8,
        idea="The next tiles are fetched while the current ones are multiplied, so the latency of "
        "global memory hides behind arithmetic and one barrier a step suffices.",
        default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
        space=_REGISTER_TILES,
        launch=launches.vectorized,
        rule=rules.double_buffered,
    ),
    Kernel(
        name="warp_tiled",
        rung=9,
        idea="Each warp owns a compact piece of the block's tile, with its lanes placed so that "
        "neighbours read the same floats, which shared memory serves in fewer wavefronts.",
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
        launch=launches.vectorized,
        rule=rules.warp_tiled,
    ),
    Kernel(
        name="async_copy",
        rung=10,
        idea="cp.async copies tiles to shared memory several stages ahead without passing through "
        "registers, which leaves room for 16×8 results per thread.",
        default=TileConfig(
            BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, bursts=4, order=1
        ),
        space={
            "BM": (32, 64, 128, 192, 256),
            "BN": (32, 64, 128, 192, 256),
            "BK": (8, 16, 32),
            "WM": (16, 32, 48, 64, 96, 128),
            "WN": (16, 32, 64, 128),
            "TM": (4, 8, 12, 16),
            "TN": (4, 8, 16),
            "stages": (2, 3, 4),
        },
        refinements=_INNER_LOOPS,
        launch=launches.async_copy,
        signature=FULL_SIGNATURE,
        rule=rules.async_copy,
        layouts=LAYOUTS,
        pairing=rules.pairing,
    ),
    Kernel(
        name="split_k",
        rung=11,
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
            bursts=4,
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
        refinements=_INNER_LOOPS,
        launch=launches.split_k,
        rule=rules.split_k,
        layouts=LAYOUTS,
        pairing=rules.pairing,
        signature=FULL_SCRATCH_SIGNATURE,
    ),
    Kernel(
        name="warp_reduce",
        rung=12,
        idea="A product of at most 16 rows or columns reads its large matrix once, copies always "
        "under way, with k shared by lanes, warps and blocks whose sums meet by shuffles.",
        default=TileConfig(BN=32, BK=256, WN=32, stages=2, split_k=128),
        space={
            "BN": (16, 32, 64, 128),
            "BK": (32, 64, 128, 256, 512),
            "WN": (16, 32, 64, 128),
            "stages": (1, 2, 3),
            "split_k": (1, 2, 4, 8, 16, 32, 128),
        },
        launch=skinny.launch,
        rule=skinny.rule,
        signature=FULL_SCRATCH_SIGNATURE,
        condition=skinny.accepts,
    ),
    Kernel(
        name="stream_k",
        rung=13,
        idea="There are as many blocks as the board holds and each gets an even share of all "
        "steps of k, tiles being cut where a share ends, so that no SM waits for a last wave.",
        default=TileConfig(
            BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, bursts=4, order=1
        ),
        space={
            "BM": (64, 128, 192, 256),
            "BN": (64, 128, 192, 256),
            "BK": (8, 16, 32),
            "WM": (16, 32, 48, 64),
            "WN": (16, 32, 64, 96, 128),
            "TM": (8, 12, 16),
            "TN": (4, 8, 12, 16),
            "stages": (2, 3, 4),
        },
        refinements=_INNER_LOOPS,
        launch=launches.stream_k,
        rule=rules.async_copy,
        layouts=LAYOUTS,
        pairing=rules.pairing,
        signature=FULL_SCRATCH_SIGNATURE,
    ),
)


def kernels_for(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    """What is run where nobody names kernels: the rungs, and for types that no rung takes the
    kernels of the library."""
    types = {each for problem in problems for each in (problem.dtype, problem.result_dtype)}
    known = {each for kernel in LADDER for each in kernel.dtypes}
    return LADDER if types <= known else LIBRARY


def find_kernel(name: str) -> Kernel:
    """The rung, or kernel of the library, of that name; case and dashes do not matter.

    Raises:
        UsageError: no such kernel; the text lists the nearest names.
    """
    wanted = name.strip().lower().replace("-", "_")
    by_name = {kernel.name: kernel for kernel in (*LADDER, *LIBRARY)}
    kernel = by_name.get(wanted)
    if kernel is None:
        raise UsageError(unknown_name("kernel", name, by_name))
    return kernel
