"""Scales of operands that are spread over ranks: which of them belong to a part of an operand.

Everything here is in terms of lines: rows of A, and columns of B, whose scales are transposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemmkit.distributed.splits import Span
from gemmkit.scales import BLOCK, KINDS_OF_A, NONE, ScaleKind


@dataclass(frozen=True, slots=True)
class LineScales:
    """Scales of an operand's lines: as many rows of `array`, one of PyTorch's, as its kind has for
    them, by one column, or one for each chunk of k."""

    array: Any
    kind: ScaleKind

    def part(self, span: Span | None) -> Any:
        """The scales of some lines, or of all."""
        if span is None or self.kind.lines == 0:
            return self.array
        if self.kind.lines == 1:
            return self.array[span.start : span.stop]
        if span.start % BLOCK == 0:
            return self.array[span.start // BLOCK : -(-span.stop // BLOCK)]
        return self.by_line(span.stop).array[span.start :]

    def by_line(self, lines: int) -> LineScales:
        """The same with one row for each line, of which there are `lines`."""
        if self.kind.lines == 1:
            return self
        if self.kind.lines == 0:
            return LineScales(self.array.expand(lines, 1).contiguous(), kind_by_line(self.kind))
        repeated = self.array.repeat_interleave(BLOCK, 0)[:lines]
        return LineScales(repeated.contiguous(), kind_by_line(self.kind))


def kind_by_line(kind: ScaleKind) -> ScaleKind:
    """The kind with one row of scales for each line, and the same chunks of k."""
    return _BY_LINE[kind.of_chunks]


_BY_LINE = {each.of_chunks: each for each in KINDS_OF_A if each.lines == 1}


def kinds_of(shape: tuple[int, ...], lines: int, k: int) -> list[ScaleKind]:
    """Which kinds scales of a shape can be, for an operand of so many lines and so much k."""
    return [each for each in KINDS_OF_A if each != NONE and each.shape(lines, k) == shape]
