"""fp32 products: a thread for each result, tiles by way of registers, and cp.async in stages."""

from __future__ import annotations

from functools import lru_cache

from gemmkit.gpu import FP32, WARP_SIZE, GpuSpec
from gemmkit.kernels import cut, rules
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.work import (
    BOUNDED_REGISTERS,
    MOST_REGISTERS,
    OTHER_REGISTERS,
    STAGED_REGISTERS,
    VECTOR_BYTES,
    VECTOR_WAVEFRONTS,
    WORD_BYTES,
    Copies,
    Demands,
    Way,
    Work,
)
from gemmkit.problem import GemmProblem

# Wavefronts in which a warp reads a float of 32 rows of A, and one of B that all lanes share.
UNCOALESCED_WAVEFRONTS = WARP_SIZE + 1
# Loads of a loop without barriers that are under way together.
UNROLLED = 16


def per_result(*, coalesced: bool = True) -> Way:
    """One thread a result, which reads A and B from L1 and L2: no tiles in shared memory."""

    def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
        found = cut.whole_tiles(problem, config, config["BM"], config["BN"])
        return Work.of(found, rules.thread_count(config), 0, _per_result(config, coalesced))

    return work


@lru_cache(maxsize=1024)
def _per_result(config: TileConfig, coalesced: bool) -> Demands:
    threads = rules.thread_count(config)
    warps = ceil_div(threads, WARP_SIZE)
    return Demands(
        math=FP32,
        multiply_adds=1.0,
        per_instruction=1.0,
        issue=2.0,
        wavefronts=warps * float(2 if coalesced else UNCOALESCED_WAVEFRONTS),
        l2_bytes=4.0 * (config["BM"] + config["BN"]),
        copies=Copies(),
        waits=1 / UNROLLED,
        covers=0.0,
        streams=0.0,
        barriers=0,
        results=1,
        registers=1 + 2 * 2,
        other_registers=OTHER_REGISTERS,
        most_registers=MOST_REGISTERS,
        places=0.0,
    )


def through_registers(
    *, vectors: bool = False, bounded: bool = False, overlapped: bool = False
) -> Way:
    """One tile a CTA, fp32, copied to shared memory by way of registers.

    Args:
        vectors: whether copies and reads are of 16 bytes.
        bounded: whether the kernel has launch bounds.
        overlapped: whether the next tile comes during arithmetic, into a second pair of tiles.
    """

    def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
        found = cut.whole_tiles(problem, config, config["BM"], config["BN"])
        shared_bytes = (2 if overlapped else 1) * rules.stage_bytes(config, rules.PAD)
        demands = _through_registers(config, vectors, bounded, overlapped)
        return Work.of(found, rules.thread_count(config), shared_bytes, demands)

    return work


@lru_cache(maxsize=4096)
def _through_registers(
    config: TileConfig, vectors: bool, bounded: bool, overlapped: bool
) -> Demands:
    threads, of_vector = rules.thread_count(config), VECTOR_BYTES / WORD_BYTES
    a, b = (config[side] * config["BK"] / threads for side in ("BM", "BN"))
    copies = Copies(through=b / of_vector, transposed=a) if vectors else Copies(plain=a + b)
    return outer_product_step(
        config,
        copies,
        scalar=not vectors,
        waits=0.0 if overlapped else 1.0,
        covers=1.0 if overlapped else 0.0,
        barriers=1 if overlapped else 2,
        other_registers=OTHER_REGISTERS,
        bounded=bounded,
        places=1.0 if vectors else 0.0,
    )


def outer_product_step(
    config: TileConfig,
    copies: Copies,
    *,
    scalar: bool = False,
    waits: float = 0.0,
    covers: float,
    barriers: int,
    other_registers: int,
    bounded: bool,
    places: float,
) -> Demands:
    """Outer products of TM×TN results a thread, out of tiles in shared memory."""
    BM, BN, BK = config["BM"], config["BN"], config["BK"]
    TM, TN = config.TM or 1, config.TN or 1
    threads = rules.thread_count(config)
    results, fragments = TM * TN, TM + TN
    multiply_adds = BM * BN * BK / threads
    depth = multiply_adds / results
    # A scalar read takes an issue slot and a wavefront; those of 16 bytes hide behind arithmetic.
    vectors = fragments / (VECTOR_BYTES / WORD_BYTES)
    wavefronts = float(fragments) if scalar else vectors * VECTOR_WAVEFRONTS
    few = results <= rules.MAX_RESULTS_IN_128
    return Demands(
        math=FP32,
        multiply_adds=multiply_adds,
        per_instruction=1.0,
        issue=depth * fragments if scalar else 0.0,
        wavefronts=ceil_div(threads, WARP_SIZE) * depth * wavefronts,
        l2_bytes=4.0 * BK * (BM + BN),
        copies=copies,
        waits=waits,
        covers=covers,
        streams=0.0,
        barriers=barriers,
        results=results,
        registers=results + 2 * fragments,
        other_registers=other_registers,
        most_registers=BOUNDED_REGISTERS if bounded and few else MOST_REGISTERS,
        places=max(min(places, depth), 1.0) if places else 0.0,
    )


def staged(
    found: Cut, problem: GemmProblem, config: TileConfig, shared_bytes: int, static_bytes: int = 0
) -> Work:
    """fp32 tiles that cp.async copies several stages ahead.

    Args:
        found: how CTAs share the problem.
        problem: of whose layout the tiles are.
        config: names `stages`, and `interleave` where copies are issued at several places.
        shared_bytes, static_bytes: of a CTA, for its tiles and for other variables.
    """
    demands = _staged(config, problem.transa, problem.transb)
    return Work.of(found, rules.thread_count(config), shared_bytes + static_bytes, demands)


@lru_cache(maxsize=16384)
def _staged(config: TileConfig, transa: bool, transb: bool) -> Demands:
    """By vectors where a tile lies in shared memory as its matrix does in global memory."""
    threads, of_vector = rules.thread_count(config), VECTOR_BYTES / WORD_BYTES
    a, b = (config[side] * config["BK"] / threads for side in ("BM", "BN"))
    in_vectors = (a if transa else 0.0) + (0.0 if transb else b)
    copies = Copies(elements=a + b - in_vectors, vectors=in_vectors / of_vector)
    return outer_product_step(
        config,
        copies,
        covers=1 / max((config.stages or 2) - 1, 1),
        barriers=1,
        other_registers=STAGED_REGISTERS,
        bounded=True,
        places=float(config.interleave or 1),
    )
