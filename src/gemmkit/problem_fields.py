"""What the fields of a problem may be: other types are accepted where they mean the same.

A problem is made at each call of the library, nearly always of plain Python numbers: `are_usual`
recognizes these quickly; only otherwise is each field looked at.
"""

from __future__ import annotations

from itertools import product
from numbers import Integral, Real
from types import NoneType
from typing import Any

from gemmkit.dtypes import (
    ALL_PRECISIONS,
    ITEM_BYTES,
    OPERAND_TYPES,
    PRECISIONS,
    RESULT_TYPES,
    Dtype,
    Precision,
    full_type_name,
    is_narrow,
    is_type_name,
    precisions_of,
    types_of_8_bits,
)
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.scales import BLOCKS, ROW_CHUNKS, UNSCALED, Scales

_INTEGERS = (
    *("m", "n", "k", "lda", "ldb", "ldc", "batch", "stride_a", "stride_b", "stride_c", "alignment"),
)
_NUMBERS = ("alpha", "beta")
_FLAGS = ("transa", "transb", "transc")

_USUAL = frozenset(
    (
        *(*(int,) * len(_INTEGERS), *numbers, *(bool,) * len(_FLAGS)),
        *(Epilogue, str, out_dtype, str, str),
    )
    for numbers in product((float, int), repeat=len(_NUMBERS))
    for out_dtype in (NoneType, str)
)


def are_usual(p: Any) -> bool:
    """Whether all fields have the very types that they are declared with."""
    return (
        *(type(p.m), type(p.n), type(p.k), type(p.lda), type(p.ldb), type(p.ldc), type(p.batch)),
        *(type(p.stride_a), type(p.stride_b), type(p.stride_c), type(p.alignment)),
        *(type(p.alpha), type(p.beta), type(p.transa), type(p.transb), type(p.transc)),
        *(type(p.epilogue), type(p.dtype), type(p.out_dtype), type(p.precision)),
        type(p.prepared),
    ) in _USUAL


def converted(problem: Any) -> dict[str, Any]:
    """The fields with the types that they are declared with: NumPy's numbers become Python's, and
    a text becomes an epilogue.

    Raises:
        UnsupportedType: a field has a type that does not mean the same.
        UsageError: the text is not an epilogue.
    """
    found: dict[str, Any] = {}
    for name in _INTEGERS:
        given = getattr(problem, name)
        # True is an Integral, and never meant as a size.
        if isinstance(given, bool) or not isinstance(given, Integral):
            raise _refusal(name, given, "an integer")
        found[name] = int(given)
    for name in _NUMBERS:
        given = getattr(problem, name)
        if isinstance(given, bool) or not isinstance(given, Real):
            raise _refusal(name, given, "a number")
        found[name] = given if isinstance(given, (int, float)) else float(given)
    for name in _FLAGS:
        given = getattr(problem, name)
        if not (isinstance(given, bool) or type(given).__name__ in ("bool_", "bool")):
            raise _refusal(name, given, "True or False")
        found[name] = bool(given)
    epilogue: Any = problem.epilogue
    if isinstance(epilogue, str):
        epilogue = Epilogue.parse(epilogue)
    elif epilogue is None:
        epilogue = Epilogue()
    elif not isinstance(epilogue, Epilogue):
        raise _refusal("epilogue", epilogue, "an Epilogue, or words such as 'bias+relu'")
    found["epilogue"] = epilogue
    if not isinstance(problem.precision, str):
        raise _refusal("precision", problem.precision, f"one of {', '.join(ALL_PRECISIONS)}")
    if not isinstance(problem.prepared, str):
        raise _refusal("prepared", problem.prepared, "'a', 'b' or 'ab'")
    # Types of NumPy and PyTorch have the name in them: `numpy.float32`, `torch.float32`.
    for name in ("dtype", "out_dtype"):
        dtype: Any = getattr(problem, name)
        if dtype is not None or name == "dtype":
            found[name] = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")
    return found


def known_type(field: str, name: str) -> str:
    """The full name of a type: `float16` for `fp16`.

    Raises:
        UnsupportedType: it is unknown, or no type of the matrices of a problem.
    """
    full = full_type_name(name)
    if full not in ITEM_BYTES and is_type_name(full):
        raise UnsupportedType(
            f"{field} '{name}' is not supported for matrices: use one of {', '.join(ITEM_BYTES)}"
        )
    if full not in ITEM_BYTES:
        begun = types_of_8_bits(name)
        if begun:
            raise UnsupportedType(
                f"unknown {field} '{name}', which does not say how many bits the exponent has: did "
                f"you mean {' or '.join(begun)}?"
            )
        raise UnsupportedType(unknown_name(field, name, ITEM_BYTES))
    return full


def known_result_type(name: str) -> Dtype:
    """The full name of the type of C.

    Raises:
        UnsupportedType: it is unknown.
    """
    found = known_type("out_dtype", name)
    return next(each for each in (*RESULT_TYPES, *OPERAND_TYPES) if each == found)


def check_narrow_result(dtype: str, beta: float, epilogue: Epilogue, out_dtype: str) -> None:
    """See that products whose results have 8 bits, and those alone, have what goes with these.

    Raises:
        UsageError: they add to C, or have a residual or an auxiliary output, which would have 8
            bits too, without a scale; or others have a scale in memory.
        UnsupportedType: their sums are fp64.
    """
    if not is_narrow(out_dtype):
        if epilogue.scale_result:
            raise UsageError(
                f"scale_result is of results of {' and '.join(OPERAND_TYPES)}, not {out_dtype}: "
                "the epilogue's scale multiplies others"
            )
        return
    if dtype == "float64":
        raise UnsupportedType(f"products of float64 have no results of {out_dtype}: use float32")
    if beta != 0 or epilogue.residual or epilogue.auxiliary:
        other = "C" if beta != 0 else "a residual" if epilogue.residual else "an auxiliary output"
        raise UsageError(
            f"results of {out_dtype} go without {other}, which would have that type and no scale: "
            "use another out_dtype"
        )


def known_precision(name: str, dtype: str) -> Precision:
    """The precision of products of matrices of a type; case does not matter.

    Raises:
        UsageError: it is unknown, or one that only products of another type have.
    """
    found = next((each for each in ALL_PRECISIONS if each == name.strip().lower()), None)
    own = precisions_of(dtype)
    if found is None:
        raise UsageError(unknown_name("precision", name, own if len(own) > 1 else ALL_PRECISIONS))
    if found not in own:
        types = "float32" if found in PRECISIONS else " and ".join(OPERAND_TYPES)
        remedy = f"use one of {', '.join(own)}" if len(own) > 1 else "leave it out"
        raise UsageError(
            f"precision '{found}' is of products of {types}, and A and B are of {dtype}: {remedy}"
        )
    return found


def known_operands(names: str) -> str:
    """The names of A and B, "a", "b" or "ab", as they were given: in any order and case, and with
    commas.

    Raises:
        UsageError: they are of something else.
    """
    letters = set(names.lower().replace(",", "").replace(" ", ""))
    if not letters <= {"a", "b"}:
        raise UsageError(f"prepared operands '{names}': use a, b or ab")
    return "".join(sorted(letters))


def known_scales(problem: Any) -> Scales:
    """The scales of a problem's operands; None and "" mean none.

    Raises:
        UsageError: they are unknown, or the problem cannot have any.
    """
    found = Scales.parse(problem.scales)
    if not found:
        return UNSCALED
    if problem.dtype not in OPERAND_TYPES:
        raise UsageError(
            f"scales are of A and B of {' and '.join(OPERAND_TYPES)}, not {problem.dtype}: alpha "
            "scales products of other types"
        )
    if found.a == BLOCKS and problem.groups is not None and problem.groups.ragged:
        raise UsageError(
            f"ragged groups have no scales of {BLOCKS.name} elements of A, whose blocks of rows "
            f"belong to several: use {ROW_CHUNKS.name}"
        )
    return found


def transpositions(layout: str) -> dict[str, Any]:
    """The fields that a layout, as in `GemmProblem.layout`, stands for."""
    return {"transa": layout[0] == "t", "transb": layout[1] == "t", "transc": layout[2:] == "t"}


def _refusal(name: str, given: object, wanted: str) -> UnsupportedType:
    return UnsupportedType(f"{name} = {given!r} is of type {type(given).__name__}: use {wanted}")
