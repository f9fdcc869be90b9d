"""The element types of matrices: their names, sizes and largest numbers; precisions of fp32."""

from __future__ import annotations

from typing import Literal

FLOAT_BYTES = 4
LARGEST_DOUBLE = (2 - 2**-52) * 2.0**1023

# Element types, with their sizes in bytes. Narrower ones than float32 are accumulated in that.
Dtype = Literal["float32", "float64", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"]
# Those of 8 bits: of A and B, and of results that are rounded to nearest and saturate, see
# `GemmProblem`.
OPERAND_TYPES: tuple[Dtype, ...] = ("float8_e4m3", "float8_e5m2")
# Those that any matrix may have.
RESULT_TYPES: tuple[Dtype, ...] = ("float32", "float64", "float16", "bfloat16")

# How float32 is multiplied, the most precise first, and how tensor cores add up products of 8-bit
# types; see `GemmProblem`.
Precision = Literal["ieee", "fp32", "tf32", "fast"]
PRECISIONS: tuple[Precision, ...] = ("ieee", "fp32", "tf32")
OPERAND_PRECISIONS: tuple[Precision, ...] = ("ieee", "fast")
ALL_PRECISIONS: tuple[Precision, ...] = (*PRECISIONS, "fast")

# Other common names of types, including those of CUDA C++ and PTX.
_SHORT_NAMES = {
    "float16": ("half", "fp16", "f16", "__half"),
    "bfloat16": ("bf16", "__nv_bfloat16", "nv_bfloat16"),
    "float32": ("fp32", "f32", "single"),
    "float64": ("fp64", "f64", "double"),
    "tf32": ("tfloat32", "tensorfloat32"),
    "float8_e4m3": (
        *("fp8_e4m3", "e4m3", "float8_e4m3fn", "fp8_e4m3fn", "e4m3fn", "__nv_fp8_e4m3"),
    ),
    "float8_e5m2": ("fp8_e5m2", "e5m2", "__nv_fp8_e5m2"),
}
_FULL_NAMES = {short: full for full, names in _SHORT_NAMES.items() for short in names}
ITEM_BYTES: dict[Dtype, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}


def types_text(dtype: str, out_dtype: str, precision: str = "ieee", scales: str = "") -> str:
    """The short names of the types of A and B and of C: `fp32`, or `bf16 to fp32`; with another
    precision than ieee `fp32 (precision tf32)`, with scales `e4m3 to fp32 (scales blocks)`."""
    short = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
    short |= {each: each.removeprefix("float8_") for each in OPERAND_TYPES}
    names = dict.fromkeys(short.get(each, each) for each in (dtype, out_dtype))
    more = [f"precision {precision}"] if precision != "ieee" else []
    more += [f"scales {scales}"] if scales else []
    return " to ".join(names) + (f" ({', '.join(more)})" if more else "")


def default_result_type(dtype: Dtype) -> Dtype:
    """The type of C where none is given, for A and B of a type."""
    return "float32" if dtype in OPERAND_TYPES else dtype


def is_narrow(dtype: str | None) -> bool:
    """Whether a type is one of 8 bits."""
    return dtype in OPERAND_TYPES


def bias_type(out_dtype: Dtype) -> Dtype:
    """The type of a bias beside results of a type: the same, for results of 8 bits float32."""
    return "float32" if is_narrow(out_dtype) else out_dtype


def precisions_of(dtype: str) -> tuple[Precision, ...]:
    """The precisions that products of matrices of a type can have, the highest first."""
    if dtype == "float32":
        return PRECISIONS
    return OPERAND_PRECISIONS if dtype in OPERAND_TYPES else ("ieee",)


def is_precise_enough(own: Precision, wanted: Precision) -> bool:
    """Whether what multiplies float32 in a precision of its own serves where another is wanted."""
    return PRECISIONS.index(own) <= PRECISIONS.index(wanted)


def full_type_name(name: str) -> str:
    """The full name of a type for a shorter one, such as `half` or `bf16`.

    Anything else is returned unchanged.
    """
    return _FULL_NAMES.get(name.strip().lower(), name)


def types_of_8_bits(beginning: str) -> list[str]:
    """Names of the types of 8 bits that begin as a name does, such as `fp8`, one for each type;
    none unless it says that it means those."""
    wanted = beginning.strip().lower()
    found = (
        next((each for each in (full, *_SHORT_NAMES[full]) if each.startswith(wanted)), "")
        for full in OPERAND_TYPES
    )
    return [each for each in found if each] if "8" in wanted else []


def is_type_name(name: str) -> bool:
    """Whether a full name is that of a type which this module has other names for."""
    return name in _SHORT_NAMES
