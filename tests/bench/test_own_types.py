"""Kernels of one's own for double, half and bfloat16 matrices, and the bounds of their types."""

from __future__ import annotations

import pytest

from gemmkit import Kernel, check
from gemmkit.errors import UnsupportedProblem

TILED = """
__global__ void tiled(int M, int N, int K, double alpha, const double* A, const double* B,
                      double beta, double* C) {
  __shared__ double As[16][17], Bs[16][17];
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  double sum = 0;
  for (int k0 = 0; k0 < K; k0 += 16) {
    int along = k0 + threadIdx.x, down = k0 + threadIdx.y;
    As[threadIdx.y][threadIdx.x] = row < M && along < K ? A[row * K + along] : 0;
    Bs[threadIdx.y][threadIdx.x] = col < N && down < K ? B[down * N + col] : 0;
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    __syncthreads();
  }
  if (row >= M || col >= N) return;
  C[row * N + col] = alpha * sum + (beta != 0 ? beta * C[row * N + col] : 0);
}
"""
HALF = """
#include <cuda_fp16.h>
__global__ void turned(const half* A, const half* B, half* C, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += __half2float(A[row * K + k]) * __half2float(B[col * K + k]);
  C[row * N + col] = __float2half(sum);
}
"""
WIDER = """
#include <cuda_bf16.h>
typedef __nv_bfloat16 scalar;
__global__ void wider(const scalar* a, const scalar* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= m || col >= n) return;
  float sum = 0;
  for (int p = 0; p < k; ++p)
    sum += __bfloat162float(a[row * k + p]) * __bfloat162float(b[p * n + col]);
  c[row * n + col] = sum;
}
"""
LAUNCH = {"grid": "(N+15)/16,(M+15)/16", "block": "16,16"}
IN_HALF = ("float sum = 0;", "half sum = __float2half(0.f);")
FUSED = (
    "sum += __half2float(A[row * K + k]) * __half2float(B[col * K + k]);",
    "sum = __hfma(A[row * K + k], B[col * K + k], sum);",
)
CASES = {
    "double": (TILED, (), "float64 float64", "ok", ""),
    "double, no second barrier": (
        TILED, [("    __syncthreads();\n  }", "  }")], "float64 float64", "findings", "racecheck",
    ),
    "double, sums in float": (
        TILED, [("double sum", "float sum")], "float64 float64", "wrong result", "fp32 arithmetic",
    ),
    "half": (HALF, (), "float16 float16", "ok", ""),
    "half, sums in half": (
        HALF, [IN_HALF, FUSED, ("__float2half(sum)", "sum")], "float16 float16", "ok", "",
    ),
    "half, not transposed": (
        HALF, [("B[col * K + k]", "B[k * N + col]")], "float16 float16", "wrong result", "A·B",
    ),
    "bfloat16 to float": (WIDER, (), "bfloat16 float32", "ok", ""),
    "bfloat16, a step short": (
        WIDER, [("p < k;", "p < k - 1;")], "bfloat16 float32", "wrong result", "k is short by 1",
    ),
    "bfloat16, results rounded": (
        WIDER, [("= sum;", "= __bfloat162float(__float2bfloat16(sum));")],
        "bfloat16 float32", "ok", "results rounded to bfloat16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sample(5)
def test_kernels_of_other_types(tmp_path, case):
    source, changes, types, verdict, words = CASES[case]
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path = tmp_path / "own.cu"
    path.write_text(source)
    kernel = Kernel.from_file(path, layout="NT" if "turned" in source else "NN", **LAUNCH)
    (record,) = check(kernel, ["33x40x50"])
    assert record.verdict == verdict, record.detail
    assert f"{record.problem.dtype} {record.problem.out_dtype}" == types
    said = [record.detail, record.arithmetic, str(record.diagnosis)]
    said += [each.message for each in record.findings] + [each.check for each in record.findings]
    assert words in " ".join(said)


def test_the_edge_cases_are_of_the_kernel_s_types(tmp_path):
    path = tmp_path / "own.cu"
    path.write_text(WIDER)
    records = check(Kernel.from_file(path, **LAUNCH), gpu="h100")
    assert len(records) > 8
    assert {each.verdict for each in records} == {"ok"}
    assert {(each.problem.dtype, each.problem.out_dtype) for each in records} == {
        ("bfloat16", "float32")
    }


# Kernels whose text does not show what their matrices hold.
NAIVE = """
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || col >= N) return;
  real sum = 0;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
"""
# Only the compiler knows its own version.
CONDITION = "#if USE_DOUBLE + 0 * __CUDACC_VER_MAJOR__"
CONDITIONAL = (
    f"{CONDITION}\ntypedef double real;\n#else\ntypedef float real;\n#endif\n"
    "__global__ void own(int M, int N, int K, const real* A, const real* B, real* C) {"
    + NAIVE
    + "}\n"
)
MADE = (
    "#define MAKE(name, real) __global__ void name(int M, int N, int K, real const* A, "
    "real const* B, real* C) {" + " ".join(NAIVE.split()) + "}\n"
    "MAKE(sgemm, float)\nMAKE(dgemm, double)\n"
)
UNTYPED = (
    "__global__ void own(int M, int N, int K, const void* a, const void* b, void* c) {\n"
    "typedef double real; auto A = (const real*)a, B = (const real*)b; auto C = (real*)c;"
    + NAIVE
    + "}\n"
)
TOLD = {"args": "M,N,K,A,B,C"}
DOUBLE = {"options": ["-DUSE_DOUBLE"]}
HIDDEN = {
    "condition": (CONDITIONAL, {}, "float32"),
    "condition, other branch": (CONDITIONAL, DOUBLE, "float64"),
    "macro": (MADE, {"entry": "sgemm", **TOLD}, "float32"),
    "macro, double": (MADE, {"entry": "dgemm", **TOLD}, "float64"),
    "void pointers": (UNTYPED, {}, "float64"),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_types_that_the_text_hides_are_declared(tmp_path, case):
    source, how, dtype = HIDDEN[case]
    path = tmp_path / "own.cu"
    path.write_text(source)
    kernel = Kernel.from_file(path, **how, **LAUNCH)
    (record,) = check(kernel, ["33x40x50"], dtype=dtype)
    assert (record.verdict, record.problem.dtype, record.problem.out_dtype) == ("ok", dtype, dtype)


@pytest.mark.parametrize(("options", "dtype"), [([], "float32"), (["-DUSE_DOUBLE"], "float64")])
def test_types_by_a_condition_on_what_is_given_are_read(tmp_path, options, dtype):
    path = tmp_path / "own.cu"
    path.write_text(CONDITIONAL.replace(CONDITION, "#ifdef USE_DOUBLE"))
    (record,) = check(Kernel.from_file(path, options=options, **LAUNCH), ["33x40x50"])
    assert (record.verdict, record.problem.dtype, record.problem.out_dtype) == ("ok", dtype, dtype)


@pytest.mark.parametrize(
    ("case", "asked", "said"),
    [
        ("condition, other branch", None, "A of 'own' has float64 elements, .* --dtype float64"),
        ("condition", "float64", "A of 'own' has float32 elements, .* --dtype float32"),
    ],
)
def test_the_compiler_refuses_other_types_than_a_problem_s(tmp_path, case, asked, said):
    source, how, _ = HIDDEN[case]
    path = tmp_path / "own.cu"
    path.write_text(source)
    with pytest.raises(UnsupportedProblem, match=said):
        check(Kernel.from_file(path, **how, **LAUNCH), ["33x40x50"], dtype=asked)


@pytest.mark.parametrize(("entry", "dtype"), [("sgemm", "float32"), ("dgemm", "float64")])
def test_types_in_a_macro_are_read(tmp_path, entry, dtype):
    path = tmp_path / "own.cu"
    path.write_text(MADE)
    kernel = Kernel.from_file(path, entry=entry, **LAUNCH)
    (record,) = check(kernel, ["33x40x50"])
    assert (record.verdict, record.problem.dtype, record.problem.out_dtype) == ("ok", dtype, dtype)
    with pytest.raises(UnsupportedProblem, match=f"'{entry}' is for {dtype}, not bfloat16"):
        check(kernel, ["33x40x50"], dtype="bfloat16")


def test_the_type_of_c_alone_may_be_hidden(tmp_path):
    path = tmp_path / "own.cu"
    text = CONDITIONAL.replace("const real* A, const real* B", "const float* A, const float* B")
    path.write_text(text)
    kernel = Kernel.from_file(path, **DOUBLE, **LAUNCH)
    with pytest.raises(UnsupportedProblem, match=r"C of .own. has float64 .* --out-dtype float64"):
        check(kernel, ["33x40x50"])
    (record,) = check(kernel, ["33x40x50"], out_dtype="float64")
    assert (record.verdict, record.problem.out_dtype) == ("ok", "float64")


def test_elements_of_no_supported_type_are_refused(tmp_path):
    path = tmp_path / "own.cu"
    path.write_text(CONDITIONAL.replace("typedef float real", "typedef int real"))
    with pytest.raises(UnsupportedProblem, match="A of 'own' has elements of a type that is not"):
        check(Kernel.from_file(path, **LAUNCH), ["33x40x50"])
