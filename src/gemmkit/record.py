"""`Record`: the results of one kernel on one problem; one JSON line each."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from gemmkit.decoding import from_json
from gemmkit.dtypes import types_text
from gemmkit.error_histogram import ErrorHistogram
from gemmkit.units import shape_text


class ProblemRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The requested problem; sizes in elements.

    `batch` is the number of products of one shape. Batch strides are 0 for a single product, and -1
    for an operand that all products share. `layout` says which matrices are stored transposed, as
    in `GemmProblem.layout`. `dtype` is the type of A and B, `out_dtype` that of C, `precision` how
    float32 may be multiplied, `scales` those of A and B as `Scales.parse` reads them. `groups` are
    the products of different shapes, as `Groups.parse` reads them, or empty; m, n, k and the
    leading dimensions are then the largest of all. `prepared` are operands of which copies were
    made before, "a", "b" or "ab".
    """

    m: int
    n: int
    k: int
    alpha: float
    beta: float
    epilogue: str
    lda: int
    ldb: int
    ldc: int
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    layout: str = "nn"
    dtype: str = "float32"
    out_dtype: str = "float32"
    groups: str = ""
    precision: str = "ieee"
    prepared: str = ""
    scales: str = ""

    @property
    def shape(self) -> str:
        """As `GemmProblem.shape`."""
        return shape_text(self.m, self.n, self.k, self.batch, self.groups)

    @property
    def results(self) -> int:
        """Elements of C, of all products."""
        if self.groups:
            # NumPy, which records of other products do without.
            from gemmkit.groups import Groups

            return Groups.parse(self.groups).results
        return self.m * self.n * self.batch

    @property
    def padded(self) -> tuple[str, ...]:
        """Those of lda, ldb and ldc that are larger than the matrices need."""
        if self.groups:
            return ()
        transposed = [letter == "t" for letter in self.layout.ljust(3, "n")]
        rows = ((self.k, self.m), (self.n, self.k), (self.n, self.m))
        tight = (max(row[swapped], 1) for row, swapped in zip(rows, transposed, strict=True))
        names = ("lda", "ldb", "ldc")
        return tuple(
            name for name, row in zip(names, tight, strict=True) if getattr(self, name) != row
        )

    @property
    def types(self) -> str:
        """The types, the precision and the scales in words: `fp32`, `bf16 to fp32`,
        `fp32 (precision tf32)`; and which operands are prepared."""
        text = types_text(self.dtype, self.out_dtype, self.precision, self.scales)
        return f"{text}, {' and '.join(self.prepared.upper())} prepared" if self.prepared else text


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran: `kind` is "cuda" or "emulator", `gpu` the real or emulated board."""

    kind: str
    gpu: str


class ResourceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Resources from the compiler, per thread (registers, local, spills) and per block (shared)."""

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
    """Microseconds per launch: median, 20th and 80th percentile, minimum, mean, maximum."""

    median: float
    p20: float
    p80: float
    minimum: float
    mean: float
    maximum: float
    samples: int


class Part(msgspec.Struct, frozen=True):
    """Launches of one kernel in a call of a layer, and their microseconds together."""

    launches: float
    us: float


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The layer of a `Record` that is not of a single product.

    `name` is that of its function in `gemmkit.nn`, `sizes` its shapes and options in words. `flops`
    are those of all its products, `minimal_bytes` the bytes of its arrays and its result, once
    each. `call_us` is the time of a call among others one after the other, where the host may be
    what takes longest; `parts` are the kernels of a call by name, the longest first, as PyTorch's
    profiler timed them, empty where nobody asked.
    """

    name: str
    sizes: str
    flops: float
    minimal_bytes: int
    call_us: TimeRecord | None = None
    parts: dict[str, Part] = {}


class BaselineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The peer, timed in turn with the kernel in the same run; `speedup` is peer time / ours."""

    name: str
    time_us: TimeRecord
    speedup: float


class ConditionsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """NVML readings during timing, without warm-up; null where NVML has none.

    Median, minimum and maximum SM clock in MHz, mean power of the board in watts, temperature in
    degrees Celsius at the end, and the number of readings.
    """

    sm_clock_mhz: float | None
    sm_clock_min_mhz: float | None
    sm_clock_max_mhz: float | None
    power_watts: float | None
    temperature_c: float | None
    samples: int


class SustainedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Speed of one candidate right after a rest, and at the board's power limit.

    `burst_us` are microseconds per launch in the first tenth of a second after the rest,
    `sustained_us` those of turns of a second in which the board never rests, in turn with the other
    candidates; the second half of each turn counts. `conditions` are NVML's readings in these
    halves, and `joules` is the energy of the board per launch there: the difference of NVML's
    energy counter over the number of launches, or mean power times median time where there is no
    counter; null where NVML tells neither.
    """

    burst_us: TimeRecord
    sustained_us: TimeRecord
    joules: float | None
    conditions: ConditionsRecord | None


class PeerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Another implementation, checked and timed in turn with the kernel in the same run.

    `vendor` is "cublas", "torch", "linear", "triton", or "gemmkit" for one of gemmkit's kernels.
    `choice` is "default" for the library's own choice and "best" for the fastest of its
    `candidates`, whose names are in `ranking`, the fastest first. For PyTorch's functions it is
    "eager" or, under torch.compile, "compiled". For groups it is the routine: "grouped", "batched",
    or "each" for a call for each product. For gemmkit it is "plain" for the product without
    the problem's epilogue, and "candidate" for another kernel or configuration. `name` is version
    and algorithm, for gemmkit the kernel, with `config`. `speedup` is its time / the kernel's; the
    errors, `arithmetic` and `sustained` are as in `Record`, `call_us` and `parts` as in
    `LayerRecord`.
    """

    vendor: str
    choice: str
    name: str
    candidates: int
    time_us: TimeRecord
    tflops: float
    speedup: float
    correct: bool
    max_error: float | None
    error_ratio: float | None
    check: str = ""
    arithmetic: str = ""
    ranking: tuple[str, ...] = ()
    config: dict[str, int] = {}
    call_us: TimeRecord | None = None
    parts: dict[str, Part] = {}
    errors: ErrorHistogram | None = None
    sustained: SustainedRecord | None = None


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of the board's peaks, 0 to 1; null if unknown.

    `clock_mhz` is the SM clock seen while timing, or else the board's boost clock, and
    `peak_tflops` the peak at that clock of what multiplies:
    fp32 or fp64 lanes, or tensor cores. `gb_per_s` counts A, B and C once each (1e9 bytes);
    `dram_share` is of the data sheet's bandwidth, `copy_share` of what a device-to-device copy
    moved in the same run (`copy_gb_per_s`, read and written). `issue_cycles` is what one FFMA of
    the machine code takes of its scheduler's issue cycles on average, by its register banks.
    `tile_share` is results over results of all whole tiles, `wave_share` waves over whole waves.
    """

    clock_mhz: float
    peak_tflops: float
    peak_share: float
    gb_per_s: float
    dram_share: float | None
    copy_gb_per_s: float | None
    copy_share: float | None
    issue_cycles: float | None
    tile_share: float | None
    wave_share: float | None


class AccessCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one memory instruction of the PTX over a launch.

    `array` is the name of a kernel argument or shared variable, `space` is "global", "shared" or
    "local", `kind` "load", "store", "copy" (cp.async, on its global side) or "atomic".
    `bytes_per_lane` is the width of one lane's access, `lanes` the active lanes, summed over
    requests. `instructions` counts the requests after ptxas's merging of adjacent shared-memory
    loads; the shared-memory figures are those after merging. `ideal_sectors` is the minimum for the
    distinct bytes of each request, `ideal_wavefronts` the wavefronts without bank conflicts. Copies
    have wavefronts too, even if they only write zeros and make no request. Figures that do not
    apply to a memory space are 0.
    """

    file: str
    line: int
    number: int
    opcode: str
    array: str
    space: str
    kind: str
    bytes_per_lane: int
    lanes: int
    instructions: int
    requests: int
    sectors: int
    ideal_sectors: int
    tag_wavefronts: int
    wavefronts: int
    ideal_wavefronts: int
    conflicts: int


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of a wrong result.

    `summary` is one sentence; `hypothesis` names the explanation that reproduces the wrong
    elements, such as "negated" or "k short", and is empty if none does. `wrong` of `elements`
    elements of C are outside their bounds, between the first and last of `rows` and `columns`;
    `places` are the row and column of each if there are at most four. `details` are further
    sentences: the values and positions of single elements, and what to try.
    """

    summary: str
    hypothesis: str
    wrong: int
    elements: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    details: tuple[str, ...] = ()
    places: tuple[tuple[int, int], ...] = ()


class JsonLine(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the types that are written as one line of JSON."""

    def to_json(self) -> str:
        """The record as one JSON line, without the newline."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Read one JSON line.

        Raises:
            msgspec.ValidationError: the line is not a record.
        """
        return from_json(line, cls)


class Record(JsonLine, frozen=True, kw_only=True):
    """One row of any gemmkit table. Units: microseconds, seconds, bytes, TFLOP/s (1e12/s).

    `counters` maps Nsight Compute metric names to values; it is empty if nothing was counted.
    `time_us`, `tflops`, `peak_fraction` and `baseline` are null on the emulator;
    `emulation_seconds` is null on a GPU. `max_error` is the largest |C - reference| and
    `error_bound` the bound of that element. `error_ratio` is the largest error / bound over all
    elements, `ratio_error` and `ratio_bound` the error and the bound of that element; null means
    not finite. `arithmetic` describes the roundings behind the bounds, and where they occur.
    `resources` and `occupancy` are null if they are unknown (PTX kernels without ptxas). `check`
    says which elements were compared, or what is wrong with the result; `diagnosis` has the
    details. `errors` counts the compared elements by error / bound.

    The last fields are those of a comparison with `peers`: the suite, why this kernel and
    configuration were chosen, `ratio_to_cublas` (the time of the fastest cuBLAS candidate / the
    kernel's, null if cuBLAS was not a peer), readings of the GPU, and the speed at its power limit.

    If `layer` is not null, the record is of that function of `gemmkit.nn`, named by `kernel`;
    `problem` is its largest product, `time_us` and `tflops` are of the whole layer.
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
    resources: ResourceRecord | None
    occupancy: OccupancyRecord | None
    time_us: TimeRecord | None
    tflops: float | None
    peak_fraction: float | None
    baseline: BaselineRecord | None
    emulation_seconds: float | None
    environment: dict[str, Any]
    seed: int
    check: str = ""
    ratio_error: float | None = None
    ratio_bound: float | None = None
    arithmetic: str = ""
    diagnosis: Diagnosis | None = None
    suite: str = ""
    choice: str = ""
    ratio_to_cublas: float | None = None
    peers: tuple[PeerRecord, ...] = ()
    conditions: ConditionsRecord | None = None
    profile: ProfileRecord | None = None
    layer: LayerRecord | None = None
    errors: ErrorHistogram | None = None
    sustained: SustainedRecord | None = None
