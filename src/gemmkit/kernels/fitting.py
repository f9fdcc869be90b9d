"""`fitting`: the likest problem that a kernel takes, for kernels of one kind of shape only."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

# The most rows (or columns) of a product that counts as skinny.
SKINNY = 16


def fitting(
    kernel: Kernel, problem: GemmProblem, gpu: GpuSpec, config: TileConfig | None = None
) -> GemmProblem:
    """The problem itself where the kernel takes it, else with `SKINNY` rows, else columns.

    Pitches and strides that a smaller problem does not need any more become tight.

    Raises:
        UnsupportedProblem: the kernel takes none of them.
    """
    config = config or kernel.default
    rows, columns = min(problem.m, SKINNY), min(problem.n, SKINNY)
    narrow = replace(
        problem, n=columns, ldb=0, ldc=0, stride_b=min(problem.stride_b, 0), stride_c=0
    )
    likest = (problem, replace(problem, m=rows), narrow)
    for each in likest:
        if kernel.supports(each, config, gpu) is None:
            return each
    raise UnsupportedProblem(f"{kernel.name}: {kernel.supports(problem, config, gpu)}")
