"""`math_pipe`: what multiplies in compiled code, whose peak a measured speed is a share of."""

from __future__ import annotations

import re

from gemmkit.gpu import FP32, MathPipe
from gemmkit.problem import GemmProblem

_TENSOR = re.compile(r"\b(?:mma\.sync|wmma\.mma|wgmma\.mma_async)[\w.]*")


def math_pipe(ptx: str, problem: GemmProblem) -> MathPipe:
    """The tensor cores where the PTX uses them, else the FMA lanes of the type of the sums.

    A kernel counts by the types of its `mma` instructions, whatever it is given; those that name no
    other type are `wmma` of float16. Integers count as fp32.
    """
    found = {part for opcode in _TENSOR.findall(ptx) for part in opcode.split(".")}
    if "f64" in found:
        return MathPipe("float64", tensor=True)
    if found & {"e4m3", "e5m2"}:
        return MathPipe("float8", tensor=True)
    if "bf16" in found:
        return MathPipe("bfloat16", tensor=True)
    if "tf32" in found:
        return MathPipe("tfloat32", tensor=True)
    if found and not found & {"s8", "u8", "s4", "u4", "b1"}:
        return MathPipe("float16", tensor=True)
    return MathPipe("float64") if problem.sum_dtype == "float64" else FP32
