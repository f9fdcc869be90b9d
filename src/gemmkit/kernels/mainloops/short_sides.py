"""Products with a short side: few rows or columns of C, or a short k."""

from __future__ import annotations

import math
from functools import lru_cache

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import FP32, WARP_SIZE, MathPipe
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.work import (
    BOUNDED_REGISTERS,
    MOST_REGISTERS,
    OTHER_REGISTERS,
    STAGED_REGISTERS,
    STREAMING_REGISTERS,
    VECTOR_BYTES,
    VECTOR_WAVEFRONTS,
    WORD_BYTES,
    Copies,
    Demands,
    Work,
)
from gemmkit.problem import GemmProblem

# L1 looks up four lines at once, so that a load whose lanes read lines of their own takes so many
# wavefronts, and one more for each lane that shares a bank.
SPREAD_WAVEFRONTS, BANKS = 8, 32

# Lines of the streamed matrix in a thread's piece of 4 x 4 floats, each with a result in every row
# of the thin side.
PIECE_LINES = 4

# Steps of k that a block makes at once where mma.sync multiplies what streams, and lines of the
# small matrix of such a product. Latencies of L2 that one of DRAM takes.
MMA_STEP, MMA_LINES, DRAM_COVERS = 128, 8, 2.0

# Bytes of a line of L2, and the share of the bandwidth at which parts of lines arrive: an H100 read
# 64 bytes of each at 2.2 to 2.5 TB/s, and whole ones at 3.0.
LINE_BYTES, PARTIAL_LINES = 128, 0.78


def streamed(
    found: Cut, config: TileConfig, threads: int, shared_bytes: int, thin: int, *, k_major: bool
) -> Work:
    """One large matrix read once, for the few rows or columns of the other.

    Args:
        found: how CTAs share it.
        config: BN lines along one side and BK along the other are a CTA's step.
        threads: of a CTA.
        shared_bytes: of a CTA.
        thin: the shorter side of C.
        k_major: whether the large matrix is contiguous along k.
    """
    return Work.of(found, threads, shared_bytes, _streamed(config, threads, k_major), thin)


@lru_cache(maxsize=1024)
def _streamed(config: TileConfig, threads: int, k_major: bool) -> Demands:
    BN, BK = config["BN"], config["BK"]
    contiguous = WORD_BYTES * (BK if k_major else BN)
    multiply_adds = BN * BK / threads
    vector = VECTOR_BYTES / WORD_BYTES
    return Demands(
        math=FP32,
        multiply_adds=multiply_adds,
        per_instruction=1.0,
        issue=0.0,
        wavefronts=ceil_div(threads, WARP_SIZE) * multiply_adds * 2 / vector * VECTOR_WAVEFRONTS,
        l2_bytes=4.0 * BK * (1 + BN),
        copies=Copies(elements=BK / threads, vectors=BN * BK / threads / vector),
        waits=0.0,
        covers=0.0,
        streams=1.0 if contiguous >= LINE_BYTES else PARTIAL_LINES,
        barriers=1,
        results=PIECE_LINES,
        registers=1 + 2 * 2,
        other_registers=STREAMING_REGISTERS,
        most_registers=BOUNDED_REGISTERS,
        places=0.0,
    )


def streamed_to_mma(
    found: Cut,
    problem: GemmProblem,
    config: TileConfig,
    threads: int,
    shared_bytes: int,
    *,
    k_major: bool,
) -> Work:
    """The same of 16-bit types, multiplied by mma.sync.

    Args:
        found: how CTAs share it.
        problem: names the type; of its shorter side, `MMA_LINES` are multiplied at once.
        config: BN lines and `MMA_STEP` of k are a CTA's step, `stages` of them on their way.
        threads: of a CTA.
        shared_bytes: of a CTA.
        k_major: whether the large matrix is contiguous along k; else each warp has sums of all
            columns.
    """
    lines = MMA_LINES * ceil_div(min(problem.m, problem.n), MMA_LINES)
    sums = config["BN"] * lines / (threads if k_major else WARP_SIZE)
    demands = _streamed_to_mma(config, problem.dtype, threads, lines, sums)
    return Work.of(found, threads, shared_bytes, demands)


@lru_cache(maxsize=1024)
def _streamed_to_mma(
    config: TileConfig, dtype: str, threads: int, lines: int, sums: float
) -> Demands:
    BN, warps = config["BN"], threads // WARP_SIZE
    elements = BN * MMA_STEP
    item_bytes = ITEM_BYTES[dtype]  # type: ignore[index]
    vectors = elements * item_bytes / VECTOR_BYTES / threads
    # For each vector, words of the small matrix, and elements that are put in pairs.
    words = vectors * lines / MMA_LINES * VECTOR_BYTES / WORD_BYTES
    return Demands(
        math=MathPipe(dtype, tensor=True),  # type: ignore[arg-type]
        multiply_adds=lines * elements / threads,
        per_instruction=16 * 8 * 16 / WARP_SIZE,
        issue=vectors + 2 * words,
        wavefronts=warps * (vectors * VECTOR_BYTES / WORD_BYTES + words),
        l2_bytes=float(item_bytes * elements),
        copies=Copies(vectors=vectors),
        waits=0.0,
        covers=DRAM_COVERS / config["stages"],
        streams=0.0,
        barriers=1,
        results=sums,
        registers=int(sums + vectors * VECTOR_BYTES / WORD_BYTES),
        other_registers=STAGED_REGISTERS,
        most_registers=BOUNDED_REGISTERS if BN <= MMA_STEP else MOST_REGISTERS,
        places=0.0,
    )


def outer_products(found: Cut, problem: GemmProblem, config: TileConfig, threads: int) -> Work:
    """All of a short k in one step, with the columns of B in registers.

    Args:
        found: how CTAs share the problem.
        problem: names the types, and how B lies in memory.
        config: of BK steps of k, and WN columns per warp.
        threads: of a CTA.
    """
    words = ITEM_BYTES[problem.sum_dtype] // WORD_BYTES
    shared_bytes = words * WORD_BYTES * config["BM"] * config["BK"]
    spread = 0
    if problem.transb:
        # Neighboring lanes read columns that lie a leading dimension apart.
        apart = problem.ldb * problem.item_bytes // WORD_BYTES
        spread = SPREAD_WAVEFRONTS + math.gcd(apart, BANKS)
    demands = _outer_products(config, threads, words, problem.item_bytes, spread)
    return Work.of(found, threads, shared_bytes, demands)


@lru_cache(maxsize=4096)
def _outer_products(
    config: TileConfig, threads: int, words: int, item_bytes: int, spread: int
) -> Demands:
    BM, BN, BK = config["BM"], config["BN"], config["BK"]
    columns = config["WN"] // WARP_SIZE
    multiply_adds = BM * BN * BK / threads
    # All lanes read the same vector of A, which is one wavefront.
    reads = multiply_adds / columns * words * WORD_BYTES / VECTOR_BYTES
    return Demands(
        math=MathPipe("float64") if words == 2 else FP32,
        multiply_adds=multiply_adds,
        per_instruction=1.0,
        issue=reads,
        wavefronts=ceil_div(threads, WARP_SIZE) * (reads + spread * BK * columns),
        l2_bytes=float(item_bytes * BK * (BM + BN)),
        copies=Copies(plain=BM * BK / threads + BK * columns),
        waits=1.0,
        covers=0.0,
        streams=0.0,
        barriers=1,
        results=config["TM"] * columns,
        registers=words * (BK + config["TM"]) * columns,
        other_registers=OTHER_REGISTERS,
        most_registers=BOUNDED_REGISTERS,
        places=0.0,
        coalesced_stores=True,
    )
