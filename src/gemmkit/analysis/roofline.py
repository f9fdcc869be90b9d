"""The roofline: the attainable speed of a board at a given intensity, per level of memory.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (2009),
with a roof for each level: attainable = min(peak, intensity × bandwidth).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gemmkit.emulator.counters.rules import BANKS, SECTOR_BYTES, WORD_BYTES
from gemmkit.gpu import FP32, GpuSpec, MathPipe
from gemmkit.problem import GemmProblem

Level = Literal["DRAM", "L2", "shared memory"]

# Bytes per wavefront: one word per bank.
WAVEFRONT_BYTES = BANKS * WORD_BYTES
SHARED_WAVEFRONTS = (
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
)
_GLOBAL_SECTORS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One level's bandwidth in 1e9 bytes per second, and the source of the figure."""

    level: Level
    gb_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """A board's peak of one pipe in TFLOP/s and its bandwidths, the slowest level first."""

    board: str
    pipe: MathPipe
    peak_tflops: float
    ceilings: tuple[Ceiling, ...]

    def bandwidth(self, level: Level) -> float:
        """1e9 bytes per second of a level."""
        return next(each.gb_per_s for each in self.ceilings if each.level == level)

    def attainable(self, level: Level, intensity: float) -> float:
        """TFLOP/s under the roof of a level, at an intensity in FLOP per byte."""
        return min(self.peak_tflops, intensity * self.bandwidth(level) / 1e3)

    def ridge(self, level: Level) -> float:
        """The intensity, in FLOP per byte, above which the peak is the limit."""
        return 1e3 * self.peak_tflops / self.bandwidth(level)


def roofline(spec: GpuSpec, pipe: MathPipe = FP32) -> Roofline:
    """The roofs of a board, at its boost clock, for what one of its pipes multiplies."""
    per_cycle = spec.sm_count * spec.clock_mhz / 1e3
    return Roofline(
        spec.name,
        pipe,
        spec.peak(pipe),
        (
            Ceiling("DRAM", spec.dram_gb_per_s, "data sheet"),
            Ceiling("L2", spec.pipes.l2_bytes * per_cycle, "published micro-benchmarks"),
            Ceiling(
                "shared memory",
                spec.pipes.shared_bytes * per_cycle,
                "32 banks of 4 bytes per cycle",
            ),
        ),
    )


def math_pipes(spec: GpuSpec) -> tuple[MathPipe, ...]:
    """The pipes of a board whose peaks are floating-point operations.

    Tensor cores multiply bf16 and TF32 from compute capability 8.0 on and fp8 from 8.9 on, by the
    CUDA Programming Guide's table "Feature Support per Compute Capability". Those of fp64 are left
    out where they are no faster than the lanes.
    """
    age = (spec.capability.major, spec.capability.minor)
    found = [FP32, MathPipe("float64"), MathPipe("float16", tensor=True)]
    if age >= (8, 0):
        found += [MathPipe("bfloat16", tensor=True), MathPipe("tfloat32", tensor=True)]
    if age >= (8, 9):
        found.append(MathPipe("float8", tensor=True))
    if spec.pipes.tensor_fp64 > spec.pipes.fp64:
        found.append(MathPipe("float64", tensor=True))
    return tuple(found)


def intensities(
    problem: GemmProblem,
    counters: Mapping[str, float],
    *,
    dram_bytes: float | None = None,
    l2_bytes: float | None = None,
    shared_bytes: float | None = None,
) -> dict[Level, float]:
    """FLOP per byte at each level; a level that moves nothing is left out.

    Args:
        problem: what is computed.
        counters: of the whole launch, by Nsight Compute's names. Shared-memory bytes are
            wavefronts × 128, so that a bank conflict counts as bytes that could have moved.
        dram_bytes: bytes to and from DRAM; by default each operand once (`minimal_bytes`).
        l2_bytes: bytes between L2 and the SMs; by default the sectors that warps request in global
            accesses, some of which may hit in the L1: a lower bound of the intensity.
        shared_bytes: bytes of shared memory's wavefronts, by default the counted ones'.
    """

    def total(names: tuple[str, ...], unit: int) -> float:
        return unit * sum(counters.get(name, 0.0) for name in names)

    moved: dict[Level, float] = {
        "DRAM": problem.minimal_bytes if dram_bytes is None else dram_bytes,
        "L2": total(_GLOBAL_SECTORS, SECTOR_BYTES) if l2_bytes is None else l2_bytes,
        "shared memory": (
            total(SHARED_WAVEFRONTS, WAVEFRONT_BYTES) if shared_bytes is None else shared_bytes
        ),
    }
    return {level: problem.flops / each for level, each in moved.items() if each}
