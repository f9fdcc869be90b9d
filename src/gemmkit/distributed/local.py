"""A rank's own products, by `gemmkit.matmul`, and sums of what several ranks have computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmkit.distributed.splits import Span
from gemmkit.epilogue import Epilogue
from gemmkit.ops.matmul import matmul

# `gemmkit.matmul`, or what takes the same arguments.
Engine = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LocalProduct:
    """Multiplies lines by the fixed operand; `transposed` if the lines are columns of the result.

    `bias` and `residual` belong to this rank's result: a column bias has as many elements as that
    has columns.
    """

    alpha: float = 1.0
    epilogue: Epilogue | None = None
    bias: Any = None
    residual: Any = None
    precision: str | None = None
    device: Any = None
    transposed: bool = False
    engine: Engine = matmul

    def __call__(self, lines: Any, fixed: Any, out: Any, sums: Any, span: Span | None) -> None:
        """As `Multiply`."""
        given = self.options
        if span is not None:
            given |= self._epilogue(span)
        if self.transposed:
            lines, fixed, out = fixed.T, lines.T, out.T
            sums = None if sums is None else sums.T
        if sums is not None and "residual" not in given and (span is None or self.is_linear):
            # Read by the write-back; what is added before an activation is copied to `out` first.
            given["residual"] = sums
        elif sums is not None:
            given |= {"c": sums, "beta": 1.0}
        self.engine(lines, fixed, out=out, **given)

    @property
    def options(self) -> dict[str, Any]:
        """What is given to the engine for each product, but for arrays and the epilogue."""
        given: dict[str, Any] = {}
        if self.alpha != 1:
            given["alpha"] = self.alpha
        if self.precision is not None:
            given["precision"] = self.precision
        if self.device is not None:
            given["device"] = self.device
        return given

    def _epilogue(self, span: Span) -> dict[str, Any]:
        """What follows the product, for some lines of the result."""
        given: dict[str, Any] = {}
        if self.epilogue is not None:
            given["epilogue"] = self.epilogue
        if self.bias is not None:
            by_rows = self.epilogue is not None and self.epilogue.bias == "row"
            along_lines = by_rows != self.transposed
            given["bias"] = self.bias[span.start : span.stop] if along_lines else self.bias
        if self.residual is not None:
            part = slice(span.start, span.stop)
            given["residual"] = self.residual[:, part] if self.transposed else self.residual[part]
        return given

    @property
    def is_linear(self) -> bool:
        """Whether the results of ranks can be added up after their products: no activation."""
        chosen = self.epilogue
        return chosen is None or (chosen.activation == "none" and chosen.scale == 1)

    @property
    def has_epilogue(self) -> bool:
        """Whether anything follows the sums of all ranks."""
        return self.bias is not None or self.residual is not None or not self.is_linear

    def finish(self, sums: Any) -> None:
        """Apply bias and residual in place to the sums of all ranks."""
        self.add([sums], sums, Span(0, len(sums)))

    def add(self, terms: list[Any], out: Any, span: Span) -> None:
        """Write the sum of arrays, in their order, with bias and residual.

        It is accumulated in fp32 at least, and rounded to the result's type once.
        """
        given = self._epilogue(span)
        if len(terms) == 2 and "bias" not in given and "residual" not in given:
            _add_into(out, *terms)
            return
        total = _wide(terms[0])
        for term in terms[1:]:
            total = total + _wide(term)
        if "bias" in given:
            bias = _wide(given["bias"])
            by_lines = len(bias) == len(out) and self._bias_along_lines
            total = total + (bias[:, None] if by_lines else bias)
        if "residual" in given:
            residual = _wide(given["residual"])
            total = total + (residual.T if self.transposed else residual)
        out[:] = total

    @property
    def _bias_along_lines(self) -> bool:
        by_rows = self.epilogue is not None and self.epilogue.bias == "row"
        return by_rows != self.transposed


def _add_into(out: Any, one: Any, other: Any) -> None:
    if isinstance(out, np.ndarray):
        np.add(one, other, out=out)
    else:
        sys.modules["torch"].add(one, other, out=out)


def _wide(array: Any) -> Any:
    """An array in a type in which several of its elements are added without much loss."""
    if array.dtype.itemsize >= 4:
        return array
    return array.astype("float32") if hasattr(array, "astype") else array.float()
