"""What `gemm_tf32_mma` and `gemm_tf32x3` share: fp32 by mma.sync of TF32, in one product or in
three."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmkit.gpu import FP32, WARP_SIZE, GpuSpec, MathPipe
from gemmkit.kernels import rules, tensor_cores
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.operand_copies import moved_bytes
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.production import gemm_mma
from gemmkit.kernels.work import Way, Work
from gemmkit.problem import GemmProblem

TF32 = MathPipe("tfloat32", tensor=True)
# Steps along k of a product, and multiply-adds of one over the lanes of its warp.
DEPTH = 8
OF_LANE = tensor_cores.ROWS * tensor_cores.COLUMNS * DEPTH / WARP_SIZE
# Instructions that round or split an element of a fragment.
OF_ELEMENT = 3


def is_faster_than_ffma(gpu: GpuSpec, products: int) -> bool:
    """Whether so many products by mma.sync take less time than one in fp32, at both peaks."""
    return gpu.pipes.sustained(TF32) > products * gpu.pipes.sustained(FP32)


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A board with cp.async, which all whose tensor cores multiply TF32 have."""
    return rules.has_cp_async(gpu) or rules.whole_elements(problem)


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """What depends on the layout: room for stages, even shares of what is copied."""
    return gemm_mma.in_pairs(problem, config, gpu, DEPTH)


def work_of(products: int, instructions: Callable[[TileConfig], float], registers: int) -> Way:
    """A tile per block, on the tensor cores, of so many products for each.

    `instructions` are those of a warp in a step besides what reads and splits fragments,
    `registers` those of a thread besides sums and fragments as they are read.
    """

    def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
        threads, copies = tensor_cores.thread_count(config), gemm_mma.copied(problem)
        shared = gemm_mma.shared_bytes(problem, config)
        found = tensor(threads, shared, problem, config, aligned=True)
        own = found.demands
        demands = replace(
            own,
            math=TF32,
            multiply_adds=products * own.multiply_adds,
            per_instruction=OF_LANE,
            issue=_issued(problem, config) + instructions(config),
            registers=config["WM"] * config["WN"] // WARP_SIZE
            + 2 * (config["WM"] + config["WN"]) * DEPTH // WARP_SIZE
            + registers,
        )
        return found._replace(demands=demands, copied_bytes=moved_bytes(problem, copies))

    return work


def _issued(problem: GemmProblem, config: TileConfig) -> float:
    """Instructions of a warp that read and split the fragments of a step: ldmatrix brings four
    numbers to each lane."""
    total = 0.0
    for side, along_k in (("WM", not problem.transa), ("WN", problem.transb)):
        elements = config[side] * config["BK"] / WARP_SIZE
        reads = 1.0 if gemm_mma.by_numbers(problem, along_k=along_k) else 0.25
        total += elements * (OF_ELEMENT + reads)
    return total
