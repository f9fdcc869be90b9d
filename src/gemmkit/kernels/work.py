"""`Work`: what a launch asks of a board, from sizes alone: its CTAs, and what their steps demand.

A kernel's `work` is one of the ways below, for the kernel's own grid. Nothing here knows a kernel's
name, and nothing knows how long anything takes: `analysis.closed_form` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from gemmkit.gpu import FP32, WARP_SIZE, GpuSpec, MathPipe
from gemmkit.kernels import cut, rules
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.plan import LaunchShape, TileConfig, ceil_div
from gemmkit.problem import ITEM_BYTES, GemmProblem

# Bytes of the widest access to memory, and of a word, of which wavefronts move one for each bank.
VECTOR_BYTES, WORD_BYTES = 16, 4
# Wavefronts in which a warp reads a vector of each lane's fragments.
VECTOR_WAVEFRONTS = 2
# Wavefronts in which a warp reads a float of 32 rows of A, and one of B that all lanes share.
UNCOALESCED_WAVEFRONTS = WARP_SIZE + 1
# Loads of a loop without barriers that are under way together.
UNROLLED = 16

# Latencies of L2 that a step lasts at least where its copies pass through registers of kernels for
# every type: the barrier waits for the last of them (800 cycles on an H100).
CONVERTED_COVERS = 3.0

# 32-bit registers of a thread besides its results and fragments, by how its tiles arrive: addresses
# and counters, elements on their way. One that streams a matrix has all of a piece's there.
OTHER_REGISTERS, STAGED_REGISTERS, STREAMING_REGISTERS = 30, 60, 110
# What launch bounds leave a thread with few results, and any.
BOUNDED_REGISTERS, MOST_REGISTERS = 128, 255


class Copies(NamedTuple):
    """Copies of one thread in a step, by how each is made.

    `elements` and `vectors` are those of cp.async, of one element and of 16 bytes; `plain` elements
    and `through` vectors pass through a register, and `transposed` are the elements of such vectors
    that are stored one by one.
    """

    elements: float = 0.0
    vectors: float = 0.0
    plain: float = 0.0
    through: float = 0.0
    transposed: float = 0.0

    @property
    def number(self) -> float:
        """Copies; a vector is one."""
        of_vector = VECTOR_BYTES / WORD_BYTES
        return (
            self.elements + self.vectors + self.plain + self.through + (self.transposed / of_vector)
        )


@dataclass(frozen=True, slots=True)
class Demands:
    """What one step of a CTA along k asks of its SM.

    `math` is the pipe that multiplies, `multiply_adds` are those of a thread, of an instruction
    `per_instruction` (for the tensor cores those of a warp, over its lanes). `issue` are further
    instructions of a warp that do not hide behind arithmetic; `wavefronts` those of shared memory,
    of the CTA; `l2_bytes` what the CTA reads. `copies` are those of one thread.

    Latencies: `waits` is how many times that of L2 adds to a step, with `barriers` that expose it;
    `covers` how many a step must last at least, which overlapped copies hide; `streams` says that a
    step lasts as long as memory takes, whatever is computed.

    `registers` (of 32 bits) hold what a thread multiplies and adds up, `other_registers` the rest;
    `most_registers` is what launch bounds leave it. `places` are those of the loop at which copies
    begin; 0 where the compiler never runs out of registers for them. `coalesced_stores` says that
    each store of a warp to C covers neighbors, whatever the alignment.
    """

    math: MathPipe
    multiply_adds: float
    per_instruction: float
    issue: float
    wavefronts: float
    l2_bytes: float
    copies: Copies
    waits: float
    covers: float
    streams: bool
    barriers: int
    registers: int
    other_registers: int
    most_registers: int
    places: float
    coalesced_stores: bool = False


class Work(NamedTuple):
    """What a launch does.

    `cut` is how its CTAs share the problem, of `threads` and `shared_bytes` each. `ctas`, `tiles`
    and `steps` are those of the cut and of its residue tiles: these count as tiles where a wave has
    room for them, and as more steps of all CTAs where it has not. `demands` are those of one step.
    `thin` is the shorter side of C where the demands are those of a single row of it.
    `longest` are the steps of the CTA with the most, if these differ.
    """

    cut: Cut
    threads: int
    shared_bytes: int
    demands: Demands
    ctas: int
    tiles: int
    steps: int
    thin: int = 0
    longest: int = 0

    @property
    def rows(self) -> int:
        """Rows of a tile of C."""
        return self.cut.rows

    @property
    def columns(self) -> int:
        """Columns of a tile of C."""
        return self.cut.columns

    @property
    def visits(self) -> int:
        """Tiles that a CTA has a share of."""
        return self.cut.visits

    @property
    def parts(self) -> int:
        """CTAs that share a tile, 1 where none do."""
        return self.cut.parts


# A kernel's `work`.
Way = Callable[[GemmProblem, TileConfig, GpuSpec], Work]


def _work(found: Cut, threads: int, shared_bytes: int, demands: Demands, thin: int = 0) -> Work:
    return Work(found, threads, shared_bytes, demands, found.ctas, found.tiles, found.steps, thin)


# --- one thread for each result, and tiles through registers -----------------------------------


def per_result(*, coalesced: bool = True) -> Way:
    """One thread a result, which reads A and B from L1 and L2: no tiles in shared memory."""

    def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
        found = cut.whole_tiles(problem, config, config["BM"], config["BN"])
        return _work(found, rules.thread_count(config), 0, _per_result(config, coalesced))

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
        streams=False,
        barriers=0,
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
        return _work(found, rules.thread_count(config), shared_bytes, demands)

    return work


@lru_cache(maxsize=4096)
def _through_registers(
    config: TileConfig, vectors: bool, bounded: bool, overlapped: bool
) -> Demands:
    threads, of_vector = rules.thread_count(config), VECTOR_BYTES / WORD_BYTES
    a, b = (config[side] * config["BK"] / threads for side in ("BM", "BN"))
    copies = Copies(through=b / of_vector, transposed=a) if vectors else Copies(plain=a + b)
    return _fp32(
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


def _fp32(
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
        streams=False,
        barriers=barriers,
        registers=results + 2 * fragments,
        other_registers=other_registers,
        most_registers=BOUNDED_REGISTERS if bounded and few else MOST_REGISTERS,
        places=max(min(places, depth), 1.0) if places else 0.0,
    )


# --- cp.async in stages -------------------------------------------------------------------------


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
    return _work(found, rules.thread_count(config), shared_bytes + static_bytes, demands)


@lru_cache(maxsize=16384)
def _staged(config: TileConfig, transa: bool, transb: bool) -> Demands:
    """By vectors where a tile lies in shared memory as its matrix does in global memory."""
    threads, of_vector = rules.thread_count(config), VECTOR_BYTES / WORD_BYTES
    a, b = (config[side] * config["BK"] / threads for side in ("BM", "BN"))
    in_vectors = (a if transa else 0.0) + (0.0 if transb else b)
    copies = Copies(elements=a + b - in_vectors, vectors=in_vectors / of_vector)
    return _fp32(
        config,
        copies,
        covers=1 / max((config.stages or 2) - 1, 1),
        barriers=1,
        other_registers=STAGED_REGISTERS,
        bounded=True,
        places=float(config.interleave or 1),
    )


# --- thin problems ------------------------------------------------------------------------------


def streamed(found: Cut, config: TileConfig, threads: int, shared_bytes: int, thin: int) -> Work:
    """One large matrix read once, for the few rows or columns of the other.

    Args:
        found: how CTAs share it.
        config: BN lines along one side and BK along the other are a CTA's step.
        threads: of a CTA.
        shared_bytes: of a CTA.
        thin: the shorter side of C.
    """
    return _work(found, threads, shared_bytes, _streamed(config, threads), thin)


@lru_cache(maxsize=1024)
def _streamed(config: TileConfig, threads: int) -> Demands:
    BN, BK = config["BN"], config["BK"]
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
        streams=True,
        barriers=1,
        registers=1 + 2 * 2,
        other_registers=STREAMING_REGISTERS,
        most_registers=BOUNDED_REGISTERS,
        places=0.0,
    )


def outer_products(found: Cut, problem: GemmProblem, config: TileConfig, threads: int) -> Work:
    """All of a short k in one step, with the columns of B in registers.

    Args:
        found: how CTAs share the problem.
        problem: names the types.
        config: of BK steps of k, and WN columns per warp.
        threads: of a CTA.
    """
    words = ITEM_BYTES[problem.sum_dtype] // WORD_BYTES
    shared_bytes = words * WORD_BYTES * config["BM"] * config["BK"]
    demands = _outer_products(config, threads, words, problem.item_bytes)
    return _work(found, threads, shared_bytes, demands)


@lru_cache(maxsize=4096)
def _outer_products(config: TileConfig, threads: int, words: int, item_bytes: int) -> Demands:
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
        wavefronts=ceil_div(threads, WARP_SIZE) * reads,
        l2_bytes=float(item_bytes * BK * (BM + BN)),
        copies=Copies(plain=BM * BK / threads + BK * columns),
        waits=1.0,
        covers=0.0,
        streams=False,
        barriers=1,
        registers=words * (BK + config["TM"]) * columns,
        other_registers=OTHER_REGISTERS,
        most_registers=BOUNDED_REGISTERS,
        places=0.0,
        coalesced_stores=True,
    )


# --- every type ---------------------------------------------------------------------------------


def converted(threads: int, shared_bytes: int, problem: GemmProblem, config: TileConfig) -> Work:
    """One tile a CTA, whose elements become the type of the sums on their way to shared memory."""
    found = cut.whole_tiles(problem, config, config["BM"], config["BN"])
    demands = _converted(config, threads, problem.sum_dtype, *_arrival(problem))
    return _work(found, threads, shared_bytes, demands)


def tensor(threads: int, shared_bytes: int, problem: GemmProblem, config: TileConfig) -> Work:
    """One tile a CTA, multiplied by mma.sync."""
    found = cut.whole_tiles(problem, config, config["BM"], config["BN"])
    demands = _tensor(config, threads, problem.dtype, *_arrival(problem))
    return _work(found, threads, shared_bytes, demands)


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
    plain = _fp32(
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
    return Demands(
        math=MathPipe(dtype, tensor=True),  # type: ignore[arg-type]
        multiply_adds=BM * BN * BK / threads,
        per_instruction=each,
        # ldmatrix brings four 8 × 8 matrices at a time, loads of fp64 one.
        issue=wavefronts / warps / (1 if double else 4),
        wavefronts=wavefronts,
        l2_bytes=float(item_bytes * BK * (BM + BN)),
        copies=_through(config, threads, item_bytes, a_along_k, b_along_k, aligned, whole=True),
        waits=0.0,
        covers=CONVERTED_COVERS,
        streams=False,
        barriers=1,
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


# --- a user's own -------------------------------------------------------------------------------

# Steps along k that are taken of a kernel whose inside is not known.
UNKNOWN_DEPTH = 16


def by_grid(launch: Callable[[GemmProblem, TileConfig, GpuSpec], LaunchShape]) -> Way:
    """What is taken of a kernel whose inside is not known: C in even shares of its grid, each in
    square tiles of its threads, copied well ahead."""

    def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
        shape = launch(problem, config, gpu)
        ctas, threads = math.prod(shape.grid), math.prod(shape.block)
        results = problem.m * problem.n * problem.batch
        area = ceil_div(results, max(ctas, 1))
        rows = max(min(math.isqrt(area), problem.m), 1)
        steps = max(ceil_div(problem.k, UNKNOWN_DEPTH), 1)
        found = Cut(rows, ceil_div(area, rows), ctas, ctas, steps if results else 0)
        demands = _unknown(rows, found.columns, threads, problem.dtype)
        return _work(found, threads, shape.shared_bytes, demands)

    return work


@lru_cache(maxsize=1024)
def _unknown(rows: int, columns: int, threads: int, dtype: str) -> Demands:
    results = max(rows * columns / threads, 1.0)
    side = math.sqrt(results)
    item_bytes = ITEM_BYTES[dtype]  # type: ignore[index]
    lines = UNKNOWN_DEPTH * (rows + columns)
    return Demands(
        math=MathPipe("float64") if dtype == "float64" else FP32,
        multiply_adds=results * UNKNOWN_DEPTH,
        per_instruction=1.0,
        issue=0.0,
        wavefronts=ceil_div(threads, WARP_SIZE) * UNKNOWN_DEPTH * side,
        l2_bytes=float(item_bytes * lines),
        copies=Copies(vectors=lines * item_bytes / VECTOR_BYTES / threads),
        waits=0.0,
        covers=1.0,
        streams=False,
        barriers=1,
        registers=math.ceil(results + 4 * side),
        other_registers=OTHER_REGISTERS,
        most_registers=MOST_REGISTERS,
        places=0.0,
    )
