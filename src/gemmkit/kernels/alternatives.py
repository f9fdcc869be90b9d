"""What a refusal recommends: other kernels that take the problem on the same board."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.loading import load
from gemmkit.problem import GemmProblem

# Kernels that are named; more would hide the reason.
NAMED = 2


def takers(problem: GemmProblem, gpu: GpuSpec) -> tuple[Kernel, ...]:
    """gemmkit's kernels that take a problem on a board in their default configuration, production
    kernels first, then rungs from the last one."""
    load("gemmkit.kernels.catalog")
    from gemmkit.kernels.catalog import LADDER, PRODUCTION

    return tuple(each for each in (*PRODUCTION, *reversed(LADDER)) if _takes(each, problem, gpu))


def alternatives(problem: GemmProblem, gpu: GpuSpec) -> str:
    """The end of a refusal: which kernels take the problem on the board, or each of its products.

    Empty where there are none.
    """
    names = [f"'{each.name}'" for each in takers(problem, gpu)[:NAMED]]
    if names:
        return f"; {' and '.join(names)} {'takes' if len(names) == 1 else 'take'} it"
    groups = problem.groups
    if groups is None or not groups.count:
        return ""
    # One product of each size.
    first = {size: number for number, size in enumerate(zip(*groups.table.tolist(), strict=True))}
    singles = [problem.product(number) for number in first.values()]
    for kernel in takers(singles[0], gpu):
        if all(_takes(kernel, each, gpu) for each in singles):
            return f"; '{kernel.name}' takes each of its products in a launch of its own"
    return ""


def instead_of(kernel: Kernel, problem: GemmProblem, gpu: GpuSpec) -> str:
    """The same for a kernel that refused a problem; empty for a user's own, or where only the
    configuration was refused."""
    if kernel.user_defined or _takes(kernel, problem, gpu):
        return ""
    return alternatives(problem, gpu)


def _takes(kernel: Kernel, problem: GemmProblem, gpu: GpuSpec) -> bool:
    return kernel.supports(problem, kernel.default, gpu) is None
