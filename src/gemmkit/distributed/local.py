"""A rank's own products, by `gemmkit.matmul`, and sums of what several ranks have computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemmkit.distributed.scale_parts import LineScales
from gemmkit.distributed.splits import Span
from gemmkit.epilogue import Epilogue
from gemmkit.ops.allgather import GatheredRows, multiply_gathered
from gemmkit.ops.matmul import matmul

# `gemmkit.matmul`, or what takes the same arguments.
Engine = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LocalProduct:
    """Multiplies lines by the fixed operand; `transposed` if the lines are columns of the result.

    `bias`, `residual` and `c` belong to this rank's result: a column bias has as many elements as
    that has columns. `beta` · `c` is added once, with the bias. `scale_lines` are the scales of all
    lines of the split side, `scale_fixed` those of the fixed operand, of which the lines are
    columns, or rows if it is `transposed`.
    """

    alpha: float = 1.0
    epilogue: Epilogue | None = None
    bias: Any = None
    residual: Any = None
    precision: str | None = None
    device: Any = None
    transposed: bool = False
    engine: Engine = matmul
    c: Any = None
    beta: float = 0.0
    scale_lines: LineScales | None = None
    scale_fixed: LineScales | None = None

    def __call__(
        self,
        lines: Any,
        fixed: Any,
        out: Any,
        sums: Any,
        span: Span | None,
        place: Span | None = None,
    ) -> None:
        """As `Multiply`."""
        given = self.options
        if self.scale_lines is not None or self.scale_fixed is not None:
            given |= self._scales(place)
        if span is not None:
            given |= self._epilogue(span)
        added = None if span is None or self.c is None else self._part(self.c, span)
        if self.transposed:
            lines, fixed, out = fixed.T, lines.T, out.T
            sums = None if sums is None else sums.T
        if sums is not None and added is not None and ("residual" in given or not self.is_linear):
            # The write-back reads two matrices at most, of which one follows the activation.
            added, sums = None, _scaled_sum(sums, added, self.beta)
        read = "residual" not in given and (span is None or self.is_linear)
        if added is not None:
            given |= {"c": added, "beta": self.beta}
            if sums is not None:
                given["residual"] = sums
        elif sums is not None and read and sums is not out:
            # Read by the write-back; what is added before an activation is copied to `out` first.
            given["residual"] = sums
        elif sums is not None:
            given |= {"c": sums, "beta": 1.0}
        self.engine(lines, fixed, out=out, **given)

    def under_gather(self, lines: GatheredRows, fixed: Any, out: Any, span: Span) -> bool:
        """As `Multiply.under_gather`."""
        scaled = self.scale_lines is not None or self.scale_fixed is not None
        if self.engine is not matmul or self.device is not None or scaled:
            return False
        given = self.options | self._epilogue(span)
        if self.c is not None:
            given |= {"c": self._part(self.c, span), "beta": self.beta}
        if self.transposed:
            fixed, out = fixed.T, out.T
        return multiply_gathered(lines, fixed, out, transposed=self.transposed, **given)

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

    def _scales(self, place: Span | None) -> dict[str, Any]:
        """Those of some lines, by the engine's names for them."""
        lines, fixed = self.scale_lines, self.scale_fixed
        of_lines = None if lines is None else lines.part(place)
        of_fixed = None if fixed is None else fixed.part(None)
        scale_a, scale_b = (of_fixed, of_lines) if self.transposed else (of_lines, of_fixed)
        return {
            name: each
            for name, each in (
                ("scale_a", scale_a),
                ("scale_b", None if scale_b is None else scale_b.T),
            )
            if each is not None
        }

    def _part(self, matrix: Any, span: Span) -> Any:
        """Some lines of a matrix that lies as the result."""
        part = slice(span.start, span.stop)
        return matrix[:, part] if self.transposed else matrix[part]

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
            given["residual"] = self._part(self.residual, span)
        return given

    @property
    def is_linear(self) -> bool:
        """Whether the results of ranks can be added up after their products: no activation."""
        chosen = self.epilogue
        return chosen is None or (chosen.activation == "none" and chosen.scale == 1)

    @property
    def has_epilogue(self) -> bool:
        """Whether bias, residual or an activation follow the sums of all ranks."""
        return self.bias is not None or self.residual is not None or not self.is_linear

    @property
    def adds_once(self) -> bool:
        """Whether anything is added to the sums of all ranks: of an epilogue, or β·C."""
        return self.c is not None or self.has_epilogue

    @property
    def of_sums(self) -> LocalProduct:
        """The product alone, whose results are added up before anything follows."""
        if not self.adds_once:
            return self
        return replace(self, bias=None, residual=None, epilogue=None, c=None, beta=0.0)

    def finish(self, sums: Any) -> None:
        """Apply β·C, bias and residual in place to the sums of all ranks."""
        self.add([sums], sums, Span(0, len(sums)))

    def add(self, terms: list[Any], out: Any, span: Span) -> None:
        """Write the sum of arrays, in their order, with β·C, bias and residual.

        It is accumulated in fp32 at least, and rounded to the result's type once.
        """
        given = self._epilogue(span)
        bare = self.c is None and "bias" not in given and "residual" not in given
        if bare and len(terms) > 1:
            _add_into(out, terms)
            return
        total = _added(terms)
        if self.c is not None:
            c = _wide(self._part(self.c, span))
            total = _scaled_sum(total, c.T if self.transposed else c, self.beta)
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


def _scaled_sum(one: Any, other: Any, factor: float) -> Any:
    """one + factor · other."""
    if isinstance(one, np.ndarray):
        return one + one.dtype.type(factor) * other
    return sys.modules["torch"].add(one, other, alpha=factor)


def _added(terms: list[Any]) -> Any:
    """The sum of arrays, in their order and in fp32 at least; of one, maybe the array itself."""
    first, *rest = terms
    total = _wide(first)
    for term in rest:
        # Terms of 16 bits are read as they are.
        if total is first:
            total = total + term
        else:
            total += term
    return total


def _add_into(out: Any, terms: list[Any]) -> None:
    """Write the sum of two arrays or more, in their order: in as few passes as there are."""
    if len(terms) == 2 and terms[0].dtype == out.dtype:
        # Rounded once, as well.
        one, other = terms
    else:
        one, other = _added(terms[:-1]), terms[-1]
    if isinstance(out, np.ndarray):
        out[:] = one + other
    else:
        sys.modules["torch"].add(one, other, out=out)


def _wide(array: Any) -> Any:
    """An array in a type in which several of its elements are added without much loss."""
    if array.dtype.itemsize >= 4:
        return array
    return array.astype("float32") if hasattr(array, "astype") else array.float()
