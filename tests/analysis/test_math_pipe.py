"""Which pipe a compiled kernel multiplies with, by its PTX."""

from __future__ import annotations

import pytest

from gemmkit.analysis.math_pipe import math_pipe
from gemmkit.gpu import FP32, MathPipe
from gemmkit.problem import GemmProblem


@pytest.mark.parametrize(
    ("line", "dtype", "pipe"),
    [
        ("fma.rn.f32 %f1, %f2, %f3, %f1;", "float32", FP32),
        ("fma.rn.f32 %f1, %f2, %f3, %f1;", "float16", FP32),
        ("fma.rn.f64 %fd1, %fd2, %fd3, %fd1;", "float64", MathPipe("float64")),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1};",
            "bfloat16",
            MathPipe("bfloat16", tensor=True),
        ),
        (
            "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1}, {%fd2};",
            "float64",
            MathPipe("float64", tensor=True),
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd1;",
            "float16",
            MathPipe("float16", tensor=True),
        ),
        (
            "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1};",
            "float16",
            MathPipe("float16", tensor=True),
        ),
        (
            "wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32 {%f1};",
            "float32",
            MathPipe("tfloat32", tensor=True),
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%f1}, %rd1;",
            "float8_e4m3",
            MathPipe("float8", tensor=True),
        ),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2};", "float32", FP32),
    ],
)
def test_instructions_tell_what_multiplies(line, dtype, pipe):
    assert math_pipe(line, GemmProblem(8, 8, 8, dtype=dtype)) == pipe
