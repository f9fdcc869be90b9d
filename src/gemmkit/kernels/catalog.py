"""Every kernel of gemmkit's own by its name: the rungs and the production kernels."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.errors import UsageError, unknown_name
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import LADDER
from gemmkit.kernels.production import PRODUCTION
from gemmkit.problem import GemmProblem

__all__ = ["LADDER", "PRODUCTION", "find_kernel", "kernels_for"]


def kernels_for(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    """What is run where nobody names kernels: the rungs, and for types that no rung takes the
    production kernels."""
    types = {each for problem in problems for each in (problem.dtype, problem.result_dtype)}
    known = {each for kernel in LADDER for each in kernel.dtypes}
    return LADDER if types <= known else PRODUCTION


def find_kernel(name: str) -> Kernel:
    """The rung, or production kernel, of that name; case and dashes do not matter.

    Raises:
        UsageError: no such kernel; the text lists the nearest names.
    """
    wanted = name.strip().lower().replace("-", "_")
    by_name = {kernel.name: kernel for kernel in (*LADDER, *PRODUCTION)}
    kernel = by_name.get(wanted)
    if kernel is None:
        raise UsageError(unknown_name("kernel", name, by_name))
    return kernel
