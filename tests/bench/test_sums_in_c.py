"""Kernels that accumulate in C: each store rounds, and the error bound counts the stores."""

from __future__ import annotations

import pytest

from gemmkit import Kernel, check

LAUNCH = {"grid": "(N+15)/16,(M+15)/16", "block": "16,16"}
HEAD = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef ELEMENT T;
__global__ void sums(const T* A, const T* B, T* C, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  T* c = C + row * N + col;
"""
# The compiler cannot keep C in a register: A and B may be the same memory.
IN_FP32 = """
  *c = T(0.f);
  for (int k = 0; k < K; ++k)
    *c = T(float(*c) + float(A[row * K + k]) * float(B[k * N + col]));
}
"""
# The product is rounded too, before the addition.
IN_T = """
  *c = T(0.f);
  for (int k = 0; k < K; ++k) *c = *c + A[row * K + k] * B[k * N + col];
}
"""
# One store for each 8 steps.
CHUNKS = """
  for (int k = 0; k < K; k += 8) {
    float sum = 0;
    for (int i = k; i < k + 8 && i < K; ++i) sum += float(A[row * K + i]) * float(B[i * N + col]);
    *c = k ? T(float(*c) + sum) : T(sum);
  }
}
"""
SHORT = ("k < K;", "k < K - 1;")


def checked(tmp_path, text, dtype, shape, **options):
    path = tmp_path / "sums.cu"
    path.write_text(text.replace("ELEMENT", dtype))
    return check(Kernel.from_file(path, **LAUNCH, **options), [shape])[0]


@pytest.mark.parametrize("dtype", ["__half", "__nv_bfloat16"])
@pytest.mark.parametrize("body", [IN_FP32, IN_T, CHUNKS], ids=["fp32", "own type", "chunks"])
@pytest.mark.sample(4)
def test_the_stores_to_c_are_counted(tmp_path, body, dtype):
    record = checked(tmp_path, HEAD + body, dtype, "19x21x300")
    assert record.verdict == "ok", record.detail
    name = "bfloat16" if "bfloat" in dtype else "float16"
    assert f"sums rounded to {name}" in record.arithmetic
    # One rounding of the result would not explain its errors.
    once = checked(tmp_path, HEAD + body, dtype, "19x21x300", compute_dtype="float32")
    assert once.verdict == "wrong result"


def bound(tmp_path, body, shape):
    return checked(tmp_path, HEAD + body, "__half", shape).error_bound


def test_the_bound_follows_the_stores_and_not_k(tmp_path):
    """38 stores round eight times less than 301."""
    chunks, each = (bound(tmp_path, body, "19x21x300") for body in (CHUNKS, IN_FP32))
    assert 6 * chunks < each < 10 * chunks


@pytest.mark.parametrize("body", [IN_FP32, IN_T, CHUNKS], ids=["fp32", "own type", "chunks"])
def test_a_step_that_is_left_out_is_found(tmp_path, body):
    text = (HEAD + body).replace(*SHORT).replace("i < K;", "i < K - 1;")
    record = checked(tmp_path, text, "__half", "19x21x300")
    assert record.verdict == "wrong result"


def test_reading_c_for_beta_is_no_accumulation(tmp_path):
    text = (HEAD + CHUNKS).replace("int K)", "int K, float beta)")
    start = text.index("  for (int k = 0")
    text = (
        text[:start]
        + """
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += float(A[row * K + k]) * float(B[k * N + col]);
  *c = beta == 0 ? T(sum) : T(sum + beta * float(*c));
}
"""
    )
    path = tmp_path / "sums.cu"
    path.write_text(text.replace("ELEMENT", "__half"))
    record = check(Kernel.from_file(path, **LAUNCH), ["19x21x300"], beta=-1.5)[0]
    assert record.verdict == "ok"
    assert "sums" not in record.arithmetic.replace("sums in fp32", "")
