"""α and β in the types of the parameters and variables that take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gemmkit.dtypes import Dtype
from gemmkit.problem import GemmProblem

_TYPES: Mapping[Dtype, type[np.floating]] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
}


def encoded(value: float, dtype: Dtype) -> np.generic:
    """A number rounded to a type, to nearest, as stored: bfloat16 as the 16 bits of a `uint16`."""
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return _TYPES[dtype](value)
        bits = int(np.float32(value).view(np.uint32))
    # α and β are finite: no NaN is rounded here.
    return np.uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def rounded(value: float, dtype: Dtype) -> float:
    """A number rounded to a type, to nearest."""
    found = encoded(value, dtype)
    if dtype == "bfloat16":
        return float(np.uint32(int(found) << 16).view(np.float32))
    return float(found)


def is_narrow(value: float) -> bool:
    """Whether every type holds a number exactly, so that none of them changes it."""
    narrow: tuple[Dtype, ...] = ("float16", "bfloat16")
    return all(rounded(value, dtype) == value for dtype in narrow)


def as_passed(problem: GemmProblem, types: Mapping[str, tuple[Dtype, ...]]) -> GemmProblem:
    """The problem with the α and β that arrive through parameters of these types.

    The problem itself where that changes neither: both count as rounded to the type of the sums.
    """
    changed: dict[str, Any] = {}
    for name, through in types.items():
        given = rounded(getattr(problem, name), problem.sum_dtype)
        value = given
        for dtype in through:
            value = rounded(value, dtype)
        if value != given and np.isfinite(value):
            changed[name] = value
    return replace(problem, **changed) if changed else problem
