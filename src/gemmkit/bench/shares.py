"""`--profile`: what share of the board's peaks a measured launch reached, and what it gave away."""

from __future__ import annotations

import math

from gemmkit.gpu import FP32, GpuSpec, MathPipe
from gemmkit.groups import Groups
from gemmkit.jit.binary import Binary
from gemmkit.jit.ffma import multiply_adds
from gemmkit.kernels.plan import ceil_div
from gemmkit.record import ProblemRecord, ProfileRecord, Record


def shares(
    record: Record,
    nbytes: int,
    spec: GpuSpec,
    *,
    pipe: MathPipe = FP32,
    binary: Binary | None = None,
    copy_gb_per_s: float | None,
) -> ProfileRecord | None:
    """The shares of the peaks that a timed record reached; None for one that was not timed.

    Args:
        record: of one kernel, or of a layer.
        nbytes: what the work reads and writes at least.
        spec: the board.
        pipe: what multiplies.
        binary: the kernel's code; without it, nothing is known of the issue cycles.
        copy_gb_per_s: what a copy reached in the same run.
    """
    if record.time_us is None or record.tflops is None:
        return None
    seen = record.conditions.sm_clock_mhz if record.conditions else None
    clock = seen or spec.clock_mhz
    peak = spec.peak(pipe) * clock / spec.clock_mhz
    gb_per_s = nbytes / record.time_us.median / 1e3
    adds = None
    if binary is not None and binary.cubin:
        adds = multiply_adds(binary.cubin, binary.entry, binary.arch)
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
        tile_share=_tile_share(record.config, record.problem),
        wave_share=waves / math.ceil(waves) if waves else None,
    )


def _tile_share(config: dict[str, int], problem: ProblemRecord) -> float | None:
    """Results over results of all whole tiles."""
    rows, columns = config.get("BM"), config.get("BN")
    if not (rows and columns and problem.m and problem.n):
        return None
    if problem.groups:
        groups = Groups.parse(problem.groups)
        tiles = (-(-groups.m // rows) * -(-groups.n // columns)).sum()
        return groups.results / int(rows * columns * tiles) if tiles else None
    whole = ceil_div(problem.m, rows) * rows * ceil_div(problem.n, columns) * columns
    return problem.m * problem.n / whole
