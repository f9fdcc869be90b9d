"""`Kernel.from_file`: what is read from a source, what is told, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemmkit.cxx.declarations import constants_in, kernels_in
from gemmkit.cxx.head_comments import head_comment
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
PROBLEM = GemmProblem(300, 200, 100)
LAUNCH = {"grid": "(N+15)/16,(M+15)/16", "block": "16,16"}

PLAIN = "__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {}"
TILED = """
// Tiles in registers
#define TILE 16
constexpr int kWarps = 4, unused = 1;
static const unsigned int kThreads = 32 * 4;
template <int BM, const int BN = TILE * 4, typename T = float>
__global__ void __launch_bounds__((BM * BN) / 8, 1)
tiled(int M, int N, int K, T alpha, const T* __restrict__ A, T* B, float beta, float* C) {}
"""


def planned(kernel: Kernel, problem: GemmProblem = PROBLEM) -> LaunchPlan:
    return kernel.plan(problem, kernel.default, BOARD)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str, name: str = "my.cu") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return write_file


def test_a_plain_kernel(write: Any) -> None:
    path = write(PLAIN)
    kernel = Kernel.from_file(path, **LAUNCH)
    assert (kernel.name, kernel.rung, kernel.idea, kernel.space) == ("gemm", None, "", {})
    assert kernel.source == PLAIN
    plan = planned(kernel)
    assert (plan.entry, plan.signature) == ("gemm", ("M", "N", "K", "A", "B", "C"))
    assert (plan.grid, plan.block, plan.shared_bytes) == ((13, 19, 1), (16, 16, 1), 0)
    assert plan.source.include_dirs == (str(path.parent),)


def test_template_arguments_and_constants_are_names(write: Any) -> None:
    kernel = Kernel.from_file(
        write(TILED),
        entry="tiled<128>",
        grid=["ceil_div(N, BN)", "(M+BM-1)/BM"],
        block="kThreads*2",
        shared="BM*TILE*sizeof(float)*EXTRA",
        name="mine",
        options=["-DEXTRA=3"],
    )
    assert (kernel.name, kernel.idea) == ("mine", "Tiles in registers")
    plan = planned(kernel)
    assert plan.entry == "tiled<128>"
    assert (plan.grid, plan.block) == ((4, 3, 1), (256, 1, 1))
    assert plan.shared_bytes == 128 * 16 * 4 * 3
    assert plan.signature == ("M", "N", "K", "alpha", "A", "B", "beta", "C")
    assert plan.source.options == ("-DEXTRA=3",)


@pytest.mark.parametrize(
    ("parameters", "signature"),
    [
        ("float *a, float *b, float *c, int m, int n, int k", "A B C M N K"),
        ("const float *dA, float* d_B, float C_d[], size_t K, unsigned N, long long M",
         "A B C K N M"),
        ("float ALPHA, double Beta, float* A, int lda, float* B, int LDB, float* C, int ldc, "
         "int M, int N, int K", "alpha beta A lda B ldb C ldc M N K"),
        ("float* A, float* B, float* C, float* bias, int M, int N, int K", "A B C bias M N K"),
        ("float* A, float* B, float* C, int width", "A B C N"),
        ("float *A, float *B, float *C, int numARows, int numAColumns, int numBRows, "
         "int numBColumns, int numCRows, int numCColumns", "A B C M K K N M N"),
        ("float *C, float *A, float *B, int wA, int wB", "C A B K N"),
        ("float* A, float* B, float* C, int hA, int widthA, int width_b", "A B C M K N"),
        ("float4* matA, const float4 *matB, float4 *matC, int M, int K, int N", "A B C M K N"),
    ],
)  # fmt: skip
def test_parameters_that_can_be_read(write: Any, parameters: str, signature: str) -> None:
    path = write(f"__global__ void k({parameters}) {{}}")
    assert Kernel.from_file(path, **LAUNCH).signature == tuple(signature.split())


@pytest.mark.parametrize(
    "parameters",
    [
        "float* x, float* y, float* z, int M, int N, int K",
        "float* A, float* B, float* C, int M, int N, int K, int stride",
        "float* A, float* a, float* C, int M, int N, int K",
        "float* U, float* V, float* W, int width",
        "float* A, float* B, float* C, float M, int N, int K",
        "const float*, float* B, float* C, int M, int N, int K",
        "",
    ],
)
def test_parameters_that_cannot(write: Any, parameters: str) -> None:
    path = write(f"__global__ void k({parameters}) {{}}")
    with pytest.raises(UsageError, match=r"my.cu:1: cannot tell .* of 'k' are: \(.*--args"):
        Kernel.from_file(path, **LAUNCH)


def test_arguments_that_are_told(write: Any) -> None:
    text = (
        "#define PAD 4\n"
        "__global__ void k(float* x, const float* y, float* z, int rows, long pitch, float s,"
        " int* n) {}"
    )
    kernel = Kernel.from_file(write(text), args="A, B, C, M*K, lda + PAD, 1.0f, nullptr", **LAUNCH)
    assert kernel.signature == ("A", "B", "C", "M*K", "lda + (4)", "1.0f", "0")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ("M,N,K,A,B", r"takes 6 arguments, \(int M, .*float\* C\), but --args gives 5"),
        ("M,N,A,K,B,C", r"'A' is a pointer, but 'int K' of 'gemm' is not"),
        ("M,N,K,A,B,beta", r"'beta' is for 'float\* C' of 'gemm', which is a pointer"),
        (
            "M,N,alpha,A,B,C",
            r"'alpha' is a floating-point number, but 'int K' of 'gemm' is ",
        ),
        ("M,N,K,A+4,B,C", r"'A\+4' does arithmetic on a pointer"),
        ("M,N,Q,A,B,C", r"'Q' uses Q; known names: M, N, K, alpha"),
        ("M,N,,A,B,C", "empty part"),
        ("M,N,K;,A,B,C", "is not an expression"),
    ],
)
def test_arguments_that_do_not_fit(write: Any, args: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Kernel.from_file(write(PLAIN), args=args, **LAUNCH)


@pytest.mark.parametrize(
    ("text", "entry", "reason"),
    [
        (PLAIN, "sgemm", "my.cu has no kernel 'sgemm'; it has: gemm"),
        (
            PLAIN + TILED,
            None,
            "my.cu has several kernels: .* --entry; it has: gemm, tiled<BM, ",
        ),
        (TILED, None, r"'tiled' in my.cu is a template: give --entry 'tiled<BM, BN, T>'"),
        (TILED, "tiled", "is a template"),
        ("void f() {}", None, "my.cu has no __global__ function"),
        ("// __global__ void no(int M) {}\n", "no", "it has: none"),
    ],
)
def test_entries_that_are_not_there(write: Any, text: str, entry: str | None, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Kernel.from_file(write(text), entry=entry, **LAUNCH)


def test_a_kernel_that_macros_make_is_told_in_full(write: Any) -> None:
    """A macro's name is hidden while it is expanded: `made` comes from none that is read."""
    text = """#define MAKE(name) __global__ void name(const float* A, const float* B, float* C)
#define LATER() LATER
#define AGAIN(made) LATER()()(MAKE(made) {})
"""
    with pytest.raises(UsageError, match=r"cannot read the parameters of 'made' from my\.cu"):
        Kernel.from_file(write(text), entry="made", **LAUNCH)
    kernel = Kernel.from_file(write(text), entry="made", args="A,B,C", **LAUNCH)
    assert planned(kernel).entry == "made"


LIST = "const float* A, const float* B, float* C, int M, int N, long K"
# A source whose kernel takes these parameters, and its entry.
BY_MACROS = {
    "all parameters": (f"#define PARAMS {LIST}\n__global__ void f(PARAMS) {{}}", None),
    "some parameters": (
        "#define MATRICES const float* A, const float* B, float* C\n#define SIZES int M, int N\n"
        "__global__ void f(MATRICES, SIZES, long K) {}", None),
    "parameters of a type": (
        "#define IN(T) const T* __restrict__\n#define ARGS(T) IN(T) A, \\\n IN(T) B, T* C\n"
        "__global__ void f(ARGS(float), int M, int N, long K) {}", None),
    "arguments as they come": (
        "#define ARGS(...) __VA_ARGS__\n"
        "__global__ void f(ARGS(const float* A, const float* B, float* C), int M, int N, "
        "long K) {}", None),
    "the head": (
        "#define KERNEL(name) extern \"C\" __global__ void name\n"
        f"KERNEL(f)({LIST}) {{}}", None),
    "a name of parts": (
        "#define CAT(a, b) a##_##b\n#define NAME(x) CAT(x, v1)\n"
        f"__global__ void NAME(f)({LIST}) {{}}", "f_v1"),
    "the whole kernel": (
        "#define MAKE(name, T) __global__ void name(const T* A, const T* B, T* C, int M, \\\n"
        "  int N, long K) {}\nMAKE(f, float)\nMAKE(g, double)", "f"),
    "several kernels": (
        "#define EACH(X) X(float, f) X(double, g)\n#define ONE(T, name) __global__ void \\\n"
        "  name(const T* A, const T* B, T* C, int M, int N, long K) {}\nEACH(ONE)", "f"),
    "a macro that changes": (
        f"#define PARAMS float* x\n#undef PARAMS\n#define PARAMS {LIST}\n"
        "__global__ void f(PARAMS) {}\n#undef PARAMS\n#define PARAMS int", None),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_MACROS)
def test_parameters_that_macros_hide(write: Any, name: str) -> None:
    text, entry = BY_MACROS[name]
    plan = planned(Kernel.from_file(write(text), entry=entry, **LAUNCH))
    assert plan.signature == ("A", "B", "C", "M", "N", "K")
    told = Kernel.from_file(write(text), entry=entry, args="A,B,C,M,N,K", **LAUNCH)
    assert planned(told) == plan
    with pytest.raises(UsageError, match=r"takes 6 arguments, .* but --args gives 2: A,B"):
        Kernel.from_file(write(text), entry=entry, args="A,B", **LAUNCH)


def test_parameters_of_a_macro_of_the_options(write: Any) -> None:
    how = {**LAUNCH, "options": (f"-DPARAMS={LIST}",)}
    plan = planned(Kernel.from_file(write("__global__ void f(PARAMS) {}"), **how))
    assert plan.signature == ("A", "B", "C", "M", "N", "K")


def test_parameters_of_a_macro_that_nobody_reads(write: Any) -> None:
    text = "#include <made_up.h>\n__global__ void f(PARAMS) {}"
    with pytest.raises(UsageError, match=r"\(PARAMS\) of 'f' come from a macro .*: give --args"):
        Kernel.from_file(write(text), **LAUNCH)
    told = Kernel.from_file(write(text), args="A,B,C,M,N,K", **LAUNCH)
    assert planned(told).signature == ("A", "B", "C", "M", "N", "K")


def test_a_macro_may_stand_for_global(write: Any) -> None:
    text = '#define KERNEL extern "C" __global__ \\\n  void\n' + PLAIN.replace(
        "__global__ void", "KERNEL"
    )
    assert planned(Kernel.from_file(write(text), **LAUNCH)).entry == "gemm"


def test_an_entry_in_an_included_file(write: Any) -> None:
    write("#pragma once\nnamespace ns {\n" + PLAIN + "\n}", "inner/kernels.cuh")
    path = write('#include "inner/kernels.cuh"\nint main() {}')
    assert planned(Kernel.from_file(path, **LAUNCH)).entry == "ns::gemm"


def test_includes_that_are_no_files(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = f'#include "{"x" * 5000}.h"\n#include "inner"\n#include <a\tb>\n'
    write("// nothing", "inner/a.cuh")
    assert planned(Kernel.from_file(write(odd + PLAIN), **LAUNCH)).entry == "gemm"

    def refuse(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    path = write('#include "inner/a.cuh"\n' + PLAIN)
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UsageError, match=r"cannot read .*a\.cuh: Permission denied"):
        Kernel.from_file(path, **LAUNCH)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot read .*No such file"), (b"", "is empty"), (b"\x7fELF\0\0", "not a text file")],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "my.cu"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        Kernel.from_file(path, **LAUNCH)


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ({"grid": "1"}, "'gemm' needs a launch configuration: give --block"),
        ({}, "give --grid and --block"),
        ({"grid": "T/2", "block": 1}, r"'T/2' uses T; grid, block and memory may use M, N"),
        ({"grid": "1,1,1,1", "block": 1}, "has 4 dimensions"),
        ({"grid": 1, "block": 1, "shared": "alpha"}, "'alpha' uses alpha"),
    ],
)
def test_launches_that_cannot_be_meant(write: Any, launch: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Kernel.from_file(write(PLAIN), **launch)


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        (
            {"grid": "M-301", "block": 1},
            r"grid.x is -1, but must be between 0 and .* 'M-301', where M = 300",
        ),
        (
            {"grid": "1,M*1000", "block": 1},
            r"grid.y is 300,000, above CUDA's limit of 65,535: --grid is 'M\*1000', where M",
        ),
        ({"grid": "M/(N-200)", "block": 1}, r"divides by zero with M = 300, N = 200"),
        (
            {"grid": 1, "block": "0,K"},
            r"block.x is 0, but must be .* 1 and 1,024: --block is '0'",
        ),
        (
            {"grid": 1, "block": "32,33"},
            r"1,056 threads per block exceed .*: --block is '32,33'",
        ),
        ({"grid": 1, "block": "M/7.0"}, r"not a whole number"),
        (
            {"grid": 1, "block": 1, "shared": "-K"},
            r"-100 bytes of shared memory: --shared is '-K', where K = 100",
        ),
    ],
)
def test_launches_that_fail_for_a_problem(write: Any, launch: Any, reason: str) -> None:
    kernel = Kernel.from_file(write(PLAIN), **launch)
    with pytest.raises(UnsupportedProblem, match=f"^gemm: .*{reason}"):
        planned(kernel)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (GemmProblem(3, 4, 5, alpha=2), "no argument 'alpha', so alpha can only be 1"),
        (GemmProblem(3, 4, 5, beta=2), "no argument 'beta', so beta can only be 0"),
        (GemmProblem(3, 4, 5, lda=6), "no argument 'lda', so lda can only be 5"),
        (GemmProblem(3, 4, 5, ldc=6), "no argument 'ldc', so ldc can only be 4"),
        (GemmProblem(3, 4, 5, epilogue=Epilogue(bias=True)), "no argument 'bias'"),
    ],
)
def test_problems_that_the_signature_cannot_express(
    write: Any, problem: GemmProblem, reason: str
) -> None:
    kernel = Kernel.from_file(write(PLAIN), **LAUNCH)
    found = kernel.supports(problem, kernel.default, BOARD)
    assert found is not None
    assert reason in found
    assert kernel.supports(GemmProblem(0, 4, 5), kernel.default, BOARD) is None


def test_a_bias_is_wanted_where_there_is_an_argument(write: Any) -> None:
    text = PLAIN.replace("float* C", "float* C, const float* bias")
    kernel = Kernel.from_file(write(text), **LAUNCH)
    assert "choose an epilogue with a bias" in str(kernel.supports(PROBLEM, kernel.default, BOARD))
    fused = GemmProblem(3, 4, 5, epilogue=Epilogue.parse("bias+relu"))
    assert kernel.supports(fused, kernel.default, BOARD) is None


def test_one_size_means_square(write: Any) -> None:
    text = "__global__ void k(float* A, float* B, float* C, int N) {}"
    kernel = Kernel.from_file(write(text), **LAUNCH)
    assert kernel.supports(GemmProblem(8, 8, 8), kernel.default, BOARD) is None
    assert "square matrices only" in str(kernel.supports(PROBLEM, kernel.default, BOARD))


def test_a_kernel_without_a_matrix_is_told_which(write: Any) -> None:
    path = write('extern "C" __global__ void k(float* C, int M, int N) { C[0] = 1; }')
    with pytest.raises(UsageError, match="'k' has no parameter for A and B"):
        Kernel.from_file(path, **LAUNCH)


@pytest.mark.parametrize("kind", ["int", "signed char", "uint4"])
def test_other_element_types_are_refused(write: Any, kind: str) -> None:
    kernel = Kernel.from_file(write(PLAIN.replace("float*", f"{kind}*")), **LAUNCH)
    assert f"points to {kind}, which is not a supported element type; use float, double" in str(
        kernel.supports(PROBLEM, kernel.default, BOARD)
    )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("half", "float16"),
        ("__nv_bfloat16", "bfloat16"),
        ("double", "float64"),
        ("half2", "float16"),
    ],
)
def test_the_types_of_matrices_are_read(write: Any, kind: str, dtype: Any) -> None:
    kernel = Kernel.from_file(write(PLAIN.replace("float*", f"{kind}*")), **LAUNCH)
    assert (kernel.dtypes, kernel.result_dtypes) == ((dtype,), (dtype,))
    own = GemmProblem(300, 200, 100, dtype=dtype)
    assert kernel.supports(own, kernel.default, BOARD) is None
    refused = str(kernel.supports(PROBLEM, kernel.default, BOARD))
    assert refused == f"'{kernel.name}' is for {dtype}, not float32"


@pytest.mark.parametrize(
    ("matrices", "words"),
    [
        ("const half* A, const half* B, float* C, float* bias", ""),
        ("const half* A, const float* B, float* C", "its A is float16, but its B is float32"),
        (
            "const half* A, const half* B, half* C, float* bias",
            "its C is float16, but its bias is float32",
        ),
    ],
)
def test_results_may_have_another_type(write: Any, matrices: str, words: str) -> None:
    text = f"__global__ void k({matrices}, int M, int N, int K) {{}}"
    kernel = Kernel.from_file(write(text), **LAUNCH)
    assert kernel.dtypes == ("float16",)
    result = kernel.result_dtypes[0]
    assert result == ("float16" if "half* C" in matrices else "float32")
    epilogue = Epilogue("bias" in matrices)
    problem = GemmProblem(3, 4, 5, dtype="float16", out_dtype=result, epilogue=epilogue)
    assert words in (kernel.supports(problem, kernel.default, BOARD) or "")


@pytest.mark.parametrize("kind", ["float**", "const float* const*", "float* const* __restrict__"])
def test_arrays_of_pointers_are_refused(write: Any, kind: str) -> None:
    kernel = Kernel.from_file(write(PLAIN.replace("float* C", f"{kind} C")), **LAUNCH)
    refused = str(kernel.supports(PROBLEM, kernel.default, BOARD))
    assert "its parameter 'float** C' is an array of pointers" in refused
    assert "a single matrix" in refused


def test_arrays_of_pointers_are_told_from_pointers_to_arrays() -> None:
    text = """__global__ void k(float* A[], float A2[][4], float (*A3)[4], Box<float**> A4,
                                const float* const* const A5) {}"""
    (kernel,) = kernels_in(text)
    assert [each.stars for each in kernel.parameters] == [2, 1, 1, 0, 2]


def test_types_by_other_names(write: Any) -> None:
    text = """typedef unsigned int uint_; using real = float; using cptr = const real*;
    #if 1
    typedef int size_type;
    #else
    typedef float size_type;
    #endif
    template <typename Index = uint_, class T = real>
    __global__ void k(Index M, uint_ N, int K, cptr A, const T* B, real* C, size_type last) {}
    """
    (kernel,) = kernels_in(text)
    assert [str(each) for each in kernel.parameters] == [
        *("Index M", "unsigned int N", "int K", "float* A", "T* B", "float* C", "size_type last"),
    ]
    text = text.replace(", size_type last", "")
    kernel = Kernel.from_file(write(text), **LAUNCH)
    assert kernel.signature == ("M", "N", "K", "A", "B", "C")
    doubles = Kernel.from_file(write(text), entry="k<int, double>", **LAUNCH)
    assert "its A is float32, but its B is float64" in str(
        doubles.supports(PROBLEM, doubles.default, BOARD)
    )


def test_declarations() -> None:
    text = """
    /* __global__ void commented(int M) {} */
    #define K __global__ void in_macro() {}
    const char* s = "__global__ void quoted() {} }";
    __global__ void declared(int);
    namespace a::b { namespace { extern "C" static __global__ void
    __launch_bounds__(256, 2) inner(const float (*__restrict__ A)[4], float x = f(1, 2))
    { if (1) {} }
    } }
    template __global__ void made<4>(int);
    template <class T, int = 3> __global__ void __cluster_dims__(2, 1, 1) last(T&& t, int n[]);
    """
    found = {each.name: each for each in kernels_in(text)}
    assert list(found) == ["declared", "a::b::inner", "last"]
    assert [str(each) for each in found["a::b::inner"].parameters] == ["float* A", "float x"]
    assert found["last"].template == (("T", ""), ("", "3"))
    assert [each.pointer for each in found["last"].parameters] == [False, True]


def test_a_kernel_is_shown_by_its_name_and_file(write: Any) -> None:
    kernel = Kernel.from_file(write(TILED), entry="tiled<128>", **LAUNCH)
    assert repr(kernel) == str(kernel) == "<Kernel tiled<128> from my.cu>"
    assert repr(find_kernel("naive")) == "<Kernel naive>"


def test_constants() -> None:
    text = (
        "#define A (1 + 2) // three\n#define F(x) x\nconstexpr int B = A * 2;\n"
        "const float c = 1;\nstatic constexpr unsigned D{4};\nconst int E = f(1, 2), G = D / 2;\n"
        "enum Sizes : int { H = 1 << 4, I, J = 8 };"
    )
    wanted = {"A": "(1 + 2)", "B": "A * 2", "D": "4", "E": "f(1, 2)", "G": "D / 2"}
    assert constants_in(text) == wanted | {"H": "1 << 4", "J": "8"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("// one\n// two\nint x;", "one"),
        ("\n/*\n * =====\n * Words here\n */", "Words here"),
        ("int x; // late", ""),
        ("// Tiles, vs. none. The rest\n// is more.\n", "Tiles, vs. none."),
        (
            f"// {'Tiles of registers, ' * 4}\n// of 8 x 8.\n",
            f"{'Tiles of registers, ' * 4}of 8 x 8.",
        ),
        (f"// {'Tiles of registers, ' * 4}\n// no end\n", ("Tiles of registers, " * 4).strip()),
        ("// Copyright (c) 2024 A\n// SPDX-License-Identifier: MIT\n// Tiles.\nint x;", "Tiles."),
        (
            "/* Copyright 2024\n *\n * Licensed under the MIT License,\n * see A */\n// Tiles.",
            "Tiles.",
        ),
        ("// (c) 2024\n\n/* Redistribution and use in\n * any form */\nint x;", ""),
        ("", ""),
    ],
)
def test_head_comments(text: str, line: str) -> None:
    assert head_comment(text) == line


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("cudaTextureObject_t", "is a texture: textures are not supported"),
        ("cudaSurfaceObject_t", "is a surface: surfaces are not supported"),
        ("const __grid_constant__ CUtensorMap", "is a tensor map: .*--tensor-map 'map_a=A,box="),
    ],
)
def test_parameters_that_take_no_matrix(write: Any, kind: str, reason: str) -> None:
    write(
        f"#pragma once\n\n__global__ void k({kind} A, float* B, float* C, int N) {{}}", "inner.cuh"
    )
    path = write('#include "inner.cuh"\n')
    with pytest.raises(UsageError, match=rf"inner\.cuh:3: '\w+ A' of 'k' {reason}"):
        Kernel.from_file(path, **LAUNCH)


CONDITIONAL = """
#ifndef TN
#define TN 4
#endif
#ifdef DOUBLED
typedef double real;
#else
typedef float real;
#endif
__global__ void gemm(const real* A, const real* B,
#if TN > 4
                     int extra,
#endif
                     real* C, int M, int N, int K
#if 0
                     , const int* none
#endif
) {}
#if 0
__global__ void other(float* A) {}
#endif
"""


def test_what_conditions_rule_out_does_not_count(write: Any) -> None:
    kernel = Kernel.from_file(write(CONDITIONAL), **LAUNCH)
    assert kernel.signature == ("A", "B", "C", "M", "N", "K")
    assert kernel.dtypes == ("float32",)
    assert kernel.source == CONDITIONAL
    doubled = Kernel.from_file(write(CONDITIONAL), **LAUNCH, options=("-DDOUBLED",))
    assert doubled.dtypes == ("float64",)
    wide = ("-DTN=8",)
    listed = Kernel.from_file(write(CONDITIONAL), **LAUNCH, options=wide, args="A,B,7,C,M,N,K")
    assert listed.signature == ("A", "B", "7", "C", "M", "N", "K")
    with pytest.raises(UsageError, match="extra"):
        Kernel.from_file(write(CONDITIONAL), **LAUNCH, options=wide)
