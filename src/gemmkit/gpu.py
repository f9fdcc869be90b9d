"""`GpuSpec`: limits and rates of every board that gemmkit knows by name.

Limits per compute capability are those of the CUDA Programming Guide's table "Technical
Specifications per Compute Capability"; the figures of boards are NVIDIA's published ones (boost
clock, memory bandwidth).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.errors import UsageError, unknown_name

KIB = 1024
WARP_SIZE = 32


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
    fp32_lanes_per_sm: int
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
    major: int, minor: int, threads: int, blocks: int, shared_kib: int, lanes: int, **rest: int
) -> ComputeCapability:
    reserved_kib = 0 if major < 8 else 1
    return ComputeCapability(
        major,
        minor,
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        shared_per_sm=shared_kib * KIB,
        max_shared_per_block=(shared_kib - reserved_kib) * KIB,
        fp32_lanes_per_sm=lanes,
        shared_unit=256 if major < 8 else 128,
        shared_reserved_per_block=reserved_kib * KIB,
        architecture_specific=major >= 9,
        **rest,
    )


CAPABILITIES = {
    (each.major, each.minor): each
    for each in (
        _capability(7, 5, 1024, 16, 64, 64),
        _capability(8, 0, 2048, 32, 164, 64),
        _capability(8, 6, 1536, 16, 100, 128),
        _capability(8, 7, 1536, 16, 164, 128),
        _capability(8, 9, 1536, 24, 100, 128),
        _capability(9, 0, 2048, 32, 228, 128),
        _capability(10, 0, 2048, 32, 228, 128),
        _capability(10, 3, 2048, 32, 228, 128),
        _capability(11, 0, 1536, 24, 228, 128),
        _capability(12, 0, 1536, 24, 100, 128),
        _capability(12, 1, 1536, 24, 100, 128),
    )
}


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One board. `clock_mhz` is the boost clock, `dram_gb_per_s` in 1e9 bytes per second."""

    name: str
    capability: ComputeCapability
    sm_count: int
    clock_mhz: float
    dram_gb_per_s: float
    l2_bytes: int

    @property
    def key(self) -> str:
        """The name for the command line: lowercase letters and digits only."""
        return _key(self.name)

    @property
    def arch(self) -> str:
        """The compiler's architecture name, such as `sm_86`."""
        return self.capability.arch

    @property
    def peak_tflops(self) -> float:
        """fp32 peak at the boost clock: SMs × lanes × 2 × clock."""
        lanes = self.sm_count * self.capability.fp32_lanes_per_sm
        return 2 * lanes * self.clock_mhz * 1e6 / 1e12


def _board(
    name: str,
    capability: tuple[int, int],
    sm_count: int,
    clock_mhz: float,
    dram_gb_per_s: float,
    l2_kib: int,
) -> GpuSpec:
    return GpuSpec(name, CAPABILITIES[capability], sm_count, clock_mhz, dram_gb_per_s, l2_kib * KIB)


def _key(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


BOARDS = {
    board.key: board
    for board in (
        _board("T4", (7, 5), 40, 1590, 320, 4 * KIB),
        _board("RTX 2080 Ti", (7, 5), 68, 1545, 616, 5632),
        _board("A100", (8, 0), 108, 1410, 2039, 40 * KIB),
        _board("A100 40GB", (8, 0), 108, 1410, 1555, 40 * KIB),
        _board("A10", (8, 6), 72, 1695, 600, 6 * KIB),
        _board("RTX 3060", (8, 6), 28, 1777, 360, 3 * KIB),
        _board("RTX 3070", (8, 6), 46, 1725, 448, 4 * KIB),
        _board("RTX 3080", (8, 6), 68, 1710, 760, 5 * KIB),
        _board("RTX 3090", (8, 6), 82, 1695, 936, 6 * KIB),
        _board("RTX A6000", (8, 6), 84, 1800, 768, 6 * KIB),
        _board("Jetson AGX Orin", (8, 7), 16, 1300, 204.8, 4 * KIB),
        _board("L4", (8, 9), 58, 2040, 300, 48 * KIB),
        _board("L40S", (8, 9), 142, 2520, 864, 96 * KIB),
        _board("RTX 4070", (8, 9), 46, 2475, 504, 36 * KIB),
        _board("RTX 4080", (8, 9), 76, 2505, 717, 64 * KIB),
        _board("RTX 4090", (8, 9), 128, 2520, 1008, 72 * KIB),
        _board("H100", (9, 0), 132, 1980, 3352, 50 * KIB),
        _board("H100 PCIe", (9, 0), 114, 1755, 2039, 50 * KIB),
        _board("H200", (9, 0), 132, 1980, 4800, 60 * KIB),
        _board("B200", (10, 0), 148, 1965, 8000, 126 * KIB),
        _board("RTX 5080", (12, 0), 84, 2617, 960, 64 * KIB),
        _board("RTX 5090", (12, 0), 170, 2407, 1792, 96 * KIB),
    )
}

DEFAULT_BOARD = BOARDS["rtx3090"]


def find_board(name: str) -> GpuSpec:
    """The board of that name; spaces, dashes and case do not matter.

    Raises:
        UsageError: no such board; the message suggests the nearest names.
    """
    board = BOARDS.get(_key(name))
    if board is None:
        raise UsageError(unknown_name("board", name, BOARDS))
    return board
