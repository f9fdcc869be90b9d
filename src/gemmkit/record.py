"""`Record`: what was seen when one kernel ran one problem on one device; one JSON line."""

from __future__ import annotations

from typing import Any

import msgspec


class ProblemRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The problem as asked for; sizes in elements."""

    m: int
    n: int
    k: int
    alpha: float
    beta: float
    epilogue: str
    lda: int
    ldb: int
    ldc: int


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran: `kind` is "cuda" or "emulator", `gpu` the board it is or stands for."""

    kind: str
    gpu: str


class ResourceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiler gave each thread (registers, local, spills) and block (shared)."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    local_bytes: int


class OccupancyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Theoretical occupancy (0 to 1) on the board, and the resource that limits it."""

    theoretical: float
    waves_per_sm: float
    blocks_per_sm: int
    limiter: str


class TimeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds for one launch: median, 20th and 80th percentile, fastest, mean, slowest."""

    median: float
    p20: float
    p80: float
    minimum: float
    mean: float
    maximum: float
    samples: int


class BaselineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The peer, timed in turn with the kernel in the same run; `speedup` is peer time / ours."""

    name: str
    time_us: TimeRecord
    speedup: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One row of any gemmkit table. Units: microseconds, seconds, bytes, TFLOP/s (1e12/s).

    `counters` maps Nsight Compute metric names to values; it is empty where nothing was counted.
    `time_us`, `tflops`, `peak_fraction` and `baseline` are null on the emulator;
    `emulation_seconds` is null on a GPU. `max_error` is the largest |C - reference|,
    `error_bound` the bound at that element, `error_ratio` the largest error / bound over all
    elements; null means not finite. `check` says which elements were compared, or what is wrong
    with a wrong result.
    """

    kernel: str
    rung: int | None
    idea: str
    problem: ProblemRecord
    config: dict[str, int]
    device: DeviceRecord
    correct: bool
    max_error: float | None
    error_bound: float | None
    error_ratio: float | None
    counters: dict[str, float]
    resources: ResourceRecord
    occupancy: OccupancyRecord
    time_us: TimeRecord | None
    tflops: float | None
    peak_fraction: float | None
    baseline: BaselineRecord | None
    emulation_seconds: float | None
    environment: dict[str, Any]
    seed: int
    check: str = ""

    def to_json(self) -> str:
        """The record as one JSON line, without the newline."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        """Read one JSON line.

        Raises:
            msgspec.ValidationError: the line is no record.
        """
        return msgspec.json.decode(line, type=cls)
