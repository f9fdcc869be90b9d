"""`Work`: what a launch asks of a board, from sizes alone: its CTAs, and what their steps demand.

A kernel's `work` is one of the ways in `kernels.mainloops`, for the kernel's own grid. Nothing here
knows how long anything takes: `analysis.closed_form` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gemmkit.gpu import WARP_SIZE, GpuSpec, MathPipe
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

# Bytes of the widest access to memory, and of a word, of which wavefronts move one for each bank.
VECTOR_BYTES, WORD_BYTES = 16, 4
# Wavefronts in which a warp reads a vector of each lane's fragments.
VECTOR_WAVEFRONTS = 2

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
    `covers` how many a step must last at least, which overlapped copies hide; `exposed` are cycles
    in which a step's warps wait for their own instructions; `streams` is not 0
    where a step waits for nothing but one large matrix from memory: the share of the bandwidth of
    reads that its accesses reach.

    `results` are those of which a thread keeps sums at once, its own or its part of them.
    `registers` (of 32 bits) hold what a thread multiplies and adds up, `other_registers` the rest;
    `most_registers` is what launch bounds leave it. `places` are those of the loop at which copies
    begin; 0 where the compiler never runs out of registers for them. `coalesced_stores` says that
    each store of a warp to C covers neighbors, whatever the alignment. `by_wgmma` says that
    wgmma multiplies the operands, `by_tma` that TMA brings them to it, of which `received_bytes`
    arrive in the CTA's shared memory: what it reads, and what others of its cluster read for it.
    `in_turn` says that products and further instructions do not overlap.
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
    streams: float
    barriers: int
    results: float
    registers: int
    other_registers: int
    most_registers: int
    places: float
    coalesced_stores: bool = False
    by_tma: bool = False
    by_wgmma: bool = False
    in_turn: bool = False
    exposed: float = 0.0
    received_bytes: float = 0.0


class Finishing(NamedTuple):
    """What an epilogue adds to the write-back of a tile, beyond rounding and storing sums.

    `issue` instructions of a warp and `special` ones of special-function units are for each of its
    threads' results, `waits` are latencies of L2 before the first of them. `first_bytes` come from
    memory for each CTA's first tiles, along with their operands; those of later tiles come early.
    """

    issue: float = 0.0
    special: float = 0.0
    waits: float = 0.0
    first_bytes: float = 0.0


PLAIN = Finishing()


class Work(NamedTuple):
    """What a launch does.

    `cut` is how its CTAs share the problem, of `threads` and `shared_bytes` each. `ctas`, `tiles`
    and `steps` are those of the cut and of its residue tiles: these count as tiles where a wave has
    room for them, and as more steps of all CTAs where it has not. `demands` are those of one step.
    `thin` is the shorter side of C where the demands are those of a single row of it.
    `longest` are the steps of the CTA with the most, if these differ. `copied_bytes` are those that
    a launch before it reads and writes, to copy operands into rows that can be loaded, at
    `copy_share` of the speed at which memory is copied. `products` are those of groups for which a
    CTA fetches tensor maps, one after the other. `teams` of a CTA's warps take its tiles in turn:
    one multiplies while another finishes its results, which takes `finishing` besides what is true
    of any product.
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
    copied_bytes: int = 0
    copy_share: float = 1.0
    products: int = 0
    teams: int = 1
    finishing: Finishing = PLAIN

    @classmethod
    def of(cls, cut: Cut, threads: int, shared_bytes: int, demands: Demands, thin: int = 0) -> Work:
        """What CTAs of such a cut do, of which none differ."""
        return cls(cut, threads, shared_bytes, demands, cut.ctas, cut.tiles, cut.steps, thin)

    @property
    def rows(self) -> int:
        """Rows of a tile of C."""
        return self.cut.rows

    @property
    def columns(self) -> int:
        """Columns of a tile of C."""
        return self.cut.columns

    @property
    def team_warps(self) -> float:
        """Warps that finish a tile together."""
        return self.rows * self.columns / max(self.demands.results, 1.0) / WARP_SIZE

    @property
    def results_per_thread(self) -> float:
        """Results of C of which a thread keeps sums at once."""
        return self.demands.results * max(self.thin, 1)

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
