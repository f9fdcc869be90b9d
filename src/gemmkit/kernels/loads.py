"""`Words`: what the threads of a launch load, by formula, for any sizes.

A kernel's `loads` is one of the functions here, or is made of them. They count what a thread asks
for: A and B in global memory, tiles and sums in shared memory, and the partial sums of blocks that
share a tile. What the epilogue reads (C, bias, residual) and a table of groups are not among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.work import WORD_BYTES
from gemmkit.problem import GemmProblem


class Words(NamedTuple):
    """32-bit words that all threads load from global and from shared memory; wider elements are
    several words, and narrower ones parts of one."""

    from_global: float
    from_shared: float


# Why no formula gives the loads of stream-K.
EVEN_SHARES = "the size of the board decides which blocks share a tile and read partial sums"

# And of kernels for skinny products.
SHARED_K = "lanes, warps and blocks share k in ways that depend on layout, alignment and board"

# And of chunked accumulation.
CHUNKS = "k is accumulated in chunks, whose sums are kept in shared memory as well"

# A kernel's `loads`: the words, or why no formula gives them for this launch.
LoadFormula = Callable[[GemmProblem, TileConfig, GpuSpec], Words | str]


class Product(NamedTuple):
    """`number` products of one size; `k` is 0 where alpha is, for then A and B are not read."""

    m: int
    n: int
    k: int
    number: int


def products(problem: GemmProblem) -> Iterator[Product]:
    """The products of a problem whose C is not empty, equal ones together."""
    sizes = Counter({(problem.m, problem.n, problem.k): problem.batch})
    if problem.groups is not None:
        sizes = Counter(zip(*problem.groups.table[:3].tolist(), strict=True))
    for (m, n, k), count in sizes.items():
        if m and n:
            yield Product(m, n, k if problem.alpha else 0, count)


def per_result(problem: GemmProblem, _: TileConfig, __: GpuSpec) -> Words:
    """Without tiles a result takes its row of A and its column of B: 2k words."""
    return Words(sum(2.0 * each.m * each.n * each.k * each.number for each in products(problem)), 0)


def tiles(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Words:
    """Tiles in shared memory, whose copies end where the matrix does.

    Each column of tiles loads all of A and each row of tiles all of B, k/BN + k/BM words per result
    where tiles are whole. From shared memory threads load the fragments of whole tiles, TM + TN
    words for TM·TN multiply-adds, in whole steps of BK.
    """
    copied = sum(
        each.number
        * each.k
        * (
            each.m * ceil_div(each.n, config["BN"])  # A
            + each.n * ceil_div(each.m, config["BM"])  # B
        )
        for each in products(problem)
    )
    return Words(copied * problem.item_bytes / WORD_BYTES, fragments(problem, config))


def fragments(problem: GemmProblem, config: TileConfig) -> float:
    """Words that threads of TM×TN results load from the tiles in shared memory."""
    results = tile_steps(problem, config) * config["BK"] * config["BM"] * config["BN"]
    words = ITEM_BYTES[problem.sum_dtype] // WORD_BYTES
    return words * results * (1 / (config.TM or 1) + 1 / (config.TN or 1))


def tile_steps(problem: GemmProblem, config: TileConfig) -> int:
    """Steps of BK along k over all tiles."""
    return sum(
        each.number
        * ceil_div(each.m, config["BM"])
        * ceil_div(each.n, config["BN"])
        * ceil_div(each.k, config["BK"])
        for each in products(problem)
    )


def with_parts(words: Words, config: TileConfig, tile_count: int, parts: int) -> Words:
    """The same where `parts` blocks share the k of each tile, and slices of a block each step.

    The last block of a tile reads the partial sums of all from global memory, after each thread has
    read a byte that says whether its block is the last. Each block reads those of its slices from
    shared memory.
    """
    area, slices = config["BM"] * config["BN"], config.slice_k or 1
    again = tile_count * parts * area
    of_slices = again * slices if slices > 1 else 0
    if parts == 1:
        return Words(words.from_global, words.from_shared + of_slices)
    is_last = tile_count * parts * rules.thread_count(config) / WORD_BYTES
    return Words(words.from_global + again, words.from_shared + of_slices + is_last)


def no_formula(reason: str) -> LoadFormula:
    """For kernels whose loads no formula gives."""
    return lambda *_: reason
