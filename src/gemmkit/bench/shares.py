"""`--profile`: what share of the board's peaks a measured launch reached, and what it gave away."""

from __future__ import annotations

import math

from gemmkit.analysis.math_pipe import math_pipe
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.ffma import multiply_adds
from gemmkit.kernels.plan import ceil_div
from gemmkit.problem import GemmProblem
from gemmkit.record import ProfileRecord, Record


def profile(
    record: Record,
    problem: GemmProblem,
    spec: GpuSpec,
    binary: Binary,
    copy_gb_per_s: float | None,
) -> ProfileRecord | None:
    """The shares of a record that was timed; None for one that was not."""
    if record.time_us is None or record.tflops is None:
        return None
    seen = record.conditions.sm_clock_mhz if record.conditions else None
    clock = seen or spec.clock_mhz
    peak = spec.peak(math_pipe(binary.ptx, problem)) * clock / spec.clock_mhz
    gb_per_s = problem.minimal_bytes / record.time_us.median / 1e3
    adds = multiply_adds(binary.cubin, binary.entry, binary.arch) if binary.cubin else None
    waves = record.occupancy.waves_per_sm if record.occupancy else 0.0
    return ProfileRecord(
        clock_mhz=clock,
        peak_tflops=peak,
        peak_share=record.tflops / peak,
        gb_per_s=gb_per_s,
        dram_share=gb_per_s / spec.dram_gb_per_s if spec.dram_gb_per_s else None,
        copy_gb_per_s=copy_gb_per_s,
        copy_share=gb_per_s / copy_gb_per_s if copy_gb_per_s else None,
        issue_cycles=adds.issue_cycles if adds is not None and adds.total else None,
        tile_share=_tile_share(record.config, problem),
        wave_share=waves / math.ceil(waves) if waves else None,
    )


def _tile_share(config: dict[str, int], problem: GemmProblem) -> float | None:
    """Results over results of all whole tiles."""
    rows, columns = config.get("BM"), config.get("BN")
    if not (rows and columns and problem.m and problem.n):
        return None
    whole = ceil_div(problem.m, rows) * rows * ceil_div(problem.n, columns) * columns
    return problem.m * problem.n / whole
