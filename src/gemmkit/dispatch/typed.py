"""Which kernel of the library computes a problem that no rung takes, by a simple estimate.

Nobody has tuned these kernels for shapes: the time of a configuration is what its arithmetic takes
at the share of the peak that its tiles reach, or the steps of its blocks where an SM has too few of
them to hide what a step waits for, or the memory's, whichever is the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.problem import GemmProblem
from gemmkit.units import microseconds_text

# fp64 multiply-adds per cycle and SM, by compute capability, where they are more than a few:
# without and with tensor cores (CUDA Programming Guide, "Throughput of Native Arithmetic
# Instructions", and the peaks that NVIDIA publishes).
FP64_LANES = {(8, 0): 32, (9, 0): 64, (10, 0): 64}
FP64_TENSOR_LANES = {(8, 0): 64, (9, 0): 128, (10, 0): 64}
FEW_FP64_LANES = 2
# The same of 16-bit numbers on tensor cores.
HALF_TENSOR_LANES = {(8, 0): 1024, (9, 0): 2048, (10, 0): 2048, (10, 3): 2048}
FEW_HALF_TENSOR_LANES = 512

# Cycles of a step's barrier and global load, threads of an SM whose blocks hide them for each
# other, and microseconds of a launch.
STEP_CYCLES, THREADS_TOGETHER = 800, 512
LAUNCH_US = 3.0

TENSOR, SINGLE = "typed_mma", "typed"


@dataclass(frozen=True)
class Tiles:
    """A configuration of a kernel, and the share of the peak that a busy SM reaches with it."""

    kernel: Kernel
    config: TileConfig
    threads: int
    speed: float


def _tiles(name: str, keys: str, *rows: tuple[tuple[int, ...], int, float]) -> tuple[Tiles, ...]:
    """Configurations of one kernel, their keys above, with threads of a block and speeds."""
    kernel = find_kernel(name)
    return tuple(
        Tiles(kernel, TileConfig(**dict(zip(keys.split(), row, strict=True))), threads, speed)
        for row, threads, speed in rows
    )


# By the type of the sums. Of equals the first is taken. Shares of the peak are those of an H100 at
# 4096^3, in the mean of the layouts NN, NT and TN: of float32 sums, float16 and float32 elements.
TILES: Mapping[str, tuple[Tiles, ...]] = {
    "float32": (
        *_tiles(
            TENSOR,
            "BM BN BK WM WN",
            ((32, 32, 32, 16, 16), 128, 0.07),
            ((64, 64, 32, 32, 32), 128, 0.12),
            ((128, 128, 32, 64, 64), 128, 0.21),
        ),
        *_tiles(
            SINGLE,
            "BM BN BK WM WN TM TN",
            ((32, 32, 16, 16, 32, 4, 4), 64, 0.49),
            ((64, 64, 16, 32, 32, 8, 4), 128, 0.61),
            ((64, 128, 16, 32, 32, 8, 4), 256, 0.63),
            ((128, 128, 16, 32, 64, 8, 8), 256, 0.75),
        ),
    ),
    "float64": (
        *_tiles(
            TENSOR,
            "BM BN BK WM WN",
            ((32, 32, 16, 16, 16), 128, 0.32),
            ((64, 64, 16, 32, 32), 128, 0.54),
            ((128, 128, 16, 64, 32), 256, 0.70),
        ),
        *_tiles(
            SINGLE,
            "BM BN BK WM WN TM TN",
            ((32, 32, 16, 16, 32, 4, 4), 64, 0.48),
            ((64, 64, 16, 32, 32, 8, 4), 128, 0.60),
            ((128, 128, 8, 32, 64, 8, 8), 256, 0.66),
        ),
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
    return next(iter(alternatives(problem, gpu)), None)


def alternatives(problem: GemmProblem, gpu: GpuSpec) -> list[Chosen]:
    """Every configuration that takes the problem, by its estimated time."""
    times = [(estimate(problem, tiles, gpu), tiles) for tiles in _fitting(problem, gpu)]
    return [_chosen(problem, gpu, *each) for each in sorted(times, key=lambda each: each[0])]


def _chosen(problem: GemmProblem, gpu: GpuSpec, microseconds: float, tiles: Tiles) -> Chosen:
    config = tiles.config
    reason = (
        f"no rung takes {_types(problem)}, '{tiles.kernel.name}' does: {config.BM}×{config.BN} "
        f"tiles make {_blocks(problem, config)} blocks for {gpu.sm_count} SMs, estimated at "
        f"{microseconds_text(microseconds)}"
    )
    return Chosen(tiles.kernel, config, reason, microseconds)


def refusal(problem: GemmProblem, gpu: GpuSpec) -> str:
    """Why no configuration takes the problem."""
    last = TILES[problem.sum_dtype][-1]
    return last.kernel.supports(problem, last.config, gpu) or "each has its reason"


def estimate(problem: GemmProblem, tiles: Tiles, gpu: GpuSpec) -> float:
    """Microseconds of a launch."""
    config = tiles.config
    of_an_sm = ceil_div(_blocks(problem, config), gpu.sm_count)
    lanes = _lanes(problem, gpu, tensor=tiles.kernel.name == TENSOR)
    arithmetic = of_an_sm * config["BM"] * config["BN"] * problem.k / (lanes * tiles.speed)
    in_turn = ceil_div(of_an_sm, max(1, THREADS_TOGETHER // tiles.threads))
    waiting = in_turn * ceil_div(problem.k, config["BK"]) * STEP_CYCLES
    memory = problem.minimal_bytes / gpu.dram_gb_per_s / 1e3
    return max(max(arithmetic, waiting) / gpu.clock_mhz, memory) + LAUNCH_US


def _lanes(problem: GemmProblem, gpu: GpuSpec, *, tensor: bool) -> int:
    """Multiply-adds per cycle and SM."""
    capability = gpu.capability.major, gpu.capability.minor
    if problem.sum_dtype == "float64":
        return (FP64_TENSOR_LANES if tensor else FP64_LANES).get(capability, FEW_FP64_LANES)
    if tensor:
        return HALF_TENSOR_LANES.get(capability, FEW_HALF_TENSOR_LANES)
    return gpu.capability.fp32_lanes_per_sm


def _fitting(problem: GemmProblem, gpu: GpuSpec) -> Iterator[Tiles]:
    for tiles in TILES[problem.sum_dtype]:
        if tiles.kernel.supports(problem, tiles.config, gpu) is None:
            yield tiles


def _blocks(problem: GemmProblem, config: TileConfig) -> int:
    rows, columns = ceil_div(problem.m, config["BM"]), ceil_div(problem.n, config["BN"])
    return rows * columns * problem.batch


def _types(problem: GemmProblem) -> str:
    out = problem.out_dtype or problem.dtype
    if problem.dtype == out == "float32":
        return f"layout {problem.layout}, a batch or this epilogue here"
    return problem.dtype if out == problem.dtype else f"{problem.dtype} to {out}"
