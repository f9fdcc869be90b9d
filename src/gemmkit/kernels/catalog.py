"""Every kernel of gemmkit's own by its name: the rungs and the production kernels."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.errors import UsageError, unknown_name
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import LADDER
from gemmkit.kernels.ladder.warp_tiled import KERNEL as WARP_TILED
from gemmkit.kernels.production import PRODUCTION
from gemmkit.problem import GemmProblem

__all__ = ["LADDER", "PRODUCTION", "find_kernel", "kernels_for", "tunable_kernels"]

# The types that rungs take.
_OF_RUNGS = {dtype for kernel in LADDER for dtype in kernel.dtypes}

_FOR_GROUPS = tuple(each for each in PRODUCTION if each.takes_groups)
_FOR_ONE_SHAPE = tuple(each for each in PRODUCTION if not each.takes_groups)


def kernels_for(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    """What is run where nobody names kernels: the rungs, and for groups and types that no rung
    takes the production kernels for these."""
    if any(problem.groups is not None for problem in problems):
        return _FOR_GROUPS
    return LADDER if _types(problems) <= _OF_RUNGS else _of_other_types(problems)


def tunable_kernels(problems: Sequence[GemmProblem], gpu: GpuSpec) -> tuple[Kernel, ...]:
    """What is tuned where nobody names kernels: the production kernels for the problems' types, or
    for groups, and for boards without cp.async the rung that serves them.

    Where none of these takes a problem on the board, as with batches or NT without cp.async, the
    other production kernels that do are among them.
    """
    usual = _tunable_anywhere(problems)
    left = [each for each in problems if not any(_takes(kernel, each, gpu) for kernel in usual)]
    further = (
        kernel
        for kernel in PRODUCTION
        if kernel not in usual and any(_takes(kernel, each, gpu) for each in left)
    )
    return (*usual, *further)


def _takes(kernel: Kernel, problem: GemmProblem, gpu: GpuSpec) -> bool:
    return kernel.supports(problem, kernel.default, gpu) is None


def _tunable_anywhere(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    if any(problem.groups is not None for problem in problems):
        return _FOR_GROUPS
    if not _types(problems) <= _OF_RUNGS:
        return _of_other_types(problems)
    return (WARP_TILED, *(each for each in _FOR_ONE_SHAPE if set(each.dtypes) <= _OF_RUNGS))


def _types(problems: Sequence[GemmProblem]) -> set[str]:
    return {each for problem in problems for each in (problem.dtype, problem.result_dtype)}


def _of_other_types(problems: Sequence[GemmProblem]) -> tuple[Kernel, ...]:
    wanted = _types(problems) - _OF_RUNGS
    return tuple(each for each in PRODUCTION if wanted & set(each.dtypes))


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
