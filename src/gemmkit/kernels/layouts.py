"""Layouts of A, B and C as users write them: BLAS's letters, in row-major or column-major order."""

from __future__ import annotations

import re

from gemmkit.errors import UsageError, unknown_name

# BLAS's letters; `col` alone is all three matrices column-major.
_WRITTEN = re.compile(r"(?:(row|col)(?:umn)?(?:[-_ ]?major)?)?[-_:, ]*([nt]{2})?")

_NAMES = ("NN", "NT", "TN", "TT", "col", "col-NT", "col-TN", "col-TT")


def read_layout(text: str) -> str:
    """The layout in the form of `GemmProblem.layout` that a text means, upper or lower case.

    `NN`, `NT`, `TN` and `TT` say of A and of B whether memory holds the matrix (N) or its
    transpose (T), row by row, and C is row-major. With `col` in front, as in `col-NT`, the letters
    are those of column-major BLAS, and C is column-major too; `col` alone is `col-NN`.

    Raises:
        UsageError: the text is none of these.
    """
    found = _WRITTEN.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        meaning = ": A and B row-major (N) or transposed (T), after col of column-major matrices"
        raise UsageError(unknown_name("layout", text, _NAMES, meaning))
    order, letters = found.groups()
    letters = letters or "nn"
    if order == "col":
        # What column-major order calls plain is transposed in row-major order.
        return letters.translate(str.maketrans("nt", "tn")) + "t"
    return str(letters)


def layout_text(layout: str) -> str:
    """A layout of `GemmProblem` as `read_layout` takes it: `NT`, or `col-NT`."""
    if layout.endswith("t") and len(layout) == 3:
        return "col-" + layout[:2].translate(str.maketrans("nt", "tn")).upper()
    return layout.upper()
