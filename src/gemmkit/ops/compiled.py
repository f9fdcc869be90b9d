"""Launch plans of steps, and their binaries, kept from call to call."""

from __future__ import annotations

from functools import lru_cache

from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, SourceFile, TileConfig
from gemmkit.loading import first_use
from gemmkit.problem import GemmProblem

# Binaries that are kept in memory; the disk cache has all.
_MOST_KEPT = 512


def compiled(
    problem: GemmProblem, kernel: Kernel, config: TileConfig, gpu: GpuSpec
) -> tuple[LaunchPlan, Binary]:
    """How a kernel is launched for a problem on a board, and its code.

    Raises:
        UnsupportedProblem: the kernel refuses the problem.
        CompileError, CompilerMissing: as `compile_plan`.
    """
    with first_use():
        plan = kernel.plan(problem, config, gpu)
        return plan, binary_of(plan, gpu)


def binary_of(plan: LaunchPlan, gpu: GpuSpec) -> Binary:
    """The code that a plan launches on a board.

    Raises:
        CompileError, CompilerMissing: as `compile_plan`.
    """
    return _binary(plan.kernel, plan.source, plan.entry, gpu.arch)


@lru_cache(maxsize=_MOST_KEPT)
def _binary(kernel: str, source: SourceFile, entry: str, arch: str) -> Binary:
    # What else a plan holds tells nothing to the compiler.
    plan = LaunchPlan(kernel, source, entry, grid=(1, 1, 1), block=(1, 1, 1), signature=())
    with first_use():
        return compile_plan(plan, arch)
