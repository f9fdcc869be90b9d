"""Users' files on their way to NVRTC: host code, includes, headers that NVRTC lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmkit.cxx.element_types import Asserted, element_assertions
from gemmkit.emulator.ptx.parser import parse
from gemmkit.emulator.ptx.places import place_of
from gemmkit.errors import CompileError
from gemmkit.jit import cuda_headers
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_source
from gemmkit.jit.host_code import survey, without_host_code
from gemmkit.jit.translation import translate
from gemmkit.kernels import include_files
from gemmkit.kernels.plan import SourceFile

KERNEL = "__global__ void k(float* C) { C[threadIdx.x] = 1; }\n"

# Each ends where device code begins again, so that what follows must be kept.
HOST_CODE = [
    "int main(int argc, char** argv) { k<<<1, dim3(32, 1)>>>(0); return 0; }",
    "template <typename T> T* make(size_t n) { T* p; cudaMalloc(&p, n); return p; }",
    "static inline void check(cudaError_t e, const char* s = \"{\") { if (e) exit('}'); }",
    "void declared(cublasHandle_t, std::vector<float>&);",
    "std::vector<int> sizes = {1, 2, {3}};\nfloat* buffer;",
    'const std::string name = "a;b";',
    "__host__ float only(float x) { return x; }",
    "struct Timer { cudaEvent_t start; void go() { cudaEventRecord(start); } };",
    "std::ostream& operator<<(std::ostream& o, const dim3& d) { return o << d.x; }",
    'namespace host { int f() { return 1; } class C { public: C() { printf(""); } }; }',
    'extern "C" { void f(int x) { x++; } }',
    "int f()\n#if 0\n{ return 0; }\n#else\n{ return 1; }\n#endif",
    "#define CHECK(x) do { if (x) \\\n  { exit(1); } } while (0)\nvoid g() { CHECK(f()); }",
    "auto lambda = [](int x) { return x + 1; };",
    'const char* usage = R"(\nusage: { } \n)";',
    "template <class T> class Matrix { vector<T> data; public: Matrix(int n) : data(n) {} };",
    'torch::Tensor f(torch::Tensor a) { return a; }\nPYBIND11_MODULE(NAME, m) { m.def("f", &f); }',
    "void f() try { } catch (...) { }",
    "Foo::Foo(int a) : x(a) {}",
    "auto f(int x) -> int { return x; }\n[[nodiscard]] static int g() noexcept(true) { return 2; }",
    "template void launch<float>(int, cudaStream_t);\nextern template class Stack<float>;",
    "using Floats = std::vector<float>;\ntypedef Floats Row;\nstruct Data { Row row; int n; };",
    "class Error : public std::runtime_error { using std::runtime_error::runtime_error; };\n"
    "using Failure = Error;",
    "namespace fs = std::filesystem;\nusing std::vector;\nusing namespace std::chrono;",
    "constexpr std::array<int, 2> sizes{1, 2};\nstatic_assert(std::is_same_v<int, int>);",
    "template <typename T> concept Number = std::is_arithmetic_v<T>;",
    "typedef struct { cudaStream_t stream; } Work;\nenum class Way { one, two };\n",
]
DEVICE_CODE = [
    "__device__ float twice(float x) { return 2 * x; }",
    "__host__ __device__ inline int f(int a) { return a; }",
    "constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }",
    "__constant__ float table[2] = {1, 2};",
    "static const int N = 3; const float HALF = .5f; constexpr int M = N * 2;",
    "struct Pair { int a; float b; };",
    "struct Op { __device__ float operator()(float x) const { return x; } };",
    "template <int N> struct Tile { float data[N]; };",
    "enum Kind { ONE, TWO = 5 }; using F = float; typedef float4 V; union U { int i; float f; };",
    "#define DEVICE __device__ __forceinline__\nDEVICE float g(float x) { return x; }",
    "namespace a { namespace b { __device__ int h() { return 1; } } } using namespace a;",
    'extern "C" { __device__ int h() { return 1; } }',
    "extern __shared__ float dynamic[];",
    "__managed__ int counter;",
    'static_assert(sizeof(float) == 4, "yes");',
    "template <> struct Tile<1>;",
    "struct Sizes { static constexpr std::size_t N = 4; };\n"
    "using S = Sizes;\n__device__ int length() { return S::N; }",
    "constexpr int most = std::max(3, 4);\n#define MOST most\n"
    "__device__ int greatest() { return MOST; }",
]


def compiled(text: str, folder: Path, **rest: Any) -> Binary:
    source = SourceFile(text, "my.cu", "cuda", (str(folder),), **rest)
    return compile_source(source, "k", "sm_80", cache_dir=folder / "cache")


def _bits(number: float) -> str:
    """A number as PTX stores it where it is constant."""
    return str(np.float32(number).view(np.uint32))


@pytest.mark.parametrize("code", HOST_CODE)
def test_host_code_is_left_out(code: str) -> None:
    text = f"{KERNEL}{code}\n{KERNEL}"
    left = without_host_code(text, survey([text]))
    lines = [line for line in left.split("\n") if line.strip() and "#" not in line]
    assert [line.strip() for line in lines if not line.endswith("while (0)")][:1] == [
        KERNEL.strip()
    ]
    assert left.endswith(f"\n{KERNEL}")
    assert len(left) == len(text)
    assert [i for i, c in enumerate(left) if c == "\n"] == [
        i for i, c in enumerate(text) if c == "\n"
    ]
    kept = {word for line in lines[1:-1] for word in line.split()}
    assert not kept - {
        *("namespace", "host", "extern", '"C"', "{", "}", "exit(1);", "while", "(0)"),
        *("enum", "class", "Way", "one,", "two", "};"),
    }


@pytest.mark.parametrize("code", DEVICE_CODE)
def test_device_code_is_kept(code: str) -> None:
    text = f"{KERNEL}{code}\n{KERNEL}"
    assert without_host_code(text, survey([text])) == text


def test_lambdas_of_device_code_lose_their_words(tmp_path: Path) -> None:
    text = """__global__ void k(float* x) {
      auto twice = [=] __host__ __device__(float y) { return 2 * y; };
      auto put = [&]__device__ { x[0] = twice(x[1]); };
      put();
    }
    __device__ int table[2] = {1, 2};
    """
    left = without_host_code(text, survey([text]))
    assert "auto twice = [=]                    (float y) {" in left
    assert "[&]           { x[0]" in left
    assert left.count("__device__") == 1
    assert len(left) == len(text)
    assert compiled(text, tmp_path).ptx


def test_unbalanced_text_stays_as_it_is() -> None:
    text = "int f() { return 1;\n" + KERNEL
    assert without_host_code(text, survey([text])) == text


def test_a_whole_program_compiles(tmp_path: Path) -> None:
    host = "\n".join(code for code in HOST_CODE if "#else" not in code)
    device = "\n".join(code for code in DEVICE_CODE if code.count("template") == 0)
    text = f"""
#include <cuda_runtime.h>
#include <cstdio>
#include <iostream>
#include <vector>
#include <cublas_v2.h>
#include <stdint.h>
#include <algorithm>
#include <type_traits>
#include <climits>
#include <cmath>
#include <torch/extension.h>
using namespace std;
{device}
{host}
__global__ void k(float* C) {{
  uint32_t n = std::min(cdiv(7, 2), INT_MAX) + f(1) + h();
  if constexpr (std::is_same_v<F, float>) n += std::max(N, M);
  printf("%d\\n", n);
  C[n] = g(twice(HALF)) + table[1] + M_PI;
}}
"""
    binary = compiled(text, tmp_path)
    assert binary.ptx.count(".entry") == 1
    line = text.split("\n").index("  C[n] = g(twice(HALF)) + table[1] + M_PI;") + 1
    assert '.file\t1 "my.cu"' in binary.ptx
    assert f".loc\t1 {line} " in binary.ptx


def test_a_type_of_the_host_is_left_out_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "host.h").write_text(
        "#include <stdexcept>\nclass Error : public std::runtime_error {};\n"
        "#define CHECK(x) if (x) throw Error()\ntemplate <typename T> class Memory { T* p; "
        "Memory(int n) { CHECK(cudaMalloc(&p, n)); } };\nconstexpr int TILE = 16;\n"
    )
    text = """#include "host.h"
using Floats = Memory<float>;
struct Problem { Floats a, b; };
template void run<float>(Problem&);
__global__ void k(float* C) { C[0] = TILE; }
"""
    assert _bits(16) in compiled(text, tmp_path).ptx


def test_a_type_of_the_host_may_share_its_name_with_a_template_parameter(tmp_path: Path) -> None:
    text = """#include <string>
struct Config { std::string name; int tile; };
struct Tiles { static constexpr int tile = 16; };
template <typename Config> __device__ int twice() { return 2 * Config::tile; }
__global__ void k(float* C) { C[0] = twice<Tiles>(); }
"""
    assert _bits(32) in compiled(text, tmp_path).ptx


def test_member_functions_of_the_host_are_left_out(tmp_path: Path) -> None:
    text = """#include <iostream>
class Matrix {
public:
  __host__ Matrix(int n) : n_(n) { cudaMalloc(&data_, n * sizeof(float)); }
  void release() { cudaFree(data_); }
  friend std::ostream& operator<<(std::ostream& o, const Matrix& m) { return o << m.n_; }
  int size() const { return n_; }
  __host__ __device__ float& operator[](int i) { return data_[i]; }
private: int n_; float* data_;
};
__global__ void k(Matrix C) { C[C.size()] = 9; }
"""
    assert _bits(9) in compiled(text, tmp_path).ptx
    left = without_host_code(text, survey([text]))
    assert [len(line) for line in left.split("\n")] == [len(line) for line in text.split("\n")]
    assert "cudaMalloc" not in left
    assert "ostream& operator" not in left


def test_device_code_has_names_of_the_standard_library(tmp_path: Path) -> None:
    text = """
#include <array>
#include <limits>
#include <utility>
#include <cudaTypedefs.h>
#include <cuda.h>
#include <stdio.h>
#include <thrust/device_vector.h>
PFN_cuTensorMapEncodeTiled driver_function();
using lim = std::numeric_limits<float>;
static_assert(lim::max() > 3e38f && lim::lowest() < 0 && -lim::infinity() < lim::lowest());
static_assert(std::numeric_limits<int>::min() < 0 && std::numeric_limits<char>::digits == 7);
template <int... I> __device__ float sum(std::integer_sequence<int, I...>, const float* x) {
  return (x[I] + ...);
}
__global__ void k(float* x, int n) {
  std::array<float, 2> pair{std::fma(x[0], x[1], x[2]), std::sqrt(std::abs(x[3]))};
  std::swap(pair[0], pair[1]);
  std::remove_cv_t<const float> low = -lim::infinity(), high = std::move(x[4]);
  static_assert(std::is_floating_point_v<decltype(low)> && std::is_integral_v<std::ptrdiff_t>);
  float all = sum(std::make_integer_sequence<int, 4>{}, x) + std::exp(x[5]) + std::pow(x[6], 2.f);
  x[0] = std::clamp(std::fmax(low, pair[0]), low, high) + (std::isnan(all) ? 1 : all) + INFINITY;
  if (n == INT_MAX) printf("%d", std::min(n, 3));
}
"""
    assert "fma.rn.f32" in compiled(text, tmp_path).ptx


def test_includes_come_from_the_users_folders(tmp_path: Path) -> None:
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "extra").mkdir()
    (tmp_path / "src/inner/a.cuh").write_text('#pragma once\n#include "../b.cuh"\nvoid host();\n')
    (tmp_path / "src/b.cuh").write_text("#pragma once\n#include <c.cuh>\n#define B (C + 1)\n")
    (tmp_path / "extra/c.cuh").write_text("#pragma once\n#define C 40\n")
    text = (
        '// #include "missing.cuh"\n#include "inner/a.cuh"\n#include "b.cuh"\n'
        "__global__ void k(float* x) { x[0] = B; }"
    )
    folders = (str(tmp_path / "src"), str(tmp_path / "extra"))
    source = SourceFile(text, "my.cu", "cuda", folders)
    unit = translate(source, {})
    extra = (tmp_path / "extra/c.cuh").as_posix()
    assert {"inner/a.cuh", "b.cuh", extra} <= unit.headers.keys()
    first = compile_source(source, "k", "sm_80", cache_dir=tmp_path / "cache")
    assert _bits(41) in first.ptx
    (tmp_path / "extra/c.cuh").write_text("#pragma once\n#define C 41\n")
    second = compile_source(source, "k", "sm_80", cache_dir=tmp_path / "cache")
    assert second.key != first.key
    assert _bits(42) in second.ptx


def test_the_ladders_headers_serve_copies_of_rungs(tmp_path: Path) -> None:
    text = '#include "cp_async.cuh"\n' + KERNEL
    source = SourceFile(text, "my.cu", "cuda", (str(tmp_path),))
    headers = translate(source, include_files()).headers
    assert headers["cp_async.cuh"] == include_files()["cp_async.cuh"]
    (tmp_path / "cp_async.cuh").write_text("// mine\n")
    assert translate(source, include_files()).headers["cp_async.cuh"] == "// mine\n"


def test_cuda_headers(tmp_path: Path) -> None:
    text = (
        '#include <cuda_fp16.h>\n#include "cuda_bf16.h"\n#include <cuda_pipeline.h>\n'
        "#include <climits>\n__global__ void k(__half* C) { C[0] = __float2half(2.f) * C[1]; }"
    )
    binary = compiled(text, tmp_path)
    assert "mul" in binary.ptx
    assert str(tmp_path) not in binary.ptx + binary.log
    assert binary == compiled(text, tmp_path)


HALF = "#include <cuda_fp16.h>\n__global__ void k(__half* C) { C[0] = __float2half(2.f); }"


@pytest.mark.parametrize("damage", [b"", bytes(4096)])
def test_damaged_cuda_headers_are_unpacked_again(tmp_path: Path, damage: bytes) -> None:
    assert compiled(HALF, tmp_path).ptx
    (header,) = (tmp_path / "cache/headers").glob("*/cuda_fp16.h")
    intact = header.read_bytes()
    header.write_bytes(damage)
    cuda_headers._matches.cache_clear()  # as in another process
    assert compiled(HALF.replace("2.f", "3.f"), tmp_path).ptx
    assert header.read_bytes() == intact


@pytest.mark.parametrize("cache", ["/proc", "/dev/full", "file"])
@pytest.mark.filterwarnings("ignore:.*is not writable:RuntimeWarning")
def test_cuda_headers_need_no_cache(tmp_path: Path, cache: str) -> None:
    (tmp_path / "file").write_text("in the way")
    source = SourceFile(HALF, "my.cu", "cuda", (str(tmp_path),))
    assert compile_source(source, "k", "sm_80", cache_dir=tmp_path / cache).ptx
    with pytest.warns(RuntimeWarning, match="is not writable"):
        (folder, _) = cuda_headers.cuda_include_dirs(tmp_path / cache)
    assert (Path(folder) / "cuda_fp16.h").is_file()


def test_options_reach_the_compiler(tmp_path: Path) -> None:
    text = "__global__ void k(float* x) { x[0] = VALUE; static_assert(__cplusplus > 201703L); }"
    assert _bits(7) in compiled(text, tmp_path, options=("-DVALUE=7", "--std=c++20")).ptx


def test_dependent_launches(tmp_path: Path) -> None:
    """What is inlined from CUDA's device runtime counts as code of the line that calls it."""
    text = (
        "__global__ void k(float* C) {\n  ::cudaGridDependencySynchronize();\n  C[0] = 1;\n"
        "  cudaTriggerProgrammaticLaunchCompletion();\n}\n"
    )
    source = SourceFile(text, "my.cu", "cuda", (str(tmp_path),))
    ptx = compile_source(source, "k", "sm_90", cache_dir=tmp_path, assemble=False).ptx
    (kernel,) = parse(ptx).kernels.values()
    opcodes = [each.opcode for each in kernel.body]
    wait, launch = (
        opcodes.index(f"griddepcontrol.{each}") for each in ("wait", "launch_dependents")
    )
    assert wait < opcodes.index("st.global.u32") < launch
    assert [place_of(kernel.body[each]) for each in (wait, launch)] == [("my.cu", 2), ("my.cu", 4)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__global__ void k(float* C) {\n  C[0] = x;\n}", r"my\.cu:2: .*\"x\" is undefined"),
        ('#include "gone.cuh"\n' + KERNEL, r"my\.cu:1: .*gone\.cuh"),
        ("__global__ void k(float* C) { f(C); }\nvoid f(float* C) {}", r"my\.cu:1: .*\"f\""),
        (
            "__global__ void k(float* C) { real_t x[kTile]; C[threadIdx.x % WARPSIZE] = x[0]; }",
            r"not declared in any .*: 'real_t', 'kTile', 'WARPSIZE'; .*: --option=-Dreal_t=float "
            "--option=-DkTile=VALUE --option=-DWARPSIZE=32",
        ),
        (
            "__global__ void k(float* C) { C[0] = CEIL_DIV(3, 2); }",
            "not declared in any .*: 'CEIL_DIV'; include the header that declares it",
        ),
        (
            "__global__ void j(float* C) {}\n__global__ void k(float* C) { j<<<1, 1>>>(C); }",
            r"my\.cu:2: (.|\n)*dynamic parallelism",
        ),
        (
            "texture<float> t;\n__global__ void k(float* C) { C[0] = tex1Dfetch(t, 1); }",
            r"my\.cu:2: (.|\n)*texture references were removed",
        ),
        (
            "#include <thrust/reduce.h>\n"
            "__global__ void k(float* C) { C[0] = thrust::reduce(thrust::seq, C, C + 4); }",
            r"my\.cu:2: (.|\n)*thrust is not supported in kernels",
        ),
        (
            "__global__ void k(float* C) {\n  cudaGridDependencySynchronize();\n}",
            r"my\.cu:2: (.|\n)*programmatic dependent launches need compute capability 9\.0",
        ),
    ],
)
def test_errors_tell_the_users_lines(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        compiled(text, tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("auto f = [&](int i) { C[i] = 1; };", "auto f = [&](int i) { C[i] = 2; };"),
        ("auto f = [&](int i) {", "auto f = [&](int i) { if (i < 0) return;"),
        ("for (int i = 0; i < 2; ++i) {", "{ const int i = 0;"),
    ],
)
def test_alternatives_that_open_one_block_do_not_end_the_kernel(first: str, second: str) -> None:
    after = "C[0] = 3; { C[1] = 4; }" + "}" * (first.count("{") - first.count("}")) + ";"
    alternatives = f"#ifdef ONE\n{first}\n#else\n{second}\n#endif\n"
    kernel = f"__global__ void k(float* C) {{\n{alternatives}{after}\n}}\n"
    text = kernel + "int main() { return 0; }\n" + KERNEL
    kept = without_host_code(text, survey([text]))
    assert kept.startswith(kernel)
    assert "main" not in kept
    assert kept.endswith(KERNEL)


def test_alternatives_that_close_one_block_do_not_end_the_kernel() -> None:
    kernel = (
        "__global__ void k(float* C) {\n  auto f = [&](int i) {\n"
        "#ifdef ONE\n    C[i] = 1; };\n#else\n    C[i] = 2; };\n#endif\n  f(0);\n  f(1);\n}\n"
    )
    text = kernel + "int main() { return 0; }\n" + KERNEL
    kept = without_host_code(text, survey([text]))
    assert kept.startswith(kernel)
    assert "main" not in kept
    assert kept.endswith(KERNEL)


def test_a_library_made_for_nvrtc_stays_as_it_is(tmp_path: Path) -> None:
    """Such as CUTLASS, whose functions for the host NVRTC can compile too."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "config.h").write_text(
        "#ifdef __CUDACC_RTC__\n#define BOTH __host__ __device__\n#endif\n"
    )
    (library / "arrays.h").write_text("#include <config.h>\nint of_the_host();\n")
    text = "#include <arrays.h>\nint too();\n__global__ void k(float* C) { C[0] = 1; }\n"
    source = SourceFile(text, "my.cu", "cuda", (str(tmp_path), str(library)))
    unit = translate(source, {})
    assert "int too" not in unit.text
    (arrays,) = (each for name, each in unit.headers.items() if name.endswith("arrays.h"))
    assert "int of_the_host();" in arrays
    assert _bits(1) in compile_source(source, "k", "sm_80", cache_dir=tmp_path / "cache").ptx


@pytest.mark.parametrize("written", ['"absent.h"', "<absent.h>", ' "absent.h"', "  <absent.h>"])
def test_a_message_quotes_an_include_as_it_was_written(written: str, tmp_path: Path) -> None:
    (tmp_path / "mine.h").write_text("constexpr int two = 2;\n")
    text = f'#include "mine.h"\n#include{written}\n{KERNEL}'
    with pytest.raises(CompileError, match="cannot open source file") as refused:
        compiled(text, tmp_path)
    assert f'     1 | #include "mine.h"\n>    2 | #include{written}\n' in str(refused.value)


@pytest.mark.parametrize("name", ["V", "N", "U", "B", "Is", "items", "least", "most"])
def test_macros_of_a_user_do_not_change_the_stand_ins(name: str, tmp_path: Path) -> None:
    text = (
        f"#include <array>\n__global__ void k(int* p) {{ std::array<int, 2> q; q[0] = {name};\n"
        "  p[0] = q[0] + std::min(1, 2) + std::numeric_limits<int>::max() + INT_MAX; }\n"
    )
    source = SourceFile(text, "my.cu", "cuda", (str(tmp_path),), (f"-D{name}=7",))
    compile_source(source, "k", "sm_86", assemble=False, cache_dir=tmp_path / "cache")


def test_a_macro_that_changes_the_compilers_own_header(tmp_path: Path) -> None:
    source = SourceFile(KERNEL, "my.cu", "cuda", (str(tmp_path),), ("-DT=float",))
    with pytest.raises(CompileError, match=r"a macro of --option=-D… has the name of something"):
        compile_source(source, "k", "sm_86", assemble=False, cache_dir=tmp_path / "cache")


def test_macros_of_a_source_do_not_change_what_follows_it(tmp_path: Path) -> None:
    text = (
        "#define T float\n#define N 4\n#define kind 1\n#define P 2\n#define type 3\n"
        "using element = T;\n__global__ void k(element* A) {}\n"
    )
    asserted = element_assertions("k", [Asserted(0, "A", "float32")])
    source = SourceFile(text, "my.cu", "cuda", (str(tmp_path),), (), assertions=asserted)
    compile_source(source, "k", "sm_86", assemble=False, cache_dir=tmp_path / "cache")
