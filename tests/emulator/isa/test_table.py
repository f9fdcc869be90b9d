"""The instruction table: strict keys, sound rows, and a meaning for every register form."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from gemmkit.emulator.isa.form import Form, expand
from gemmkit.emulator.isa.modifier_order import in_order
from gemmkit.emulator.isa.semantics import OPERATIONS, evaluate, reads_carry, writes_carry
from gemmkit.emulator.isa.table import form_of, table
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse
from gemmkit.errors import UnsupportedInstruction

# Operations that need memory, other lanes of the warp, the block or the program counter.
MACHINE_OPERATIONS = {
    *("load", "store", "atomic", "compare_and_swap", "reduction", "is_space", "convert_address"),
    *("copy_async", "copy_async_commit", "copy_async_wait", "create_policy"),
    *("shuffle", "vote", "ballot", "active_mask", "match_any", "match_all", "reduce_warp"),
    *("elect", "multiply_matrices", "multiply_fragments", "transpose_matrix"),
    *("map_address", "cluster_rank", "set_registers"),
    *("mbarrier_init", "mbarrier_invalidate", "mbarrier_arrive", "mbarrier_transact"),
    *("mbarrier_test", "mbarrier_try", "mbarrier_arrive_copies"),
    *("bulk_copy", "bulk_tensor", "bulk_commit", "bulk_wait", "bulk_store"),
    *("bulk_acquire_map", "bulk_release_map"),
    *("wgmma_multiply", "wgmma_fence", "wgmma_commit", "wgmma_wait"),
    *("barrier_cluster_arrive", "barrier_cluster_wait"),
    *("barrier", "barrier_arrive", "branch", "exit", "trap", "call", "no_operation"),
}


def test_every_form_is_either_defined_on_bits_or_by_the_machine() -> None:
    operations = {form.operation for form in table().values()}
    assert operations == set(OPERATIONS) | MACHINE_OPERATIONS
    assert not set(OPERATIONS) & MACHINE_OPERATIONS


def test_looking_up_one_form_is_looking_into_the_table() -> None:
    # Neighbors differ in a type or a size: every seventh is of each kind.
    for opcode, form in islice(table().items(), 0, None, 7):
        assert form_of(opcode) == form
    for opcode in (
        "",
        "ld",
        "ld.global",
        "ld.global.f32.",
        "xld.global.f32",
        "add.f32x",
        "mul.s32",
    ):
        assert form_of(opcode) is None
        assert opcode not in table()


def operands(form: Form, lanes: int) -> list[np.ndarray | int]:
    rng = np.random.default_rng(len(form.opcode))
    sources: list[np.ndarray | int] = []
    for spec in form.operands:
        if spec.role == "immediate":
            sources.append(0xE4)
        elif spec.role == "source" and spec.type.bits == 1:
            sources.append(rng.integers(0, 2, lanes).astype(bool))
        elif spec.role == "source":
            size = spec.type.bytes
            sources.append(np.frombuffer(rng.bytes(lanes * size), f"u{size}"))
    if reads_carry(form):
        sources.append(rng.integers(0, 2, lanes).astype(bool))
    return sources


def test_every_register_form_evaluates_to_its_destinations() -> None:
    for form in table().values():
        if form.operation not in OPERATIONS:
            continue
        sources = operands(form, 32)
        before = [np.copy(source) for source in sources]
        results = evaluate(form, sources)
        (destination,) = (spec for spec in form.operands if spec.role == "dest")
        expected = "bool" if destination.type.bits == 1 else f"uint{destination.type.bits}"
        assert results[0].dtype == expected, form.opcode
        assert all(result.shape == (32,) for result in results), form.opcode
        assert len(results) >= 1 + destination.pair + writes_carry(form), form.opcode
        assert all(map(np.array_equal, sources, before)), form.opcode


def test_any_shape_broadcasts() -> None:
    form = table()["fma.rn.f32"]
    a, b = np.ones((3, 32), np.uint32), np.asarray(np.uint32(0x40000000))
    assert evaluate(form, [a, b, b])[0].shape == (3, 32)
    assert evaluate(form, [b, b, b])[0].shape == ()


def program(*lines: str) -> str:
    body = "\n".join(lines)
    return f"""
.version 8.0
.target sm_80
.address_size 64
.file 7 "kernel.cu"
.visible .entry k(.param .u64 p)
{{
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    .reg .f32 %f<9>;
    .reg .pred %p<9>;
    .loc 7 42 3
    {body}
    ret;
}}
"""


@pytest.mark.parametrize(
    "line",
    [
        "mul.hi.f32 %f1, %f2, %f3;",
        "mul.u32 %r1, %r2, %r3;",
        "add.lo.s32 %r1, %r2, %r3;",
        "tcgen05.alloc.b32 [%rd1], %r1;",
        "ld.global.v3.f32 {%f1, %f2, %f3}, [%rd1];",
        "frobnicate %r1;",
    ],
)
def test_an_unknown_instruction_is_named_with_its_source_line(line: str) -> None:
    kernel = parse(program(line)).kernels["k"]
    with pytest.raises(UnsupportedInstruction) as caught:
        ControlFlow.of(kernel)
    assert line.split()[0] in str(caught.value)
    assert "kernel.cu:42" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "add.u32 %r1, %r2;",
        "add.u32 %r1, %r2, %r3, %r4;",
        "add.u32 [%rd1], %r2, %r3;",
        "ld.global.f32 %f1, %rd1;",
        "ld.global.v2.f32 {%f1, %f2, %f3}, [%rd1];",
        "add.u32 5, %r2, %r3;",
        "bra nowhere;",
        "add.u32 %r1, %rd2, %r3;",
        "add.u64 %rd1, %rd2, %r3;",
        "mov.u32 %p1, %r1;",
        "setp.eq.u32 %r1, %r2, %r3;",
        "setp.eq.u32 %p1|%r1, %r2, %r3;",
        "selp.u32 %r1, %r2, %r3, %r4;",
        "and.pred %p1, %p2, !%r3;",
        "and.b32 %r1, %r2, !%p1;",
        "mul.wide.u32 %r1, %r2, %r3;",
        "ld.global.u64 %r1, [%rd1];",
        "ld.global.u32 %p1, [%rd1];",
        "ld.global.u32 %r1, [%p1];",
        "ld.global.v2.f32 %f1, [%rd1];",
        "mov.b64 {%rd1, %rd2}, %rd3;",
        "@%r1 add.u32 %r1, %r2, %r3;",
        "call (a), %rd1, (b);",
        "call (a), (b);",
    ],
)
def test_operands_that_do_not_fit_are_refused(line: str) -> None:
    kernel = parse(program(line)).kernels["k"]
    with pytest.raises(UnsupportedInstruction, match=r"kernel\.cu:42"):
        ControlFlow.of(kernel)


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.u8 %r1, [%rd1];",
        "ld.shared.u8 %rd2, [%r1];",
        "st.global.u8 [%rd1], %r1;",
        "cvt.u8.u32 %r1, %r2;",
        "cvt.s64.s8 %rd1, %r2;",
        "mov.b64 {%r1, _}, %rd3;",
        "mov.b64 %rd3, {%r1, %f2};",
        "mov.b32 %f1, %r1;",
        "setp.eq.u32 %p1|_, %r2, 5;",
        "@!%p1 add.u32 %r1, %r2, -3;",
    ],
)
def test_operands_that_fit(line: str) -> None:
    ControlFlow.of(parse(program(line)).kernels["k"])


def test_patterns_expand_to_opcodes_and_bindings() -> None:
    assert list(expand("ld{S:,.global}{,.ca}.{T:u8,f32}")) == [
        ("ld.u8", {"S": "", "T": "u8"}),
        ("ld.f32", {"S": "", "T": "f32"}),
        ("ld.ca.u8", {"S": "", "T": "u8"}),
        ("ld.ca.f32", {"S": "", "T": "f32"}),
        ("ld.global.u8", {"S": "global", "T": "u8"}),
        ("ld.global.f32", {"S": "global", "T": "f32"}),
        ("ld.global.ca.u8", {"S": "global", "T": "u8"}),
        ("ld.global.ca.f32", {"S": "global", "T": "f32"}),
    ]


@pytest.mark.parametrize(
    ("opcode", "operation", "opcode_class"),
    [
        ("ld.shared.f32", "load", "load"),
        ("ld.shared.b32", "load", "load"),
        ("st.shared.v4.b32", "store", "store"),
        ("st.shared.v2.b64", "store", "store"),
        ("ld.global.nc.v4.f32", "load", "load"),
        ("ld.global.nc.L1::no_allocate.v4.f32", "load", "load"),
        ("fma.rn.f32", "fused_multiply_add", "fma"),
        ("fma.rn.ftz.f32", "fused_multiply_add", "fma"),
        ("cp.async.cg.shared.global", "copy_async", "load"),
        ("cp.async.wait_group", "copy_async_wait", "synchronize"),
        ("mad.lo.s32", "multiply_add", "integer"),
        ("shfl.sync.bfly.b32", "shuffle", "warp"),
        ("atom.global.add.f32", "atomic", "atomic"),
        ("red.global.add.f32", "reduction", "atomic"),
        ("bar.sync", "barrier", "synchronize"),
    ],
)
def test_forms_of_both_dialects(opcode: str, operation: str, opcode_class: str) -> None:
    form = table()[opcode]
    assert (form.operation, form.opcode_class) == (operation, opcode_class)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ld.global.acquire.gpu.b32 %r2, [%rd1]", "ld.acquire.gpu.global.b32"),
        ("ld.acquire.global.gpu.v2.u32 {%r2, %r3}, [%rd1]", "ld.acquire.gpu.global.v2.u32"),
        ("ld.global.volatile.f32 %f1, [%rd1]", "ld.volatile.global.f32"),
        ("ld.weak.ca.b32 %r2, [%rd1]", "ld.ca.b32"),
        ("st.global.release.gpu.b32 [%rd1], %r1", "st.release.gpu.global.b32"),
        ("st.weak.shared.u32 [%r1], %r2", "st.shared.u32"),
        ("atom.global.gpu.acquire.cas.b32 %r2, [%rd1], 0, 1", "atom.acquire.gpu.global.cas.b32"),
        ("red.global.release.gpu.add.u32 [%rd1], 1", "red.release.gpu.global.add.u32"),
        ("red.add.release.gpu.global.u32 [%rd1], 1", "red.release.gpu.global.add.u32"),
    ],
)
def test_modifiers_of_memory_accesses_in_another_order(written: str, meant: str) -> None:
    opcode, _, _ = written.partition(" ")
    assert form_of(opcode) is None
    assert in_order(opcode) == meant == in_order(meant)
    kernel = parse(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k() {\n"
        ".reg .b32 %r<5>; .reg .b64 %rd<2>; .reg .f32 %f<5>;\n"
        f"{written}; ret;\n}}"
    ).kernels["k"]
    assert ControlFlow.of(kernel).forms[0] == form_of(meant)


@pytest.mark.parametrize("opcode", ["ld.acquire.gpu", "ld.relaxed.global.b32", "st.global.gpu.b32"])
def test_modifiers_that_are_missing(opcode: str) -> None:
    assert form_of(in_order(opcode)) is None
