"""Kernels whose results are judged: narrow arithmetic, unset variables, wrong results explained."""

from __future__ import annotations

import pytest

from gemmkit.analysis.explain import explain
from gemmkit.bench.check import check
from gemmkit.bench.count import count
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.kernels.kernel import Kernel
from gemmkit.report.explain_text import explanation_text
from gemmkit.report.findings import check_table

LAUNCH = {"grid": "(N+15)/16,(M+15)/16", "block": "16,16"}
SHAPES = ["17x18x19"]

HALVES = """#include <cuda_fp16.h>
template <bool IN_HALF, int SKIPPED>
__global__ void halves(int M, int N, int K, const float *A, const float *B, float *C) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  float sum = 0;
  __half short_sum = __float2half(0.f);
  for (int k = 0; k < K - SKIPPED; ++k) {
    __half a = __float2half(A[row * K + k]), b = __float2half(B[k * N + col]);
    if (IN_HALF) short_sum = __hfma(a, b, short_sum);
    else sum += __half2float(a) * __half2float(b);
  }
  C[row * N + col] = IN_HALF ? __half2float(short_sum) : sum;
}
"""
VARIABLES = """#include "setup.h"
#define COUNT 2
__constant__ float unused, factors[COUNT][2] = {};
namespace host { __constant__ int depth; __device__ double gain; }
__device__ unsigned launches;
__global__ void scaled(int M, int N, const float *A, const float *B, float *C) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x, K = host::depth;
  if (row == 0 && col == 0) atomicAdd(&launches, 1);
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum * (float)host::gain * table[1] + factors[1][1];
}
"""
SETUP = "#pragma once\n__constant__ float table[2];\n"
WRONG = """__global__ void wrong(int M, int N, int K, const float *A, const float *B, float *C) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[col * K + k];
  C[row * N + col] = sum;
}
"""


@pytest.fixture
def kernel(tmp_path):
    def make(text, **options):
        (tmp_path / "setup.h").write_text(SETUP)
        path = tmp_path / "own.cu"
        path.write_text(text)
        return Kernel.from_file(path, **{**LAUNCH, **options})

    return make


@pytest.mark.parametrize("in_half", ["false", "true"])
def test_arithmetic_in_half_is_judged_by_its_own_bound(kernel, in_half):
    (right,) = check(kernel(HALVES, entry=f"halves<{in_half},0>"), SHAPES)
    assert right.verdict == "ok"
    assert "float16" in right.arithmetic
    assert "own.cu:" in right.arithmetic
    assert 0 < right.error_ratio < 1
    text = check_table([right]).to_text().plain
    assert "Error bounds are those of:" in text


@pytest.mark.parametrize("in_half", ["false", "true"])
def test_a_bug_in_half_arithmetic_still_shows(kernel, in_half):
    (wrong,) = check(kernel(HALVES, entry=f"halves<{in_half},1>"), SHAPES)
    assert wrong.verdict == "wrong result"
    assert wrong.diagnosis.hypothesis == "k short"


def test_what_a_kernel_is_meant_to_compute_in_overrides_what_it_does(kernel):
    entry = "halves<false,0>"
    (strict,) = check(kernel(HALVES, entry=entry, compute_dtype="float32"), SHAPES)
    assert strict.verdict == "wrong result"
    assert strict.diagnosis.hypothesis == "imprecise"
    (strict,) = check(kernel(HALVES, entry=entry), SHAPES, compute_dtype="float32")
    assert strict.verdict == "wrong result"
    (loose,) = check(kernel(HALVES, entry="halves<false,1>"), SHAPES, tolerance=2.0)
    assert loose.verdict == "ok"
    assert "tolerance of 2" in loose.arithmetic


def test_variables_that_the_host_was_to_set(kernel):
    values = {"table": ["alpha-1", "alpha"], "depth": "K", "gain": 1}
    (record,) = check(kernel(VARIABLES, constants=values), SHAPES)
    assert record.verdict == "ok", record.detail
    values["gain"] = "N/M+1"
    (record,) = check(kernel(VARIABLES, constants=values), SHAPES)
    assert record.diagnosis.hypothesis == "product twice"


@pytest.mark.parametrize("missing", ["table", "depth", "gain"])
def test_a_variable_that_was_never_set_is_named(kernel, missing):
    values = {"table": [0, 1], "depth": "K", "gain": 1.0}
    del values[missing]
    line = {"table": 12, "depth": 7, "gain": 12}[missing]
    with pytest.raises(
        UsageError, match=rf"'{missing}' .* own\.cu:{line}: give --constant {missing}="
    ):
        check(kernel(VARIABLES, constants=values), SHAPES)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tabel": 1}, "no __constant__ or __device__ variable 'tabel'; there are: depth, factors"),
        ({"depth": 1.5}, "give whole numbers"),
        ({"depth": 2**40}, "type int, which does not hold 1099511627776"),
        ({"table": [1, 2, 3]}, "'table' has 2 elements, and --constant gives 3"),
        ({"gain": "M+"}, "M\\+"),
    ],
)
def test_values_that_do_not_fit_are_refused(kernel, values, words):
    with pytest.raises(UsageError, match=words):
        check(
            kernel(VARIABLES, constants={"table": [0, 1], "depth": 1, "gain": 1} | values), SHAPES
        )


def test_a_wrong_result_is_explained_before_all_else(kernel):
    (record,) = check(kernel(WRONG), SHAPES)
    assert record.diagnosis.hypothesis == "B transposed"
    text = " ".join(check_table([record]).to_text().plain.split())
    assert "All 306 elements are wrong: C = A·Bᵀ" in text
    assert "Try --layout NT. For example, C[" in text
    explained = explain(kernel(WRONG), "17x18x19")
    assert explained.diagnosis.hypothesis == "B transposed"
    lines = explanation_text(explained).plain.splitlines()
    assert lines[2].startswith("WRONG RESULT of wrong at 17x18x19: All 306 elements are wrong")


def test_a_right_result_is_explained_without_ado(kernel):
    right = kernel(WRONG.replace("B[col * K + k]", "B[k * N + col]"))
    explained = explain(right, "17x18x19")
    assert (explained.wrong, explained.diagnosis) == ("", None)
    assert "WRONG" not in explanation_text(explained).plain
    record = count(right, "17x18x19").record
    assert record.arithmetic == "fp32"
    assert record.ratio_error / record.ratio_bound == record.error_ratio


TYPES = """#pragma once
#include <cuda_fp16.h>
typedef __half stored;
using number = float;
#define ELEMENT __half
#ifdef IN_HALF
typedef __half chosen;
#else
typedef float chosen;
#endif
template <class T> struct of { using type = T; };
"""
TYPED = """#include "setup.h"
template <class T>
__global__ void product(int M, int N, int K, const {0} *A, const {0} *B, {0} *C) {{
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += float(A[row * K + k]) * float(B[k * N + col]);
  C[row * N + col] = sum;
}}
"""


@pytest.mark.parametrize(
    ("type_name", "entry", "options", "dtype"),
    [
        ("stored", "product<int>", (), "float16"),
        ("number", "product<int>", (), "float32"),
        ("ELEMENT", "product<int>", (), "float16"),
        ("T", "product<stored>", (), "float16"),
        ("T", "product<number>", (), "float32"),
        ("chosen", "product<int>", (), "float32"),
        ("chosen", "product<int>", ("-DIN_HALF",), "float16"),
        ("GIVEN", "product<int>", ("-DGIVEN=__half",), "float16"),
        ("GIVEN", "product<int>", ("-DGIVEN=number",), "float32"),
        ("typename of<T>::type", "product<float>", (), "float32"),
        ("typename of<T>::type", "product<stored>", (), ""),
    ],
)
@pytest.mark.sample(3)
def test_elements_behind_another_name(tmp_path, type_name, entry, options, dtype):
    (tmp_path / "setup.h").write_text(TYPES)
    path = tmp_path / "typed.cu"
    path.write_text(TYPED.format(type_name))
    args = "M,N,K,A,B,C"
    kernel = Kernel.from_file(path, entry=entry, args=args, options=options, **LAUNCH)
    if dtype:
        (record,) = check(kernel, SHAPES)
        assert record.verdict == "ok", record.detail
        assert record.problem.dtype == dtype
    else:
        with pytest.raises(UnsupportedProblem, match=r"A of .* has float16 elements, .* --dtype"):
            check(kernel, SHAPES)
