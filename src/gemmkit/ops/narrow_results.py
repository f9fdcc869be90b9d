"""What goes with results of 8 bits: a bias of float32, and a scale of all results."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from gemmkit.dtypes import OPERAND_TYPES, Dtype, bias_type, is_narrow
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.operands import Operand, read_dtype

SCALE_RESULT = "scale_result"


def check_bias_type(operand: Operand, out_dtype: Dtype) -> None:
    """Check the type of a bias beside results of 8 bits.

    Raises:
        UnsupportedType: it is not that.
    """
    if operand.dtype != (wanted := bias_type(out_dtype)):
        raise UnsupportedType(
            f"bias has type {operand.dtype}: beside results of {out_dtype} it is {wanted}"
        )


def check_scale(operand: Operand) -> None:
    """Check that a scale of results is one number of float32.

    Raises:
        UsageError: it is not; UnsupportedType for another type.
    """
    if operand.dtype != "float32":
        raise UnsupportedType(f"{SCALE_RESULT} has type {operand.dtype}: scales are float32")
    if prod(operand.view.shape) != 1:
        raise UsageError(
            f"{SCALE_RESULT} has the shape {operand.view.shape}: give one number for all results"
        )


def scaled_by(scale: float, epilogue: Epilogue, out: Any, out_dtype: Any) -> Epilogue:
    """The epilogue of results of 8 bits that are multiplied by a number as well: its own scale,
    for there is no residual, times that.

    Raises:
        UsageError: the results have another type, or the product is not finite.
        UnsupportedType: `out_dtype` is no type of results.
    """
    wanted = getattr(out, "dtype", None) if out_dtype is None else out_dtype
    if wanted is None or not is_narrow(read_dtype(wanted, narrow=True)):
        raise UsageError(
            f"{SCALE_RESULT} is of results of {' and '.join(OPERAND_TYPES)}: give out_dtype, or "
            "use the epilogue's scale for others"
        )
    return replace(epilogue, scale=epilogue.scale * scale)
