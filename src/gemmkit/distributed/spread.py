"""A product over ranks, as one of them asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.placements import Word
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.libraries.torch import read
from gemmkit.ops.libraries.torch_checks import check_alike, check_together, result_type
from gemmkit.ops.operands import known_dtype, read_dtype
from gemmkit.ops.request import share_memory

# Of the result of a product with nothing after it.
_PLAIN = Epilogue()


@dataclass(frozen=True, slots=True)
class SpreadProduct:
    """A product over ranks: this rank's parts, and for each dimension of the mesh a team and the
    placements of A, B and the result, None for what follows from A and B. `whole` are the sizes of
    all of A and B, where the caller knows them; `part` the rows and columns that this rank is to
    have of the result, by default as `torch.chunk` spreads them. `out` is where it goes, `scale_a`
    and `scale_b` are the scales of this rank's parts, two-dimensional; `placed` are the names and
    placements of arrays that must be placed as the result, where they have placements of their own.
    """

    a: Any
    b: Any
    teams: tuple[Team, ...]
    placements: tuple[tuple[Word, Word], ...]
    wanted: tuple[Word | None, ...]
    product: LocalProduct = field(default_factory=LocalProduct)
    out_dtype: Any = None
    strategy: Strategy | None = None
    whole: tuple[int, ...] = ()
    part: tuple[int, ...] = ()
    out: Any = None
    scale_a: Any = None
    scale_b: Any = None
    placed: tuple[tuple[str, tuple[Word, ...]], ...] = ()

    @property
    def arrays_beside(self) -> tuple[tuple[str, Any], ...]:
        """The names of arrays beside A and B, and this rank's parts of them, None of those that
        there are not."""
        product = self.product
        return (
            ("bias", product.bias),
            ("residual", product.residual),
            ("c", product.c),
            ("out", self.out),
            ("scale_a", self.scale_a),
            ("scale_b", self.scale_b),
        )

    @property
    def shapes_beside(self) -> tuple[tuple[str, tuple[int, ...] | None], ...]:
        """Their names and shapes."""
        return tuple(
            (name, None if each is None else tuple(each.shape)) for name, each in self.arrays_beside
        )

    def check(self) -> None:
        """Refuse what is wrong with this rank's arrays, whatever the other ranks have.

        Raises:
            UsageError: there is something.
        """
        for name, each in (("a", self.a), ("b", self.b)):
            if each.dim() != 2:
                raise UsageError(f"{name} has {each.dim()} dimensions: over ranks, matrices have 2")
        check_alike(a=self.a, b=self.b)
        beside = {name: each for name, each in self.arrays_beside if each is not None}
        if not beside:
            return
        check_together(a=self.a, **beside)
        known = known_dtype(_name(self.a.dtype), "a")
        for name, each in beside.items():
            wanted = torch.float32 if name.startswith("scale") else self.dtype
            if each.dtype != wanted:
                raise UnsupportedType(
                    f"{name} has type {each.dtype} and must have {wanted}: convert it with .to()"
                )
            if name.startswith("scale") and known not in OPERAND_TYPES:
                raise UsageError(
                    f"{name} is for a and b of {' and '.join(OPERAND_TYPES)}, not "
                    f"{known}: alpha scales products of other types"
                )
        if self.out is not None:
            for name, each in (("a", self.a), ("b", self.b)):
                if share_memory(read(self.out.detach(), "out"), read(each.detach(), name)):
                    raise UsageError(
                        f"out overlaps {name} in memory, which is still read when out is written: "
                        "give another array"
                    )

    @property
    def dtype(self) -> Any:
        """The type of the result."""
        if self.out_dtype is None and self.out is not None:
            return self.out.dtype
        if self.out_dtype is None:
            return result_type(self.a)
        return getattr(torch, read_dtype(self.out_dtype))

    @property
    def epilogue(self) -> Epilogue:
        """What follows the complete sums."""
        chosen = self.product.epilogue or _PLAIN
        if self.product.bias is not None and not chosen.bias:
            chosen = replace(chosen, bias="column")
        if self.product.residual is not None and not chosen.residual:
            chosen = replace(chosen, residual=True)
        return chosen


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
