"""Products of every type: elements converted on their way to shared memory, and mma.sync."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import WARP_SIZE, MathPipe
from gemmkit.kernels import cut, rules
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.mainloops.fp32 import outer_product_step
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.work import (
    BOUNDED_REGISTERS,
    MOST_REGISTERS,
    STAGED_REGISTERS,
    VECTOR_BYTES,
    WORD_BYTES,
    Copies,
    Demands,
    Work,
)
from gemmkit.problem import GemmProblem

# Latencies of L2 that a step lasts at least where its copies pass through registers of kernels for
# every type: the barrier waits for the last of them (800 cycles on an H100).
CONVERTED_COVERS = 3.0


def converted(
    threads: int,
    shared_bytes: int,
    problem: GemmProblem,
    config: TileConfig,
    found: Cut | None = None,
) -> Work:
    """Tiles whose elements become the type of the sums on their way to shared memory, one a CTA
    unless `found` says how else CTAs share the problem."""
    found = found or cut.whole_tiles(problem, config, config["BM"], config["BN"])
    demands = _converted(config, threads, problem.sum_dtype, *_arrival(problem))
    return Work.of(found, threads, shared_bytes, demands)


def tensor(
    threads: int,
    shared_bytes: int,
    problem: GemmProblem,
    config: TileConfig,
    found: Cut | None = None,
    *,
    aligned: bool | None = None,
) -> Work:
    """Tiles that are multiplied by mma.sync, one a CTA unless `found` says how else CTAs share the
    problem. Where the configuration names `stages`, cp.async copies tiles, all of these but one
    ahead. `aligned` says whether rows are where they are read, by default those of the problem."""
    found = found or cut.whole_tiles(problem, config, config["BM"], config["BN"])
    *arrival, own = _arrival(problem)
    rows_aligned = own if aligned is None else aligned
    demands = _tensor(config, threads, problem.dtype, *arrival, rows_aligned)
    return Work.of(found, threads, shared_bytes, demands)


def _arrival(problem: GemmProblem) -> tuple[int, bool, bool, bool]:
    """Bytes of an element, whether A and B lie along k, and whether rows are aligned."""
    aligned = problem.is_aligned(VECTOR_BYTES)
    return problem.item_bytes, not problem.transa, problem.transb, aligned


@lru_cache(maxsize=4096)
def _converted(
    config: TileConfig,
    threads: int,
    sums: str,
    item_bytes: int,
    a_along_k: bool,
    b_along_k: bool,
    aligned: bool,
) -> Demands:
    words = ITEM_BYTES[sums] // WORD_BYTES  # type: ignore[index]
    copies = _through(config, threads, item_bytes, a_along_k, b_along_k, aligned)
    plain = outer_product_step(
        config,
        copies,
        covers=CONVERTED_COVERS,
        barriers=1,
        other_registers=STAGED_REGISTERS,
        bounded=False,
        places=1.0,
    )
    results = (config.TM or 1) * (config.TN or 1)
    return replace(
        plain,
        math=MathPipe("float64" if words == 2 else "float32"),
        wavefronts=words * plain.wavefronts,
        l2_bytes=item_bytes / WORD_BYTES * plain.l2_bytes,
        registers=words * plain.registers,
        most_registers=(
            BOUNDED_REGISTERS if words * results <= rules.MAX_RESULTS_IN_128 else MOST_REGISTERS
        ),
    )


@lru_cache(maxsize=4096)
def _tensor(
    config: TileConfig,
    threads: int,
    dtype: str,
    item_bytes: int,
    a_along_k: bool,
    b_along_k: bool,
    aligned: bool,
) -> Demands:
    BM, BN, BK, WM, WN = (config[key] for key in ("BM", "BN", "BK", "WM", "WN"))
    warps = threads // WARP_SIZE
    double = dtype == "float64"
    # Multiply-adds of an mma over the lanes of its warp: m16n8k16, and m8n8k4 of fp64.
    each = (8 * 8 * 4 if double else 16 * 8 * 16) / WARP_SIZE
    # Fragments of a warp are read from shared memory once for its tile, 128 bytes a wavefront.
    wavefronts = warps * (WM + WN) * BK * item_bytes / 128
    sums = WM * WN // WARP_SIZE * (2 if double else 1)
    fragments = (WM + WN) * (4 if double else 16) * item_bytes // WORD_BYTES // WARP_SIZE
    copies = _through(config, threads, item_bytes, a_along_k, b_along_k, aligned, whole=True)
    covers = CONVERTED_COVERS
    # Single elements of less than four bytes are no copies of cp.async.
    if config.stages is not None and aligned:
        copies, covers = Copies(vectors=copies.through), 1 / (config.stages - 1)
    return Demands(
        math=MathPipe(dtype, tensor=True),  # type: ignore[arg-type]
        multiply_adds=BM * BN * BK / threads,
        per_instruction=each,
        # ldmatrix brings four 8 × 8 matrices at a time, loads of fp64 one.
        issue=wavefronts / warps / (1 if double else 4),
        wavefronts=wavefronts,
        l2_bytes=float(item_bytes * BK * (BM + BN)),
        copies=copies,
        waits=0.0,
        covers=covers,
        streams=0.0,
        barriers=1,
        results=WM * WN // WARP_SIZE,
        registers=sums + 2 * fragments,
        other_registers=STAGED_REGISTERS,
        most_registers=MOST_REGISTERS,
        places=0.0,
    )


def _through(
    config: TileConfig,
    threads: int,
    item_bytes: int,
    a_along_k: bool,
    b_along_k: bool,
    aligned: bool,
    *,
    whole: bool = False,
) -> Copies:
    """Copies through registers: vectors where rows are aligned, stored as such if `whole` or if
    they lie across k, else transposed."""
    of_vector = VECTOR_BYTES // item_bytes
    plain = through = transposed = 0.0
    for side, along_k in (("BM", a_along_k), ("BN", b_along_k)):
        elements = config[side] * config["BK"] / threads
        if not aligned:
            plain += elements
        elif along_k and not whole:
            transposed += elements
        else:
            through += elements / of_vector
    return Copies(plain=plain, through=through, transposed=transposed)
