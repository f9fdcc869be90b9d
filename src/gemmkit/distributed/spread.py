"""A product over ranks, as one of them asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.placements import Word
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team
from gemmkit.epilogue import Epilogue
from gemmkit.ops.libraries.torch_checks import result_type
from gemmkit.ops.operands import read_dtype

# Of the result of a product with nothing after it.
_PLAIN = Epilogue()


@dataclass(frozen=True, slots=True)
class SpreadProduct:
    """A product over ranks: this rank's parts, and for each dimension of the mesh a team and the
    placements of A, B and the result, None for what follows from A and B. `whole` are the sizes of
    all of A and B, where the caller knows them; `part` the rows and columns that this rank is to
    have of the result, by default as `torch.chunk` spreads them."""

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

    @property
    def dtype(self) -> Any:
        """The type of the result."""
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
