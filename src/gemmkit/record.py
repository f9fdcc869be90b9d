"""`Record` and `CheckRecord`: what was seen when one kernel ran one problem; one JSON line each."""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from gemmkit.problem import GemmProblem, shape_text, types_text


class ProblemRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The problem as asked for; sizes in elements.

    `batch` is the number of products of one shape; the strides between their matrices are 0 where
    there is one only, and -1 where all share an operand. `layout` says which matrices lie
    transposed in memory, as `GemmProblem.layout` does. `dtype` is the type of A and B, `out_dtype`
    that of C. `groups` are those of products of different shapes, as `Groups.parse` reads them, or
    empty; m, n, k and the leading dimensions are then the largest of all.
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

    @property
    def shape(self) -> str:
        """As `GemmProblem.shape`."""
        return shape_text(self.m, self.n, self.k, self.batch, self.groups)

    @property
    def results(self) -> int:
        """Elements of C, of all products."""
        if self.groups:
            return GemmProblem.of_groups(self.groups).results
        return self.m * self.n * self.batch

    @property
    def types(self) -> str:
        """The types in short: `fp32`, or `bf16 to fp32`."""
        return types_text(self.dtype, self.out_dtype)


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


class PeerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to the same product, checked and timed in turn with the kernel in the same run.

    `vendor` is "cublas", "torch", "triton", or "gemmkit" for a kernel of gemmkit's. `choice` is
    "default" for what the library takes of itself, "best" for the fastest of its `candidates`, and
    "plain" for the product without the problem's epilogue. `name` says which version and algorithm.
    `speedup` is its time / the kernel's; the errors are as in `Record`.
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


class ConditionsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML told of the GPU while it was timed, warm-up apart; null where it tells nothing.

    Median, smallest and largest SM clock in MHz, mean power of the board in watts, temperature in
    degrees Celsius at the end, and how many times it was asked.
    """

    sm_clock_mhz: float | None
    sm_clock_min_mhz: float | None
    sm_clock_max_mhz: float | None
    power_watts: float | None
    temperature_c: float | None
    samples: int


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what the board can do was done; shares are 0 to 1, null where not known.

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


# How line tables call the folder of CUDA's own headers.
CUDA_HEADERS = "<cuda>/"

Triple = tuple[int, int, int]
Check = Literal["memcheck", "initcheck", "racecheck", "synccheck"]


class AccessSite(msgspec.Struct, frozen=True, kw_only=True):
    """Who did something: one thread (x, y, z in its block), at one instruction.

    `file` and `line` are of the CUDA C++ source where the kernel has line information, else the
    PTX's; what was inlined from CUDA's own headers is put down to the line that called it there.
    `thread` is null where the whole warp or block is meant. `called_from` are the lines
    (`file:line`) of the calls that were inlined there, from the innermost outward, as far as known.
    """

    file: str
    line: int
    instruction: str
    thread: Triple | None
    called_from: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a sanitizer found, at one pair of places; `message` says it in a sentence.

    `kind` is what went wrong, such as "out of bounds", "uninitialized", "read after write",
    "divergent barrier", "deadlock". `array` is what was touched: a kernel argument's name, or the
    name of a shared variable; empty where no memory is concerned. `offset` is in bytes from its
    start. `other` is the second access of a race. `count` is how often the same was seen at the
    same places; `here`, `other`, `offset` and `block` belong to the first time. Races with the same
    `cause`, if there is one, lie in the same gap between barriers: it is an identifier such as
    `no-barrier/after:tiled.cu:21/next-iteration`, made of what is missing and the place of the
    nearest barrier.
    """

    check: Check
    kind: str
    message: str
    block: Triple
    here: AccessSite
    other: AccessSite | None = None
    array: str = ""
    offset: int | None = None
    count: int = 1
    cause: str = ""


class AccessCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What one memory instruction of the PTX counted over a launch.

    `array` is a kernel argument's or shared variable's name, `space` is "global", "shared" or
    "local", `kind` "load", "store", "copy" (cp.async, on its global side) or "atomic".
    `bytes_per_lane` is the width of one lane's access, `lanes` the lanes that took part, summed
    over requests. `instructions` counts the requests that are left after ptxas has merged
    neighbouring shared-memory loads, and the shared figures are those after merging.
    `ideal_sectors` is what the distinct bytes of each request need at least, `ideal_wavefronts`
    the wavefronts without bank conflicts; copies have wavefronts too, also where they only write
    zeros and make no request. Figures that have no meaning for a space are 0.
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
    """What a wrong result looks like.

    `summary` is one sentence; `hypothesis` names the explanation that reproduces the wrong
    elements, such as "negated" or "k short", and is empty where none does. `wrong` of `elements`
    elements of C lie outside their bounds, in the rows and columns from the first to the last of
    `rows` and `columns`; `places` are the row and column of each where they are four at most.
    `details` are further sentences: what single elements hold, where they lie, and what to try.
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
    """What is written as one line of JSON."""

    def to_json(self) -> str:
        """The record as one JSON line, without the newline."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Read one JSON line.

        Raises:
            msgspec.ValidationError: the line is not a record.
        """
        return msgspec.json.decode(line, type=cls)


class Record(JsonLine, frozen=True, kw_only=True):
    """One row of any gemmkit table. Units: microseconds, seconds, bytes, TFLOP/s (1e12/s).

    `counters` maps Nsight Compute metric names to values; it is empty where nothing was counted.
    `time_us`, `tflops`, `peak_fraction` and `baseline` are null on the emulator;
    `emulation_seconds` is null on a GPU. `max_error` is the largest |C - reference| and
    `error_bound` the bound of that element. `error_ratio` is the largest error / bound over all
    elements, `ratio_error` and `ratio_bound` the error and the bound of the element that has it;
    null means not finite. `arithmetic` says from which roundings the bounds follow, and why.
    `resources` and `occupancy` are null where no assembler has
    told what a kernel takes (PTX of another front end, no ptxas at hand). `check` says which
    elements were compared, or what is wrong with a wrong result; `diagnosis` what that looks like.

    The last fields are those of a comparison with `peers`: the suite, why this kernel and
    configuration were taken, `ratio_to_cublas` (the fastest of cuBLAS's candidates' time / the
    kernel's, null where cuBLAS was not among the peers), and what was seen of the GPU.
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


CheckVerdict = Literal["ok", "findings", "wrong result", "failed", "refused"]


class CheckRecord(JsonLine, frozen=True, kw_only=True):
    """What the sanitizers saw of one kernel on one problem; `case` is the problem's name.

    `verdict` is "findings" where there are any, whatever the result, and "failed" where the launch
    ended with an error instead of one. `detail` says which elements were compared, what is wrong
    with a wrong result, how the launch failed, or why the kernel refuses the problem. `correct`
    and the errors (as in `Record`) are null where there is no result; the errors and `error_ratio`
    also where they are not finite. `arithmetic` and `diagnosis` are as in `Record`.
    """

    kernel: str
    case: str
    problem: ProblemRecord
    config: dict[str, int]
    device: DeviceRecord
    seed: int
    verdict: CheckVerdict
    detail: str = ""
    correct: bool | None = None
    max_error: float | None = None
    error_bound: float | None = None
    error_ratio: float | None = None
    ratio_error: float | None = None
    ratio_bound: float | None = None
    arithmetic: str = ""
    diagnosis: Diagnosis | None = None
    findings: tuple[Finding, ...] = ()
    emulation_seconds: float | None = None
    environment: dict[str, Any] = {}

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong: the kernel is right and breaks no rule, or refuses."""
        return self.verdict in ("ok", "refused")
