"""Scales of A and B: what quantized elements are multiplied by, one scale for many of them.

The scale of an element is that of its line (a row of A, a column of B), or of its block of 128
lines, and of its chunk of k. Those of A are a matrix of lines by chunks, those of B one of chunks
by lines, as `torch._scaled_mm` and DeepGEMM take them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.float8_products import CHUNK

# Lines of a block that has a scale.
BLOCK = 128


@dataclass(frozen=True, slots=True)
class ScaleKind:
    """How many elements of an operand share a scale: `lines` of them, 0 for all, and either all k
    or a chunk of 128."""

    name: str
    lines: int
    of_chunks: bool = False

    def shape(self, lines: Any, k: Any) -> tuple[Any, Any]:
        """How many scales an operand of so many lines has, along these and along k; or operands,
        by arrays of numbers."""
        along_lines = -(-lines // self.lines) if self.lines else 1
        return along_lines, -(-k // CHUNK) if self.of_chunks else 1


NONE = ScaleKind("none", 0)
TENSOR = ScaleKind("tensor", 0)
ROWS, COLUMNS = ScaleKind("rows", 1), ScaleKind("columns", 1)
ROW_CHUNKS, BLOCKS = ScaleKind("1x128", 1, True), ScaleKind("128x128", BLOCK, True)

KINDS_OF_A = (NONE, TENSOR, ROWS, ROW_CHUNKS, BLOCKS)
KINDS_OF_B = (NONE, TENSOR, COLUMNS, ROW_CHUNKS, BLOCKS)


@dataclass(frozen=True, slots=True)
class Scales:
    """How A and B are scaled; `str` writes what `parse` reads."""

    a: ScaleKind = NONE
    b: ScaleKind = NONE

    def __bool__(self) -> bool:
        return self.a != NONE or self.b != NONE

    def __str__(self) -> str:
        word = next((word for word, pair in _WORDS.items() if pair == (self.a, self.b)), None)
        return f"{self.a.name},{self.b.name}" if word is None else word

    @property
    def of_chunks(self) -> bool:
        """Whether chunks of k have scales of their own."""
        return self.a.of_chunks or self.b.of_chunks

    @property
    def transposed(self) -> Scales:
        """Those of the transposed product, Bᵀ·Aᵀ."""
        swapped = {ROWS: COLUMNS, COLUMNS: ROWS}
        return Scales(swapped.get(self.b, self.b), swapped.get(self.a, self.a))

    @classmethod
    def parse(cls, text: Any) -> Scales:
        """Read a word for both operands, or a word for each.

        Args:
            text: "tensor" for one scale of each operand, "rows" for one of each row of A and column
                of B, "blocks" for one of each 1×128 elements of A and 128×128 of B; or two of
                "none", "tensor", "rows" (of A), "columns" (of B), "1x128" and "128x128", separated
                by a comma. "1x128" are 128 neighbors along k, of B as well. Empty or None for
                unscaled operands; `Scales` are returned as they are.

        Raises:
            UsageError: it is neither.
            UnsupportedType: it is no text.
        """
        if isinstance(text, Scales):
            return text
        if text is None:
            return UNSCALED
        if not isinstance(text, str):
            raise UnsupportedType(
                f"scales = {text!r} is of type {type(text).__name__}: use 'tensor', 'rows' or "
                "'blocks'"
            )
        return _parsed(text.strip().lower())


UNSCALED = Scales()
_WORDS = {
    "": (NONE, NONE),
    "tensor": (TENSOR, TENSOR),
    "rows": (ROWS, COLUMNS),
    "blocks": (ROW_CHUNKS, BLOCKS),
}


@lru_cache(maxsize=64)
def _parsed(text: str) -> Scales:
    if text in _WORDS:
        return Scales(*_WORDS[text])
    if "," not in text:
        pairs = ", or one for each operand, such as 1x128,128x128"
        raise UsageError(unknown_name("scales", text, filter(None, _WORDS), pairs))
    words = [each.strip() for each in text.split(",")]
    if len(words) != 2:
        raise UsageError(f"'{text}' has {len(words)} words: give one for A and one for B")
    found = []
    for operand, word, kinds in zip("AB", words, (KINDS_OF_A, KINDS_OF_B), strict=True):
        kind = next((each for each in kinds if each.name == word), None)
        if kind is None:
            raise UsageError(unknown_name(f"scales of {operand}", word, [x.name for x in kinds]))
        found.append(kind)
    return Scales(*found)
