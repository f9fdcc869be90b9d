"""Structs that a kernel takes by value: their layout, and what their fields are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gemmkit
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import StructPlace
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
LAUNCH = {"grid": "ceil_div(N,8),ceil_div(M,8)", "block": "8,8"}
Write = Callable[[str], Path]

VIEW = """
typedef struct { int width; int height; int stride; float* elements; } View;
__global__ void k(View A, View B, const View C);
__global__ void k(View A, View B, View C) {
  int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= C.height || col >= C.width) return;
  float sum = 0;
  for (int i = 0; i < A.width; i++)
    sum += A.elements[row * A.stride + i] * B.elements[i * B.stride + col];
  C.elements[row * C.stride + col] = B.height == A.width ? sum : 0;
}
"""

# Every rule of layout at once; fields that no product needs are given numbers to be found again.
NASTY = """
#include <stdint.h>
#define DEPTH 2
enum class Mode : unsigned char { plain, other };
struct Tag { short id; bool on; };
struct alignas(16) Scales {
  double alpha; float beta{1.0f};
  __device__ float apply(float sum, float old) const { return alpha * sum + beta * old; }
  Scales& operator=(const Scales&) = default;
};
template <typename T, int N = 1> struct Tensor : Tag {
public:
  const T* __restrict__ data = nullptr;
  int64_t ld, unused[DEPTH * 2];
  char last;
  using element = T;
  static constexpr int kind = 3;
private:
  struct Hidden { int inside; };
  enum Color { red };
};
struct Problem { dim3 sizes; Mode mode; Tag tag; float2 pair; int3 three; uchar4 four; };
using Floats = Tensor<float>;
namespace space {
__global__ void k(char first, Floats a, Problem problem, Tensor<const float, 2> b, Scales scales,
                  short small, float* C, int ldc) {
  int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= problem.sizes.x || col >= problem.sizes.y) return;
  float sum = 0;
  for (int i = 0; i < problem.sizes.z; i++)
    sum += a.data[row * a.ld + i] * b.data[i * b.ld + col];
  bool right = first == 1 && a.id == -2 && a.on && a.unused[3] == -9 && a.last == 4 && b.id == 5 &&
               problem.mode == Mode::other && problem.tag.id == 6 && problem.pair.y == 0.5f &&
               problem.three.z == 7 && problem.four.w == 8 && small == -3;
  C[row * ldc + col] = right ? scales.apply(sum, C[row * ldc + col]) : -1;
}
}
"""
NASTY_ARGS = (
    "1,{-2,true,A,lda,0,0,0,-9,4},{.sizes.x=M,.sizes.y=N,.sizes.z=K,.mode=1,.tag.id=6,.pair.y=0.5,"
    ".three.z=7,.four.w=8},{{5,0},B,ldb,{0,0,0,0},0},{alpha,beta},-3,C,ldc"
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "my.cu"
        path.write_text(text, "utf-8")
        return path

    return write_file


def is_correct(kernel: Kernel, problem: GemmProblem) -> bool:
    device = gemmkit.open_device("emulator", "rtx3090")
    return gemmkit.run_kernel(kernel, problem, device).correct


def test_a_matrix_struct_is_mapped_by_its_fields(write: Write) -> None:
    kernel = Kernel.from_file(write(VIEW), **LAUNCH)
    assert kernel.signature == (
        *("K", "M", "lda", "A"),
        *("N", "K", "ldb", "B"),
        *("N", "M", "ldc", "C"),
    )
    assert is_correct(kernel, GemmProblem(9, 11, 5, lda=7, ldb=12, ldc=13))


def test_layouts_are_those_of_the_compiler(write: Write) -> None:
    kernel = Kernel.from_file(write(NASTY), entry="space::k", args=NASTY_ARGS, **LAUNCH)
    assert is_correct(kernel, GemmProblem(5, 9, 3, alpha=0.5, beta=2.0))
    wrong = NASTY_ARGS.replace(".four.w=8", ".four.w=9")
    kernel = Kernel.from_file(write(NASTY), entry="space::k", args=wrong, **LAUNCH)
    assert not is_correct(kernel, GemmProblem(5, 9, 3))


@pytest.mark.gpu
def test_structs_on_a_gpu(write: Write) -> None:
    kernel = Kernel.from_file(write(NASTY), entry="space::k", args=NASTY_ARGS, **LAUNCH)
    device = gemmkit.open_device("cuda")
    problem = GemmProblem(5, 9, 3, alpha=0.5, beta=2.0)
    assert gemmkit.run_kernel(kernel, problem, device).correct


def test_a_struct_of_all_arguments(write: Write) -> None:
    text = """
struct Sizes { int m, n, k; };
struct Arguments {
  Sizes sizes; float alpha; const float *ptr_A, *device_b; float beta; float* C_; int ldc;
};
__global__ void k(const __grid_constant__ Arguments arguments) {}
"""
    kernel = Kernel.from_file(write(text), **LAUNCH)
    assert kernel.signature == ("M", "N", "K", "alpha", "A", "B", "beta", "C", "ldc")
    (struct,) = kernel.structs
    assert isinstance(struct, StructPlace)
    assert [each.offset for each in struct.fields] == [0, 4, 8, 12, 16, 24, 32, 40, 48]
    assert (struct.size, struct.alignment) == (56, 8)


@pytest.mark.parametrize(
    ("fields", "signature"),
    [
        ("float* data; size_t rows, cols;", ("A", "M", "K")),
        ("float* data_; int m_rows, m_cols, ld_;", ("A", "M", "K", "lda")),
        ("int shape[2]; long strides[2]; float *__restrict__ p;", ("M", "K", "lda", "1", "A")),
        ("float* d; unsigned size;", ("A", "M*K")),
    ],
)
def test_names_of_fields(write: Write, fields: str, signature: tuple[str, ...]) -> None:
    text = f"struct X {{ {fields} }}; __global__ void k(X a, float* B, float* C, int N) {{}}"
    assert Kernel.from_file(write(text), **LAUNCH).signature == (*signature, "B", "C", "N")


def test_the_letters_of_textbooks(write: Write) -> None:
    text = """
struct Matrix { float* elements; int rows, columns; };
__global__ void structs(Matrix M, Matrix N, Matrix P) {}
__global__ void pointers(float* d_M, float* d_N, float* d_P, int Width) {}
"""
    kernel = Kernel.from_file(write(text), entry="structs", **LAUNCH)
    assert kernel.signature == ("A", "M", "K", "B", "K", "N", "C", "M", "N")
    kernel = Kernel.from_file(write(text), entry="pointers", **LAUNCH)
    assert kernel.signature == ("A", "B", "C", "N")


def test_a_matrix_struct_is_named_by_its_matrix(write: Write) -> None:
    text = VIEW.replace("View A, View B, View C", "View x, View y, View z")
    with pytest.raises(UsageError, match=r"\{\?, \?, \?, \?\}"):
        Kernel.from_file(write(text.replace("A.", "x.")), **LAUNCH)
    kernel = Kernel.from_file(write(text), args="A,{.width=N,.elements=B},C", **LAUNCH)
    assert kernel.signature == ("K", "M", "lda", "A", "N", "0", "0", "B", "N", "M", "ldc", "C")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ("A,B", "takes 3 arguments, but --args gives 2"),
        (
            "A,B,{N,M,C}",
            r"has 4 fields \(width, height, stride, elements\), but '\{N,M,C\}' gives 3",
        ),
        ("A,B,{.wide=N}", "has no field 'wide'; it has width, height, stride, elements"),
        ("A,B,7", "argument '7' is for the struct 'View C': give A, B or C, or an initializer"),
        ("A,B,{A,M,N,C}", "is a pointer, but 'int C.width'"),
        ("A,B,{N,M,N,M*N}", r"is for 'float\* C.elements'"),
    ],
)
def test_initializers_that_do_not_fit(write: Write, args: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Kernel.from_file(write(VIEW), args=args, **LAUNCH)


@pytest.mark.parametrize(
    ("struct", "reason"),
    [
        ("union X { int n; float* data; };", "'X' is a union"),
        ("struct X { int n : 4; float* data; };", "is not a plain field"),
        ("struct X { Other o; float* data; };", "it contains 'Other', whose layout is unknown"),
        (
            "struct X { int n[SIZE]; float* data; };",
            "the length of 'int n.SIZE.' in 'X' is unknown",
        ),
        ("struct X { virtual void f(); float* data; };", "'X' has virtual functions"),
    ],
)
def test_structs_that_cannot_be_laid_out(write: Write, struct: str, reason: str) -> None:
    text = f"{struct}\n__global__ void k(X A, float* B, float* C, int N) {{}}"
    with pytest.raises(UsageError, match=f"takes the struct 'X A' by value, but .*{reason}"):
        Kernel.from_file(write(text), **LAUNCH)


@pytest.mark.parametrize("qualifier", ["", "const __grid_constant__"])
def test_parameters_read_through_an_address(write: Write, qualifier: str) -> None:
    text = """
struct Operands { const float* in[2]; int lengths[3]; };
__global__ void k(QUALIFIER Operands given, float* C) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, n = given.lengths[1];
  if (i >= given.lengths[0] * n) return;
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < given.lengths[2]; k++) {
    float product = 1;
#pragma unroll 1
    for (int which = 0; which < 2; which++)
      product *= given.in[which][which ? k * n + i % n : i / n * given.lengths[2] + k];
    sum += product;
  }
  C[i] = sum;
}
""".replace("QUALIFIER", qualifier)
    kernel = Kernel.from_file(
        write(text), args="{A,B,M,N,K},C", block=(64,), grid=("cdiv(M * N, 64)",)
    )
    assert is_correct(kernel, GemmProblem(8, 12, 20))


def test_the_plan_shows_structs_in_braces(write: Write) -> None:
    text = "struct X { float* p; int rows; }; __global__ void k(X a, float* B, float* C, int N) {}"
    kernel = Kernel.from_file(write(text), **LAUNCH)
    plan = kernel.plan(GemmProblem(8, 8, 8), kernel.default, BOARD)
    assert plan.arguments == "{A, M}, B, C, N"


PACKED = """
HEAD
struct Inner { char mark; double weight; };
TAIL
struct ATTRIBUTE Job { char tag; float* data; short wide; Inner inner; int rows; char c[3]; };
POP
struct Plain { char tag; float* data; };
__global__ void k(Job a, const Plain b, Job c, int N) {
  int row = blockIdx.y * 8 + threadIdx.y, col = blockIdx.x * 8 + threadIdx.x;
  if (row >= N || col >= N) return;
  float sum = 0;
  for (int p = 0; p < N; ++p) sum += a.data[row * N + p] * b.data[p * N + col];
  bool given = a.rows == N && a.wide == 7 && a.inner.weight == 2.0 && a.c[2] == 5 && a.tag == 3;
  c.data[row * N + col] = given ? sum : -1;
}
"""


@pytest.mark.parametrize(
    ("head", "tail", "attribute", "pop"),
    [
        ("#pragma pack(1)", "", "", "#pragma pack()"),
        ("#pragma pack(push, 1)", "", "", "#pragma pack(pop)"),
        ("#pragma pack(push, here, 2)\n#pragma pack(push)", "", "", "#pragma pack(pop, here)"),
        ("#pragma pack(push)", "  #  pragma pack ( 4 ) // four", "", "#pragma pack(pop)"),
        ("#pragma pack(push, 8)", "#pragma pack(pop)", "", ""),
        ("", "", "__attribute__((packed))", ""),
        ("", "", "__attribute__((packed, aligned(2)))", ""),
        ("", "", "alignas(32)", ""),
    ],
)
def test_packed_structs(write: Write, head: str, tail: str, attribute: str, pop: str) -> None:
    text = PACKED.replace("HEAD", head).replace("TAIL", tail)
    text = text.replace("ATTRIBUTE", attribute).replace("POP", pop)
    job = "{3,%s,7,1,2.0,N,0,0,5}"
    args = f"{job % 'A'},{{1,B}},{job % 'C'},N"
    kernel = Kernel.from_file(write(text), args=args, **LAUNCH)
    assert is_correct(kernel, GemmProblem(9, 9, 9))


def test_a_layout_that_the_compiler_does_not_share(write: Write) -> None:
    text = VIEW.replace(
        "int stride;", "int stride;\n#if __CUDA_ARCH__ < 100\ndouble pad;\n#endif\n"
    )
    args = "{K,M,K,0,A},{N,K,N,0,B},{N,M,N,0,C}"
    kernel = Kernel.from_file(write(text), args=args, **LAUNCH)
    with pytest.raises(UsageError, match=r"my.cu:8: .*'View A' as 24 bytes aligned to 8, .* 32"):
        is_correct(kernel, GemmProblem(4, 4, 4))


def test_an_operator_that_packs_is_refused_with_its_line(write: Write) -> None:
    text = VIEW.replace("typedef struct", '_Pragma("pack(4)") typedef struct')
    with pytest.raises(UsageError, match=r'my.cu:2: _Pragma\("pack"\) is not supported'):
        Kernel.from_file(write(text), **LAUNCH)


def test_addresses_of_structs(write: Write) -> None:
    text = "struct X { TYPE n; float v[3]; }; __global__ void k(X* A, X* B, X* C, int N) {}"
    kernel = Kernel.from_file(write(text.replace("TYPE", "int")), **LAUNCH)
    reason = kernel.supports(GemmProblem(4, 4, 4), kernel.default, BOARD)
    assert reason is not None
    assert "points to a struct in device memory" in reason
    kernel = Kernel.from_file(write(text.replace("TYPE", "float")), **LAUNCH)
    assert kernel.supports(GemmProblem(4, 4, 4), kernel.default, BOARD) is None
