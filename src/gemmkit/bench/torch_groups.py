"""`torch._grouped_mm`: PyTorch's kernel for the experts of a mixture, which takes their rows in one
matrix and their weights in another of three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmkit.problem import GemmProblem

# What it wants rows to begin at multiples of, in bytes.
_UNIT = 16
# The first compute capability that every release with the function has a kernel for.
SINCE = (9, 0)


def why_not_grouped(torch: Any, ordinal: int, problem: GemmProblem) -> str:
    """Why it does not multiply a problem's groups on a GPU; empty if it does."""
    if not hasattr(torch, "_grouped_mm"):
        return "this PyTorch has no torch._grouped_mm"
    if reason := why_not_experts(torch, ordinal, problem):
        return reason
    narrow = problem.dtype == problem.result_dtype == "bfloat16"
    return "" if narrow else "it is for bfloat16 alone"


def why_not_experts(torch: Any, ordinal: int, problem: GemmProblem) -> str:
    """Why PyTorch has no kernel for groups on a GPU, whatever their types are; empty if it has."""
    groups = problem.groups
    if torch.cuda.get_device_capability(ordinal) < SINCE:
        return "its kernel is for Hopper and later boards"
    if groups is None or not groups.count or not problem.flops:
        return "no products of groups"
    if problem.transa or problem.transc:
        return "rows of A and C alone have an expert"
    if (problem.alpha, problem.beta, str(problem.epilogue)) != (1, 0, "none"):
        return "it has neither alpha nor beta nor an epilogue"
    n, k = groups.n, groups.k
    if (n != n[0]).any() or (k != k[0]).any():
        return "all products have one n and one k"
    if int(n[0]) * problem.item_bytes % _UNIT or int(k[0]) * problem.item_bytes % _UNIT:
        return f"n and k are multiples of {_UNIT // problem.item_bytes}"
    return ""


class GroupedOperands:
    """A and B of groups as `torch._grouped_mm` takes them: copies, made once.

    Args:
        torch: PyTorch.
        a, b: matrices of each product, m×k and k×n; the m may differ. The neighbors in memory of B
            stay what they are, along k or along n.
    """

    def __init__(self, torch: Any, a: Sequence[Any], b: Sequence[Any]) -> None:
        self._torch = torch
        self.rows = [each.shape[0] for each in a]
        self.a = torch.cat(list(a))
        along_k = all(each.stride(0) == 1 for each in b)
        self.b = torch.stack([each.mT for each in b]).mT if along_k else torch.stack(list(b))
        self.ends = torch.tensor(self.rows, device=self.a.device).cumsum(0, dtype=torch.int32)

    def multiply(self) -> Any:
        """The rows of all products, in an array that PyTorch allocates."""
        return self._torch._grouped_mm(self.a, self.b, offs=self.ends)

    def multiply_into(self, c: Sequence[Any]) -> None:
        """The same, copied to the results of each product."""
        for target, rows in zip(c, self.multiply().split(self.rows), strict=True):
            target.copy_(rows)
