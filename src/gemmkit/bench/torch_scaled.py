"""`torch._scaled_mm` and `torch._scaled_grouped_mm`: PyTorch's products of 8 bits, with scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmkit.bench.torch_groups import GroupedOperands, why_not_experts
from gemmkit.dtypes import is_narrow
from gemmkit.epilogue import Custom
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import GemmProblem
from gemmkit.scales import BLOCKS, COLUMNS, NONE, ROW_CHUNKS, ROWS, TENSOR

# What torch._scaled_mm takes of A and of B.
_SCALED = {(NONE, NONE), (TENSOR, TENSOR), (ROWS, COLUMNS), (ROW_CHUNKS, BLOCKS)}
_SCALED |= {(ROW_CHUNKS, ROW_CHUNKS), (BLOCKS, ROW_CHUNKS)}
# What it wants rows and columns of B to be multiples of.
_SCALED_UNIT = 16


def refuse_unscalable(problem: GemmProblem) -> None:
    """See that torch._scaled_mm has a product of operands of 8 bits.

    Raises:
        UnsupportedProblem: it has not.
    """
    scales = problem.scales
    reason = ""
    if problem.batch != 1:
        reason = "one product at a time"
    elif problem.layout != "nt":
        reason = "A and B along k alone: layout NT"
    elif (problem.alpha, problem.beta) != (1, 0):
        reason = "neither alpha nor beta"
    elif problem.n % _SCALED_UNIT or problem.k % _SCALED_UNIT:
        reason = f"n and k that are multiples of {_SCALED_UNIT}"
    elif (scales.a, scales.b) not in _SCALED:
        reason = f"no scales {scales}"
    elif isinstance(problem.epilogue.activation, Custom):
        reason = "no such activation"
    elif is_narrow(problem.result_dtype) and str(problem.epilogue) not in ("none", "scale_result"):
        # What kernels of their own would read is rounded to 8 bits.
        reason = "scale_result alone of the epilogues of results of 8 bits"
    if reason:
        raise UnsupportedProblem(f"torch._scaled_mm takes {reason}")


def why_not_scaled(torch: Any, ordinal: int, problem: GemmProblem) -> str:
    """Why `torch._scaled_grouped_mm` does not multiply a problem's groups on a GPU; empty if it
    does."""
    if not hasattr(torch, "_scaled_grouped_mm"):
        return "this PyTorch has no torch._scaled_grouped_mm"
    if problem.dtype != "float8_e4m3" or problem.result_dtype != "bfloat16":
        return "it is for e4m3 to bfloat16 alone"
    if (problem.scales.a, problem.scales.b) != (ROWS, COLUMNS):
        return "rows of A and columns of B have scales"
    if problem.layout != "nt":
        return "A and B lie along k: layout NT"
    return why_not_experts(torch, ordinal, problem)


class ScaledOperands(GroupedOperands):
    """A and B of 8 bits as `torch._scaled_grouped_mm` takes them, with their scales.

    Args:
        torch, a, b: as of `GroupedOperands`.
        scale_a, scale_b: of each product, m×1 and 1×n.
        how: further arguments of the function.
    """

    def __init__(
        self,
        torch: Any,
        a: Sequence[Any],
        b: Sequence[Any],
        scale_a: Sequence[Any],
        scale_b: Sequence[Any],
        **how: Any,
    ) -> None:
        # Bytes, since not every function takes elements of 8 bits.
        kind, byte = a[0].dtype, torch.uint8
        super().__init__(torch, [each.view(byte) for each in a], [each.view(byte) for each in b])
        self.a, self.b = self.a.view(kind), self.b.view(kind)
        self._scales = (
            torch.cat([each.reshape(-1) for each in scale_a]),
            torch.stack([each.reshape(-1) for each in scale_b]),
        )
        self._how = how

    def multiply(self) -> Any:
        """As `GroupedOperands.multiply`."""
        return self._torch._scaled_grouped_mm(
            self.a, self.b, *self._scales, offs=self.ends, **self._how
        )
