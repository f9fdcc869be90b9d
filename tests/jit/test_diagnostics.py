"""Broken sources: each message comes with the lines that it is about."""

from __future__ import annotations

import textwrap

import pytest

from gemmkit.errors import CompileError
from gemmkit.jit.architectures import needed_architecture
from gemmkit.jit.diagnostics import excerpt
from gemmkit.jit.nvrtc import compile_program


def message_of(source, entry="k", headers=None) -> str:
    with pytest.raises(CompileError) as caught:
        compile_program(source, entry, "sm_86", headers=headers or {}, file_name="broken.cu")
    return str(caught.value)


def lines(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def test_an_error_in_the_source() -> None:
    message = message_of(
        'extern "C" __global__ void k(float* x) {\n\tx[0] = x[1] * factor;\n  x[1] = 0.0f;\n}\n'
    )
    assert message.startswith("broken.cu does not compile for sm_86:")
    assert (
        lines("""
        broken.cu:2: error: identifier "factor" is undefined
             1 | extern "C" __global__ void k(float* x) {
        >    2 | \tx[0] = x[1] * factor;
               | \t              ^
             3 |   x[1] = 0.0f;
        """)
        in message
    )


def test_several_errors_each_with_its_line() -> None:
    message = message_of("int *a = b;\n\n\n__device__ int f() { return c; }\n")
    assert "broken.cu:1: " in message
    assert ">    1 | int *a = b;" in message
    assert "broken.cu:4: " in message
    assert ">    4 | __device__ int f() { return c; }" in message


def test_an_error_in_a_header() -> None:
    message = message_of(
        '#include "half.cuh"\nextern "C" __global__ void k() {}\n',
        headers={
            "half.cuh": "#pragma once\n\n__device__ float half(float x) { return x / two; }\n"
        },
    )
    assert (
        lines("""
        half.cuh:3: error: identifier "two" is undefined
             2 |
        >    3 | __device__ float half(float x) { return x / two; }
               |                                             ^
        """)
        in message
    )


def test_an_error_in_a_template_names_the_instance() -> None:
    message = message_of(
        "template <class T> __global__ void k(T* x) {\n  *x = x->size;\n}\n", entry="k<float>"
    )
    assert ">    2 |   *x = x->size;" in message
    assert "[with T=float]" in message


def test_an_error_of_ptxas_is_traced_to_the_source() -> None:
    message = message_of(
        'extern "C" __global__ void k(int* x) {\n  *x = 1;\n  asm("frobnicate.f32 %r1;");\n}\n'
    )
    assert (
        lines("""
        ptxas: error: Not a name of any known instruction: 'frobnicate'
        from broken.cu:3
             2 |   *x = 1;
        >    3 |   asm("frobnicate.f32 %r1;");
             4 | }
        in PTX: frobnicate.f32 %r1;
        """)
        in message
    )


def test_too_much_shared_memory() -> None:
    message = message_of(
        'extern "C" __global__ void k(float* x) {\n  __shared__ float tile[99999];\n'
        "  tile[threadIdx.x] = *x;\n  __syncthreads();\n  *x = tile[threadIdx.x ^ 1];\n}\n"
    )
    assert "Entry function 'k' uses too much shared data" in message
    assert "Compiling entry function" not in message, "figures are no part of the complaint"
    assert "\0" not in message


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("missing", "entry 'missing': error: identifier \"missing\" is undefined"),
        ("tiled", "entry 'tiled': error: cannot determine which instance"),
        ("tiled<1,", "entry 'tiled<1,': error: expected an expression"),
    ],
)
def test_an_entry_that_is_not_there(entry, reason) -> None:
    message = message_of(
        "template <int A, int B> __global__ void __launch_bounds__((A + 1) * (B))\n"
        "    tiled(float* x) { *x = A; }\n"
        'extern "C" __global__ void plain() {}\n',
        entry,
    )
    assert reason in message
    assert "kernels in these files: plain, tiled<A, B>" in message
    assert "__nv_name_map" not in message


def test_kernels_that_share_a_name() -> None:
    text = "__global__ void k(float* x) {}\n__global__ void k(int n) {}\n"
    message = message_of(text)
    assert "several functions are called 'k': give the types of its parameters" in message
    assert "--entry 'k(const float *, …)', or give the kernel a name of its own" in message


@pytest.mark.parametrize("name", ["<stdint.h>", '"tile.cuh"'])
def test_a_missing_header(name) -> None:
    message = message_of(f"#include {name}\n", headers={"gemm.cuh": ""})
    assert f">    1 | #include {name}" in message
    assert f"'{name[1:-1]}' is none of the files that were given to the compiler" in message
    assert "(broken.cu, gemm.cuh)" in message


def test_a_message_about_a_macro_shows_where_it_is_used() -> None:
    message = message_of(
        '#define TWICE(x) (x + y)\nextern "C" __global__ void k(int* x) {\n  *x = TWICE(1);\n}\n'
    )
    assert ">    3 |   *x = TWICE(1);" in message


def test_excerpts_at_the_edges_of_a_text() -> None:
    assert excerpt("one\ntwo\n", 1, 2) == [">    1 | one", "       |   ^", "     2 | two"]
    assert excerpt("one\ntwo\n", 2) == ["     1 | one", ">    2 | two"]
    assert excerpt("one\x0ctwo\r\nthree", 2) == ["     1 | one\x0ctwo", ">    2 | three"]
    assert excerpt("one", 2) == []
    assert excerpt("one", 0) == []


HOPPER = """
__global__ void k(unsigned a, void* m) {
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("fence.proxy.async;");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4;" ::"r"(a));
  asm volatile("barrier.cluster.arrive.aligned;");
  asm volatile("barrier.cluster.wait.aligned;");
  asm volatile("wgmma.commit_group.sync.aligned;");
}
"""


def test_a_kernel_for_another_architecture_names_it() -> None:
    message = message_of(HOPPER)
    head, _, rest = message.partition("\n\n")
    assert head == (
        "broken.cu does not compile for sm_86: it uses wgmma.fence, wgmma.commit_group, "
        "mbarrier.arrive.expect_tx and 3 more, which need sm_90a: give --gpu h100"
    )
    assert rest.count("error:") == 4
    assert rest.endswith("and 2 more errors")


def test_an_older_architecture_may_do() -> None:
    message = message_of(
        '__global__ void k(unsigned a) { asm volatile("fence.proxy.async;"); }'
    ).partition("\n")[0]
    assert message.endswith("it uses .async, which need sm_90: give --gpu h100")
    log = "Feature 'mma with .e4m3' requires .target sm_89 or higher"
    assert needed_architecture(log).endswith("which need sm_89: give --gpu l4")
    log = "extern function '__cuda_ptx_tcgen05_alloc_is_only_supported_on_SM_100a_SM_103a__'"
    assert needed_architecture(log) == "it uses tcgen05_alloc, which need sm_100a: give --gpu b200"
    assert not needed_architecture("Instruction 'frob' not supported on .target 'sm_86'")


def test_only_the_first_errors_are_shown() -> None:
    body = "\n".join(f"  x[{each}] = missing{each};" for each in range(9))
    message = message_of(f"__global__ void k(int* x) {{\n{body}\n}}\n")
    assert message.count("is undefined") == 4
    assert "and 5 more errors" in message
