"""Comparisons, of integers and of floating-point numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.raw import Bits, Mask, Operation, integers, ones
from gemmkit.emulator.isa.semantics.rounding import FORMATS, decode, flush

Numbers = NDArray[Any]

# lo, ls, hi and hs are the unsigned lt, le, gt and ge.
_ORDERED: Mapping[str, Callable[[Numbers, Numbers], Mask]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_COMBINED: Mapping[str, Callable[[Mask, Mask], Mask]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _holds(form: Form, a: Bits, b: Bits) -> Mask:
    relation = form["C"]
    if form["T"] not in FORMATS:
        return _ORDERED[relation](integers(a, form.type), integers(b, form.type))
    kind = FORMATS[form["T"]]
    x, y = decode(a, kind), decode(b, kind)
    if form.modifiers.get("F"):
        x, y = flush(x, kind), flush(y, kind)
    unordered = np.isnan(x) | np.isnan(y)
    if relation == "num":
        return ~unordered
    if relation == "nan":
        return unordered
    if relation.endswith("u"):  # true for NaN as well; the others are false, `ne` too
        return _ORDERED[relation[:-1]](x, y) | unordered
    return _ORDERED[relation](x, y) & ~unordered


def _compare(form: Form, a: Bits, b: Bits) -> tuple[Mask, Mask]:
    holds = _holds(form, a, b)
    return holds, ~holds


def _compare_combine(form: Form, a: Bits, b: Bits, other: Mask) -> tuple[Mask, Mask]:
    holds, combine = _holds(form, a, b), _COMBINED[form["B"]]
    return combine(holds, other), combine(~holds, other)


def _compare_value(form: Form, a: Bits, b: Bits) -> Bits:
    """All ones where the relation holds, or 1.0 for a float result."""
    true = np.float32(1.0).view(np.uint32) if form["D"] == "f32" else ones(32)
    return np.where(_holds(form, a, b), true, np.uint32(0))


OPERATIONS: Mapping[str, Operation] = {
    "compare": _compare,
    "compare_combine": _compare_combine,
    "compare_value": _compare_value,
}
