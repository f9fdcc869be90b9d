"""Instructions that the emulator lacks are refused in CUDA C++'s words, with the user's line."""

from __future__ import annotations

import pytest

from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse
from gemmkit.emulator.ptx.variables import PtxSyntaxError
from gemmkit.errors import GemmkitError, UnsupportedInstruction

KERNEL = """.version 8.5
.target sm_90
.entry k(.param .u64 p) {{
  .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .f32 %f<4>;
  .loc 1 12 3
  mov.u32 %r1, 0;
  {body}
  ret;
}}
{rest}
.file 1 "my.cu"
.file 2 "cooperative_groups/details/helpers.h"
.file 3 "cuda/__ptx/instructions/generated/mbarrier_init.h"
"""


def refused(body: str, rest: str = "") -> GemmkitError:
    with pytest.raises((UnsupportedInstruction, PtxSyntaxError)) as caught:
        ControlFlow.of(parse(KERNEL.format(body=body, rest=rest), entry="k").kernels["k"])
    return caught.value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%rd1, {%r1}];", "texture fetches (tex1Dfetch"),
        ("sust.b.1d.b32.trap [%rd1, {%r1}], {%r2};", "surface accesses"),
        ("mov.u32 %r2, %envreg2;", "grid-wide synchronization (cooperative_groups::this_grid()"),
        ("barrier.cluster.arrive.acquire;", "barriers of a cluster of this form"),
        ("wmma.load.a.sync.aligned.row.m8n8k32.s4 {%r1}, [%rd1];", "through nvcuda::wmma"),
        ("wgmma.fence.sync;", "warpgroup tensor-core operations (wgmma)"),
        ("cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%rd1, {%r1, %r2, %r3}], {%rs1};",
         "tensor copies (TMA) in the im2col modes"),
        ("cp.async.bulk.commit_group.sync;", "Tensor Memory Accelerator (TMA) of this form"),
        ("mbarrier.init.shared::cluster.b64 [%r1], 1;", "mbarrier instructions of this form"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f0}, {%r1}, {%r2}, {%f1};",
         "Volta's products of 8×8×4 in fp16 (mma.sync.m8n8k4)"),
        ("mma.sync.aligned.m16n8k64.row.col.satfinite.s32.s4.u4.s32 {%r0}, {%r1}, {%r2}, {%r3};",
         "products of 4-bit integers"),
        ("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%r0}, {%r1}, {%r2}, {%r3};",
         "products of single bits"),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r1}, {%r2}, {%f1}, %r3, 0;",
         "sparse tensor-core operations"),
        ("mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e3m2.e2m1.f32 {%f0}, {%r1}, {%r2}, "
         "{%f1};", "Blackwell's scaled products"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.tf32.tf32.f32 {%f0}, {%r1}, {%r2}, {%f1};",
         "tensor-core operations (mma.sync) of these types"),
        ("vadd4.u32.u32.u32 %r1, %r1, %r2, %r2;", "SIMD video instructions"),
    ],
)  # fmt: skip
def test_each_is_named_with_the_line(body: str, words: str) -> None:
    message = str(refused(body))
    assert words in message
    assert "supported by the emulator (my.cu:12: " in message


def test_lines_in_cudas_headers_are_followed_to_the_call() -> None:
    called = """.loc 2 90 5, function_name $info, inlined_at 1 20 3
  .loc 3 17 3, function_name $info, inlined_at 2 90 5
  """
    assert "(my.cu:20: " in str(refused(f"{called}mbarrier.init.shared::cluster.b64 [%r1], 1;"))
    assert "(my.cu:20: %envreg1)" in str(refused(f"{called}mov.u32 %r1, %envreg1;"))


def test_what_cannot_be_read_has_the_source_line() -> None:
    assert str(refused("mov.u32 %r1, %nothing;")).startswith("my.cu:12: the emulator cannot read")


def test_other_kernels_may_hold_anything() -> None:
    other = ".entry other() { .reg .b32 %r<2>; mov.u32 %r1, %envreg2; ret; }"
    text = KERNEL.format(body="", rest=other)
    assert [*parse(text, entry="k").kernels] == ["k"]
    with pytest.raises(UnsupportedInstruction, match="grid-wide"):
        parse(text)


def test_tables_of_function_pointers() -> None:
    text = ".global .align 8 .u64 table[2] = {_Z1fv, _Z1gv};\n.entry k() { ret; }"
    with pytest.raises(PtxSyntaxError, match=r"'table' .* initialized with addresses"):
        parse(text)
