"""Which configuration of `typed` computes a problem that no rung takes, by a simple estimate.

Nobody has tuned these kernels: the time of a configuration is what its arithmetic takes at the
share of the peak that its tiles reach, or the steps of its blocks where an SM has too few of them
to hide what a step waits for, or the memory's, whichever is the longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.library import find_library_kernel
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.rules import thread_count
from gemmkit.problem import GemmProblem

KERNEL = "typed"

# fp64 multiply-adds per cycle and SM of boards that have more than a few: CUDA Programming Guide,
# "Throughput of Native Arithmetic Instructions".
FP64_LANES = {(8, 0): 32, (9, 0): 64, (10, 0): 64}
FEW_FP64_LANES = 2

# Cycles of a step's barrier and global load, and microseconds of a launch.
STEP_CYCLES = 800
LAUNCH_US = 3.0


@dataclass(frozen=True)
class Tiles:
    """A configuration, and the share of the peak that a busy SM reaches with it."""

    keys: tuple[int, ...]
    speed: float

    @cached_property
    def config(self) -> TileConfig:
        """The configuration: BM, BN, BK, WM, WN, TM, TN."""
        return TileConfig(*self.keys)


# Of equals the first is taken. Shares of the peak are guesses by the machine code.
TILES = {
    "float32": (
        Tiles((32, 32, 16, 16, 32, 4, 4), 0.40),
        Tiles((64, 64, 16, 32, 32, 8, 4), 0.60),
        Tiles((64, 128, 16, 32, 32, 8, 4), 0.65),
        Tiles((128, 128, 16, 32, 64, 8, 8), 0.80),
    ),
    "float64": (
        Tiles((32, 32, 16, 16, 32, 4, 4), 0.50),
        Tiles((64, 64, 16, 32, 32, 8, 4), 0.75),
        Tiles((128, 128, 8, 32, 64, 8, 8), 0.90),
    ),
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A configuration of the kernel with its estimated time and the reason for it."""

    kernel: Kernel
    config: TileConfig
    reason: str
    microseconds: float


def choose_typed(problem: GemmProblem, gpu: GpuSpec) -> Chosen | None:
    """The configuration that is estimated to be the fastest; None where none takes the problem."""
    fitting = list(_fitting(problem, gpu))
    if not fitting:
        return None
    kernel = find_library_kernel(KERNEL)
    times = [(estimate(problem, tiles, gpu), tiles.config) for tiles in fitting]
    microseconds, config = min(times, key=lambda each: each[0])
    blocks = _blocks(problem, config)
    reason = (
        f"no rung takes {_types(problem)}, '{KERNEL}' does: {config.BM}×{config.BN} tiles make "
        f"{blocks} blocks for {gpu.sm_count} SMs, estimated at {microseconds:.1f} µs"
    )
    return Chosen(kernel, config, reason, microseconds)


def refusal(problem: GemmProblem, gpu: GpuSpec) -> str:
    """Why no configuration takes the problem."""
    smallest = TILES[problem.sum_dtype][0].config
    return find_library_kernel(KERNEL).supports(problem, smallest, gpu) or "each has its reason"


def estimate(problem: GemmProblem, tiles: Tiles, gpu: GpuSpec) -> float:
    """Microseconds of a launch."""
    config, limits = tiles.config, gpu.capability
    lanes = limits.fp32_lanes_per_sm
    if problem.sum_dtype == "float64":
        lanes = FP64_LANES.get((limits.major, limits.minor), FEW_FP64_LANES)
    of_an_sm = ceil_div(_blocks(problem, config), gpu.sm_count)
    results = config["BM"] * config["BN"]
    # Blocks with as many threads as the tiles' registers allow beside each other.
    together = max(1, 512 // thread_count(config))
    arithmetic = of_an_sm * results * problem.k / (lanes * tiles.speed)
    steps = ceil_div(of_an_sm, together) * ceil_div(problem.k, config["BK"]) * STEP_CYCLES
    cycles = max(arithmetic, steps)
    memory = problem.minimal_bytes / gpu.dram_gb_per_s / 1e3
    return max(cycles / gpu.clock_mhz, memory) + LAUNCH_US


def _fitting(problem: GemmProblem, gpu: GpuSpec) -> Iterator[Tiles]:
    kernel = find_library_kernel(KERNEL)
    for tiles in TILES[problem.sum_dtype]:
        if kernel.supports(problem, tiles.config, gpu) is None:
            yield tiles


def _blocks(problem: GemmProblem, config: TileConfig) -> int:
    rows, columns = ceil_div(problem.m, config["BM"]), ceil_div(problem.n, config["BN"])
    return rows * columns * problem.batch


def _types(problem: GemmProblem) -> str:
    out = problem.out_dtype or problem.dtype
    if problem.dtype == out == "float32":
        return f"layout {problem.layout}, a batch or this epilogue here"
    return problem.dtype if out == problem.dtype else f"{problem.dtype} to {out}"
