"""`GpuSpec`: limits and rates of every board that gemmkit knows by name.

Limits per compute capability are those of the CUDA Programming Guide's table "Technical
Specifications per Compute Capability"; rates of pipes are those of its table "Throughput of Native
Arithmetic Instructions" and of the peaks that NVIDIA's white papers give; boards' figures are
NVIDIA's published ones (boost clock, memory bandwidth and size).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from gemmkit.errors import UnsupportedType, UsageError, unknown_name

KIB = 1024
GIB = 1024**3
WARP_SIZE = 32

# The largest extents along x, y and z of a grid and of a block, on every board.
MAX_GRID_YZ = 65535
MAX_GRID = (2**31 - 1, MAX_GRID_YZ, MAX_GRID_YZ)
MAX_BLOCK = (1024, 1024, 64)

# The types in which the pipes multiply. Tensor cores take float32 cut to TensorFloat-32 only.
MathType = Literal["float32", "float64", "float16", "bfloat16", "tfloat32", "float8", "int8"]
_SHORT: dict[MathType, str] = {
    "float32": "fp32",
    "float64": "fp64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "tfloat32": "TF32",
    "float8": "fp8",
    "int8": "int8",
}
# Tensor cores take twice as many operands of half the size, in the same number of cycles.
_OF_HALF: dict[MathType, float] = {"tfloat32": 0.5, "float8": 2, "int8": 2}


class MathPipe(NamedTuple):
    """What multiplies: the FMA lanes of a type, or the tensor cores for operands of it."""

    dtype: MathType = "float32"
    tensor: bool = False

    def __str__(self) -> str:
        return f"{_SHORT[self.dtype]} tensor core" if self.tensor else _SHORT[self.dtype]

    @property
    def sums(self) -> str:
        """What its peak depends on besides, ready to follow the figure: the type of the sums of
        16-bit operands, which some boards add up faster in 16 bits than gemmkit's kernels do."""
        half = self.tensor and self.dtype not in ("float64", "int8")
        return " with fp32 accumulation" if half else ""


FP32 = MathPipe()


@dataclass(frozen=True, slots=True)
class MemoryPorts:
    """Ports to memory, each shared by a group of `sms` SMs, two by two.

    A port delivers `group_bytes` per nanosecond, and `sm_bytes` at most to one SM.
    """

    sms: int
    group_bytes: float
    sm_bytes: float


@dataclass(frozen=True, slots=True)
class Pipes:
    """What the pipes of one SM take in a cycle.

    `fp32` and `fp64` are multiply-adds of the lanes, `tensor_half` and `tensor_fp64` those of the
    tensor cores: of float16 or bfloat16 operands (at the full rate; `GpuSpec.pipes` has that of
    fp32 sums), and of fp64. `mma_sync` is the share of `tensor_half` that `mma.sync` reaches, 0 to
    1: from compute capability 9.0 on only asynchronous instructions reach more, `wgmma` of it in a
    long run, which the board's power limits. `issue` is warp instructions, one for each scheduler;
    `shared_bytes` one wavefront of shared memory; `l2_bytes` the SM's share of what L2 delivers,
    `tma_bytes` that of its own tensor copies, `received_bytes` what it takes of them and of those
    that other SMs multicast to it; `load_store_lanes` the threads whose addresses are served,
    `special_lanes` those for which the special-function units compute. `launch_us` is from one
    kernel of a CUDA graph to the next, in microseconds. `ports` are those to memory, where they
    are known.
    """

    fp32: int
    fp64: int = 2
    tensor_half: int = 512
    tensor_fp64: int = 2
    mma_sync: float = 1.0
    wgmma: float = 1.0
    issue: int = 4
    shared_bytes: int = 128
    l2_bytes: float = 28.0
    tma_bytes: float = 28.0
    received_bytes: float = 28.0
    load_store_lanes: int = 32
    special_lanes: int = 16
    launch_us: float = 2.0
    ports: MemoryPorts | None = None

    def multiply_adds(self, pipe: MathPipe = FP32) -> int:
        """Multiply-adds of a pipe per cycle.

        Raises:
            ValueError: tensor cores do not multiply float32.
        """
        if not pipe.tensor:
            return self.fp64 if pipe.dtype == "float64" else self.fp32
        if pipe.dtype == "float32":
            raise ValueError("tensor cores do not multiply float32")
        if pipe.dtype == "float64":
            return self.tensor_fp64
        return round(self.tensor_half * _OF_HALF.get(pipe.dtype, 1))

    def sustained(self, pipe: MathPipe = FP32, *, by_wgmma: bool = False) -> float:
        """The same for the instructions of gemmkit's kernels: tensor cores through `mma.sync`, or
        through `wgmma`."""
        if not pipe.tensor or pipe.dtype == "float64":
            return self.multiply_adds(pipe)
        if by_wgmma:
            return self.multiply_adds(pipe) * self.wgmma
        # Where asynchronous instructions are the fast ones, those that are not widen fp8 to fp16.
        widened = pipe.dtype == "float8" and self.mma_sync < 1
        return (self.tensor_half if widened else self.multiply_adds(pipe)) * self.mma_sync


# L2 rates are rounded from published micro-benchmarks of each generation. The share of `mma.sync`
# on 9.0 is that of Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
# Microbenchmarking" (2024); on later data-center parts it is taken to run as fast as on 8.0.
# The share of wgmma was measured on an H100; what TMA gets from L2, and the ports to memory, on an
# H200, whose SMs are the same (docs/limits.md).
HOPPER_PORTS = MemoryPorts(sms=6, group_bytes=180.0, sm_bytes=105.0)
PIPES = {
    (7, 5): Pipes(64, load_store_lanes=16, l2_bytes=20.0),
    (8, 0): Pipes(64, 32, 1024, 64),
    (8, 6): Pipes(128, load_store_lanes=16, l2_bytes=18.0),
    (8, 7): Pipes(128, tensor_half=1024, load_store_lanes=16, l2_bytes=18.0),
    (8, 9): Pipes(128, load_store_lanes=16, l2_bytes=16.0),
    (9, 0): Pipes(
        128,
        64,
        2048,
        128,
        mma_sync=0.63,
        wgmma=0.7,
        tma_bytes=64.0,
        received_bytes=45.0,
        ports=HOPPER_PORTS,
    ),
    (10, 0): Pipes(128, 64, 4096, 64, mma_sync=0.25),
    (10, 3): Pipes(128, 2, 4096, 2, mma_sync=0.25),
    (11, 0): Pipes(128, 2, 4096, 2, mma_sync=0.25),
    (12, 0): Pipes(128, load_store_lanes=16, l2_bytes=16.0),
    (12, 1): Pipes(128, load_store_lanes=16, l2_bytes=16.0),
}


@dataclass(frozen=True, slots=True)
class ComputeCapability:
    """Per-SM limits of an architecture; sizes in bytes, registers in 32-bit words.

    Registers are allocated per warp in units of `register_unit`, shared memory per block in units
    of `shared_unit`; the system reserves `shared_reserved_per_block`.
    """

    major: int
    minor: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_per_sm: int
    max_shared_per_block: int
    pipes: Pipes
    shared_unit: int = 128
    shared_reserved_per_block: int = 1 * KIB
    registers_per_sm: int = 65536
    registers_per_block: int = 65536
    max_registers_per_thread: int = 255
    register_unit: int = 256
    warp_unit: int = 4
    max_threads_per_block: int = 1024
    architecture_specific: bool = False

    @property
    def arch(self) -> str:
        """The compiler's name for it, with `a` if it has architecture-specific instructions."""
        return f"sm_{self.major}{self.minor}" + ("a" if self.architecture_specific else "")

    @property
    def max_warps_per_sm(self) -> int:
        """Resident warps per SM."""
        return self.max_threads_per_sm // WARP_SIZE

    @property
    def barriers_per_sm(self) -> int | None:
        """Numbered barriers that the resident blocks of an SM share; None if no limit is known.

        From the occupancy header of CUDA 13, for 9.0 and later: two per block that an SM can hold
        on 9.0 and 10.0, one on the others.
        """
        if self.major < 9:
            return None
        return self.max_blocks_per_sm * (2 if (self.major, self.minor) in ((9, 0), (10, 0)) else 1)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def _capability(
    major: int, minor: int, threads: int, blocks: int, shared_kib: int
) -> ComputeCapability:
    reserved_kib = 0 if major < 8 else 1
    return ComputeCapability(
        major,
        minor,
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        shared_per_sm=shared_kib * KIB,
        max_shared_per_block=(shared_kib - reserved_kib) * KIB,
        pipes=PIPES[major, minor],
        shared_unit=256 if major < 8 else 128,
        shared_reserved_per_block=reserved_kib * KIB,
        architecture_specific=major >= 9,
    )


CAPABILITIES = {
    (each.major, each.minor): each
    for each in (
        _capability(7, 5, 1024, 16, 64),
        _capability(8, 0, 2048, 32, 164),
        _capability(8, 6, 1536, 16, 100),
        _capability(8, 7, 1536, 16, 164),
        _capability(8, 9, 1536, 24, 100),
        _capability(9, 0, 2048, 32, 228),
        _capability(10, 0, 2048, 32, 228),
        _capability(10, 3, 2048, 32, 228),
        _capability(11, 0, 1536, 24, 228),
        _capability(12, 0, 1536, 24, 100),
        _capability(12, 1, 1536, 24, 100),
    )
}


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A board and its limits.

    It has a `name`, a compute `capability`, `sm_count` SMs and `l2_bytes` of L2 cache. `clock_mhz`
    is the boost clock in MHz, `dram_gb_per_s` the bandwidth in 1e9 bytes per second.
    `fp32_accumulation` is the share of the tensor cores' rate for operands of 16 and 8 bits, 0 to
    1, that is left if they accumulate in fp32. `memory_gib` is the size of DRAM, 0 if unknown.
    """

    name: str
    capability: ComputeCapability
    sm_count: int
    clock_mhz: float
    dram_gb_per_s: float
    l2_bytes: int
    fp32_accumulation: float = 1.0
    memory_gib: int = 0

    @property
    def key(self) -> str:
        """The name for the command line: lowercase letters and digits only."""
        return _key(self.name)

    @property
    def arch(self) -> str:
        """The compiler's architecture name, such as `sm_86`."""
        return self.capability.arch

    @property
    def pipes(self) -> Pipes:
        """What the pipes of an SM of this board take in a cycle, with fp32 sums of 16-bit types."""
        return _accumulating(self.capability.pipes, self.fp32_accumulation)

    @property
    def peak_tflops(self) -> float:
        """fp32 peak at the boost clock, without tensor cores."""
        return self.peak(FP32)

    def peak(self, pipe: MathPipe) -> float:
        """TFLOP/s of a pipe at the boost clock: SMs × multiply-adds per cycle × 2 × clock."""
        return 2 * self.sm_count * self.pipes.multiply_adds(pipe) * self.clock_mhz / 1e6


@cache
def _accumulating(pipes: Pipes, share: float) -> Pipes:
    """The same with that share of what the tensor cores take of 16-bit operands."""
    return replace(pipes, tensor_half=round(pipes.tensor_half * share))


def fp32_accumulation(name: str) -> float:
    """`GpuSpec.fp32_accumulation` of a board by the name that its maker gives it.

    GeForce boards with tensor cores add products of 16-bit numbers up in fp32 at half the rate of
    sums in fp16; data-center boards, the RTX A and Ada series for workstations and the TITAN RTX
    at the full rate. The white papers of each generation give both peaks: Turing, appendix A
    (RTX 2080 Ti, 53.8 and 107.6 TFLOP/s; T4, 65); GA102, table 2 (RTX 3090, 71 and 142; RTX A6000,
    154.8 for both); Ada, appendix A (RTX 4090, 165.2 and 330.3; L40S, 362); RTX Blackwell,
    appendix A (RTX 5090, 209.5 and 419). So do they with those of 8-bit numbers, at twice these
    rates (RTX 4090, 330.3 and 660.6; RTX 5090, 419 and 838).
    """
    return 0.5 if "geforce" in name.lower() else 1.0


def _board(
    name: str,
    capability: tuple[int, int],
    sm_count: int,
    clock_mhz: float,
    dram_gb_per_s: float,
    l2_kib: int,
    memory_gib: int,
    *,
    geforce: bool = False,
) -> GpuSpec:
    """A board; those of the GeForce series are known without that word."""
    return GpuSpec(
        name,
        CAPABILITIES[capability],
        sm_count,
        clock_mhz,
        dram_gb_per_s,
        l2_kib * KIB,
        fp32_accumulation=fp32_accumulation(f"GeForce {name}" if geforce else name),
        memory_gib=memory_gib,
    )


def _key(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


BOARDS = {
    board.key: board
    for board in (
        _board("T4", (7, 5), 40, 1590, 320, 4 * KIB, 16),
        _board("RTX 2080 Ti", (7, 5), 68, 1545, 616, 5632, 11, geforce=True),
        _board("A100", (8, 0), 108, 1410, 2039, 40 * KIB, 80),
        _board("A100 40GB", (8, 0), 108, 1410, 1555, 40 * KIB, 40),
        _board("A10", (8, 6), 72, 1695, 600, 6 * KIB, 24),
        _board("RTX 3060", (8, 6), 28, 1777, 360, 3 * KIB, 12, geforce=True),
        _board("RTX 3070", (8, 6), 46, 1725, 448, 4 * KIB, 8, geforce=True),
        _board("RTX 3080", (8, 6), 68, 1710, 760, 5 * KIB, 10, geforce=True),
        _board("RTX 3090", (8, 6), 82, 1695, 936, 6 * KIB, 24, geforce=True),
        _board("RTX A6000", (8, 6), 84, 1800, 768, 6 * KIB, 48),
        _board("Jetson AGX Orin", (8, 7), 16, 1300, 204.8, 4 * KIB, 64),
        _board("L4", (8, 9), 58, 2040, 300, 48 * KIB, 24),
        _board("L40S", (8, 9), 142, 2520, 864, 96 * KIB, 48),
        _board("RTX 4070", (8, 9), 46, 2475, 504, 36 * KIB, 12, geforce=True),
        _board("RTX 4080", (8, 9), 76, 2505, 717, 64 * KIB, 16, geforce=True),
        _board("RTX 4090", (8, 9), 128, 2520, 1008, 72 * KIB, 24, geforce=True),
        _board("H100", (9, 0), 132, 1980, 3352, 50 * KIB, 80),
        _board("H100 PCIe", (9, 0), 114, 1755, 2039, 50 * KIB, 80),
        _board("H200", (9, 0), 132, 1980, 4800, 60 * KIB, 141),
        _board("B200", (10, 0), 148, 1965, 8000, 126 * KIB, 180),
        _board("RTX 5080", (12, 0), 84, 2617, 960, 64 * KIB, 16, geforce=True),
        _board("RTX 5090", (12, 0), 170, 2407, 1792, 96 * KIB, 32, geforce=True),
    )
}

DEFAULT_BOARD = BOARDS["rtx3090"]


def first_board(architecture: str) -> GpuSpec | None:
    """The first board that runs code for an architecture, such as `86`, `90a`, `100f`; or None."""
    number, suffix = int(architecture.rstrip("af")), architecture[-1]
    for board in BOARDS.values():
        own = 10 * board.capability.major + board.capability.minor
        if own == number or (own > number and suffix.isdecimal()):
            return board
        if suffix == "f" and own > number and own // 10 == number // 10:
            return board
    return None


def find_board(name: str | GpuSpec) -> GpuSpec:
    """Find a board by its name.

    Args:
        name: such as "h100"; spaces, dashes and case do not matter. A board is returned as it is.

    Raises:
        UsageError: no such board; the message suggests the nearest names.
        UnsupportedType: it is neither a name nor a board.
    """
    if isinstance(name, GpuSpec):
        return name
    if not isinstance(name, str):
        raise UnsupportedType(
            f"{name!r} is not a board: use a name, such as 'h100', or a gemmkit.GpuSpec"
        )
    board = BOARDS.get(_key(name))
    if board is None:
        raise UsageError(unknown_name("board", name, BOARDS))
    return board
