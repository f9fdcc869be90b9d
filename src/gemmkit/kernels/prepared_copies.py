"""`PreparedCopy`: what a kernel reads of a prepared operand, made once for all launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.operand_copies import OperandCopy, made_anew
from gemmkit.kernels.plan import LaunchPlan, LaunchShape
from gemmkit.problem import GemmProblem

# The launch that makes copies on a board; None where there are none.
Making = Callable[[GemmProblem, tuple[OperandCopy, ...], GpuSpec], LaunchPlan | None]


@dataclass(frozen=True, slots=True)
class PreparedCopy:
    """A copy of A or of B, the `operand`, in `nbytes` of memory whose address is the argument
    `name`.

    The launch `maker` fills it. `form` tells copies of one operand apart: kernels that read the
    same form share the copy, whatever their tiles and the other side of the product are.
    """

    operand: str
    form: str
    nbytes: int
    maker: LaunchPlan

    @property
    def name(self) -> str:
        """The argument that is its address."""
        return f"prepared_{self.operand.lower()}"


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
