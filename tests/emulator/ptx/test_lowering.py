"""Calls of functions and jump tables, rewritten for the executors."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch

from gemmkit.emulator.ptx.lowering import lowered
from gemmkit.emulator.ptx.parser import parse
from gemmkit.errors import UnsupportedInstruction

LANES = np.arange(32, dtype=np.uint32)

# 3 * a + b, but b where a is 5.
FUNCTION = """
.func (.param .b32 result) combine(.param .b32 combine_0, .param .b32 combine_1)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    ld.param.u32 %r0, [combine_0];
    ld.param.u32 %r1, [combine_1];
    setp.ne.u32 %p0, %r0, 5;
    st.param.b32 [result], %r1;
    @!%p0 ret;
    mad.lo.u32 %r2, %r0, 3, %r1;
    st.param.b32 [result], %r2;
    ret;
}
"""
CALL = "{{ .param .b32 x; .param .b32 y; .param .b32 z; st.param.b32 [x], {}; \
st.param.b32 [y], {}; {} call.uni (z), combine, (x, y); ld.param.u32 {}, [z]; }}"


def test_a_function_runs_in_place_of_its_call(executor: Executor) -> None:
    body = f"""
    mov.u32 %r0, 1000;
    {CALL.format("%tid", "7", "", "%r1")}
    {CALL.format("%r1", "%r0", "", "%r2")}
    add.u32 %r2, %r2, %r0;
    st.global.u32 [%at], %r2;
    """
    text = kernel_ptx(body, outside=FUNCTION)
    out = launch(executor, text, np.zeros(32, np.uint32)).arrays[0]
    once = np.where(LANES == 5, 7, 3 * LANES + 7)
    assert out.tolist() == (np.where(once == 5, 1000, 3 * once + 1000) + 1000).tolist()


def test_a_guarded_call_leaves_the_other_lanes_alone(executor: Executor) -> None:
    body = f"""
    setp.lt.u32 %p1, %tid, 9;
    {CALL.format("%tid", "1", "@!%p1", "%r1")}
    selp.u32 %r1, 77, %r1, %p1;
    st.global.u32 [%at], %r1;
    """
    out = launch(executor, kernel_ptx(body, outside=FUNCTION), np.zeros(32, np.uint32)).arrays[0]
    assert out.tolist() == np.where(LANES < 9, 77, 3 * LANES + 1).tolist()


def test_functions_call_functions(executor: Executor) -> None:
    outer = """
.func (.param .b32 twice_result) twice(.param .b32 twice_0)
{
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [twice_0];
    """
    inner = CALL.format("%r1", "%r1", "", "%r2")
    text = FUNCTION + outer + inner + "st.param.b32 [twice_result], %r2; ret; }"
    body = """
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %tid; call (b), twice, (a); ld.param.u32 %r1, [b]; }
    st.global.u32 [%at], %r1;
    """  # noqa: E501
    out = launch(executor, kernel_ptx(body, outside=text), np.zeros(32, np.uint32)).arrays[0]
    assert out.tolist() == np.where(LANES == 5, 5, 4 * LANES).tolist()


def test_names_of_an_inner_scope_end_with_it(executor: Executor) -> None:
    body = """
    mov.u32 %r1, 5;
    { .reg .b32 %r1; mov.u32 %r1, 6; st.global.u32 [%at], %r1; }
    ld.global.u32 %r2, [%at]; add.u32 %r2, %r2, %r1; st.global.u32 [%at], %r2;
    """
    out = launch(executor, kernel_ptx(body), np.zeros(32, np.uint32)).arrays[0]
    assert set(out.tolist()) == {11}


def test_source_lines_continue_after_a_call() -> None:
    body = f"{CALL.format('%tid', '7', '', '%r1')}\nst.global.u32 [%at], %r1;"
    inside = FUNCTION.replace("mad.lo", ".loc 1 90 1\nmad.lo")
    (kernel,) = parse(kernel_ptx(body, outside=inside)).kernels.values()
    lines = {each.opcode: each.source.line for each in kernel.body if each.source is not None}
    assert (lines["mad.lo.u32"], lines["ld.param.u32"], lines["st.global.u32"]) == (90, 1, 2)


def test_recursion_is_refused() -> None:
    again = FUNCTION.replace("mad.lo.u32 %r2, %r0, 3, %r1;", CALL.format("%r0", "%r1", "", "%r2"))
    body = CALL.format("%tid", "7", "", "%r1")
    with pytest.raises(UnsupportedInstruction, match="recursive functions: combine"):
        lowered(kernel_ptx(body, outside=again))


@pytest.mark.parametrize("guard", ["", "@%p3 "])
def test_jump_table(executor: Executor, guard: str) -> None:
    body = f"""
    rem.u32 %r0, %tid, 3;
    setp.lt.u32 %p3, %tid, 20;
    mov.u32 %r1, 4;
    table: .branchtargets first, second, third;
    {guard}brx.idx %r0, table;
    bra.uni done;
    first: mov.u32 %r1, 10; bra.uni done;
    second: mov.u32 %r1, 20; bra.uni done;
    third: mov.u32 %r1, 30;
    done: st.global.u32 [%at], %r1;
    """
    out = launch(executor, kernel_ptx(body), np.zeros(32, np.uint32)).arrays[0]
    jumped = 10 * (LANES % 3 + 1)
    assert out.tolist() == (np.where(LANES < 20, jumped, 4) if guard else jumped).tolist()


def test_labels_after_labels_belong_to_each_call_alone():
    """A function without line numbers, called in one that is inlined twice, ends each time at its
    own label, which follows another label."""
    text = """.version 8.0
.target sm_80
.address_size 64
.func (.param .b32 func_retval0) least(.param .b32 least_param_0, .param .b32 least_param_1)
{ .reg .b32 %r<4>; ld.param.u32 %r1, [least_param_0]; ld.param.u32 %r2, [least_param_1];
 min.s32 %r3, %r1, %r2; st.param.b32 [func_retval0+0], %r3; ret;
$L__func_end0:
}
.func (.param .b32 func_retval0) clamped(.param .b32 clamped_param_0)
{ .reg .b32 %r<4>; ld.param.u32 %r1, [clamped_param_0];
 { .param .b32 param0; st.param.b32 [param0+0], %r1; .param .b32 param1;
   st.param.b32 [param1+0], 7; .param .b32 retval0;
   call.uni (retval0), least, (param0, param1); ld.param.b32 %r2, [retval0+0]; }
 st.param.b32 [func_retval0+0], %r2; ret; }
.visible .entry k()
{ .reg .b32 %r<4>;
 { .param .b32 param0; st.param.b32 [param0+0], 3; .param .b32 retval0;
   call.uni (retval0), clamped, (param0); ld.param.b32 %r1, [retval0+0]; }
 { .param .b32 param0; st.param.b32 [param0+0], 9; .param .b32 retval0;
   call.uni (retval0), clamped, (param0); ld.param.b32 %r2, [retval0+0]; }
 ret; }
"""
    kernel = parse(text).kernels["k"]
    jumps = [
        (number, each.operands[0].name)
        for number, each in enumerate(kernel.body)
        if each.opcode == "bra.uni"
    ]
    assert len(jumps) == 4
    assert all(kernel.labels[label] > number for number, label in jumps)
    targets = [kernel.labels[label] - number for number, label in jumps]
    assert targets == [1] * 4
