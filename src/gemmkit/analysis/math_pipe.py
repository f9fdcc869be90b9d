"""`math_pipe`: what multiplies in compiled code, whose peak a measured speed is a share of."""

from __future__ import annotations

import re

from gemmkit.gpu import FP32, MathPipe
from gemmkit.problem import GemmProblem

_TENSOR = re.compile(r"\b(mma\.sync|wmma\.mma|wgmma\.mma_async)\S*?\.(f64|f16|bf16|tf32)\b")


def math_pipe(ptx: str, problem: GemmProblem) -> MathPipe:
    """The tensor cores where the PTX uses them, else the FMA lanes of the type of the sums.

    A kernel that rounds fp32 matrices counts by the type of its `mma` instructions, TensorFloat-32
    as fp32.
    """
    found = {match[2] for match in _TENSOR.finditer(ptx)}
    if "f64" in found:
        return MathPipe("float64", tensor=True)
    if found & {"f16", "bf16"}:
        return MathPipe("bfloat16" if "bf16" in found else "float16", tensor=True)
    return MathPipe("float64") if problem.sum_dtype == "float64" else FP32
