"""What ranks hold of a matrix, and by which rules a product follows from it.

Words are DTensor's: S(0) and S(1) for shares of the rows or columns, R for all of the matrix on
each rank, P for matrices that add up to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from gemmkit.distributed.schedule import Form
from gemmkit.errors import UnsupportedProblem, UsageError

Word = Literal["S(0)", "S(1)", "R", "P"]

_BETWEEN = re.compile(r"\s+(?![^(]*\))")

# One, or one for each dimension of a mesh.
Words = Word | tuple[Word, ...]

_TRANSPOSED: dict[Word, Word] = {"S(0)": "S(1)", "S(1)": "S(0)", "R": "R", "P": "P"}


def read_placement(given: Any, dimensions: int = 2) -> Word:
    """A placement by its word, or as `torch.distributed.tensor` has it.

    `S(-1)` and the last of several dimensions count as columns, all others as rows.

    Raises:
        UsageError: it is none, or of a dimension that is not there.
    """
    kind = type(given).__name__
    text = str(given).strip().replace(" ", "") if isinstance(given, str) else ""
    if kind == "Replicate" or text.lower() in ("r", "replicate", "replicate()"):
        return "R"
    if kind == "Partial":
        if getattr(given, "reduce_op", "sum") != "sum":
            raise UnsupportedProblem(
                f"{given} is no sum of the ranks' matrices: redistribute it before the product"
            )
        return "P"
    if text.lower() in ("p", "partial", "partial()"):
        return "P"
    place: Any = getattr(given, "dim", None) if kind == "Shard" else _shard(text)
    if place is None:
        raise UsageError(
            f"placement {given!r}: use S(0), S(1), R or P, or those of torch.distributed.tensor"
        )
    if not -dimensions <= place < dimensions:
        raise UsageError(f"placement {given!r}: the matrix has {dimensions} dimensions")
    return "S(1)" if place % dimensions == dimensions - 1 else "S(0)"


def _shard(text: str) -> int | None:
    for before in ("S(", "Shard(", "s(", "shard("):
        inner = text.removeprefix(before).removesuffix(")").removeprefix("dim=")
        if text.startswith(before) and inner.lstrip("-").isdecimal():
            return int(inner)
    return None


def read_placements(text: str) -> tuple[tuple[Words, Words], Words | None]:
    """Those of A, B and the result, or None for it, from a text such as "S(0),S(1)->S(1)".

    On a mesh of several dimensions, each has a word for every one of them, such as
    "S(0) S(1),S(0) S(1)->S(0) S(1)".

    Raises:
        UsageError: it is not of this form.
    """
    operands, arrow, result = text.replace("→", "->").partition("->")
    given = operands.split(",")
    if len(given) != 2 or (arrow and not result.strip()):
        raise UsageError(
            f"'{text}' is no placement of a product: write A,B or A,B->C, such as S(0),S(1)->S(1)"
        )
    a, b, *c = (_read_words(each) for each in (*given, *([result] if arrow else [])))
    if len({1 if isinstance(each, str) else len(each) for each in (a, b, *c)}) > 1:
        raise UsageError(
            f"'{text}' has different numbers of placements: give one for each dimension of the "
            "mesh, such as S(0) S(1),S(0) S(1)->S(0) S(1)"
        )
    return (a, b), c[0] if c else None


def _read_words(text: str) -> Words:
    # Spaces may also stand within the parentheses of a word.
    first, *rest = (read_placement(each) for each in _BETWEEN.split(text.strip()))
    return (first, *rest) if rest else first


def transposed(word: Word) -> Word:
    """The placement of the transpose."""
    return _TRANSPOSED[word]


@dataclass(frozen=True, slots=True)
class Rule:
    """How ranks come from the placements of A and B to that of the result.

    First A and B are brought to `a` and `b`; then comes the product, of the `transposes` if it is
    B's columns that travel; it has the placement `made`, and is brought to `result`.
    """

    a: Word
    b: Word
    form: Form
    transposes: bool
    made: Word
    result: Word


# What is brought to another placement before the product.
_FIRST: dict[tuple[Word, Word], tuple[Word, Word]] = {
    # The other operand's part is at hand.
    ("S(1)", "R"): ("S(1)", "S(0)"),
    ("R", "S(0)"): ("S(1)", "S(0)"),
    # k of one operand is spread, and all of it needed.
    ("S(0)", "S(0)"): ("S(0)", "R"),
    ("S(1)", "S(1)"): ("R", "S(1)"),
    # Products of sums that are not complete would have terms of all pairs of ranks.
    ("P", "S(0)"): ("S(1)", "S(0)"),
    ("S(1)", "P"): ("S(1)", "S(0)"),
    ("P", "S(1)"): ("R", "S(1)"),
    ("S(0)", "P"): ("S(0)", "R"),
    ("P", "P"): ("R", "P"),
}

_LOCAL: dict[tuple[Word, Word], Word] = {
    ("R", "R"): "R",
    ("S(0)", "R"): "S(0)",
    ("R", "S(1)"): "S(1)",
    ("P", "R"): "P",
    ("R", "P"): "P",
}


def rule(
    a: Word, b: Word, wanted: Word | None = None, *, bytes_a: int = 0, bytes_b: int = 0
) -> Rule:
    """The rule for a product over one dimension of a mesh.

    Args:
        a: the placement of A.
        b: the placement of B.
        wanted: that of the result; by default what needs no communication after the product, with
            k split P, and if rows of A and columns of B are spread, what has the smaller of them
            travel.
        bytes_a: of all of A.
        bytes_b: of all of B.

    Raises:
        UnsupportedProblem: the result is not a sum of matrices, and would have to become one.
    """
    first = _FIRST.get((a, b), (a, b))
    if first == ("S(1)", "S(0)"):
        return _of_sums(*first, wanted)
    if first == ("S(0)", "S(1)"):
        by_rows = wanted == "S(0)" if wanted in ("S(0)", "S(1)") else bytes_b < bytes_a
        made: Word = "S(0)" if by_rows else "S(1)"
        return _checked(Rule(*first, "gather", by_rows, made, wanted or made))
    found = _LOCAL[first]
    return _checked(Rule(*first, "local", False, found, wanted or found))


def _of_sums(a: Word, b: Word, wanted: Word | None) -> Rule:
    if wanted in ("S(0)", "S(1)"):
        return Rule(a, b, "scatter", wanted == "S(1)", wanted, wanted)
    if wanted == "R":
        return Rule(a, b, "reduce", False, "R", "R")
    return Rule(a, b, "local", False, "P", "P")


def _checked(found: Rule) -> Rule:
    if found.result == "P" and found.made != "P":
        raise UnsupportedProblem(
            f"the result has the placement {found.made}, and P was asked for: no rank holds a "
            "part of a sum"
        )
    return found
