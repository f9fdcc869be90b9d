"""What kernels read of prepared operands, made once for all launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.operand_copies import OperandCopy, made_anew
from gemmkit.kernels.plan import LaunchPlan, LaunchShape, PreparedCopy
from gemmkit.problem import GemmProblem

# The launch that makes copies on a board; None where there are none.
Making = Callable[[GemmProblem, tuple[OperandCopy, ...], GpuSpec], LaunchPlan | None]


def with_copies_made(
    shape: LaunchShape, problem: GemmProblem, gpu: GpuSpec, making: Making
) -> LaunchShape:
    """A launch after the one that makes its copies, but for those of prepared operands.

    `making` is asked for the latter too, one by one: what it then gives makes the prepared copy.
    """
    return replace(
        shape,
        before=making(problem, made_anew(shape.copies), gpu),
        prepared=prepared_copies(shape.copies, problem, gpu, making),
    )


def prepared_copies(
    copies: tuple[OperandCopy, ...], problem: GemmProblem, gpu: GpuSpec, making: Making
) -> tuple[PreparedCopy, ...]:
    """Those of the copies that are of prepared operands, each with the launch that makes it."""
    found: list[PreparedCopy] = []
    for each in copies:
        maker = making(problem, (each,), gpu) if each.is_prepared else None
        if maker is None:
            continue
        sizes = (each.count, each.lines, each.length, each.ld)
        lines = " x ".join(map(str, sizes)) + " turned" * each.turned
        form = f"{maker.kernel}: {each.dtype}, {lines}"
        found.append(PreparedCopy(each.operand, form, each.end, maker))
    return tuple(found)
