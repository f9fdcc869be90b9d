"""Narrow arithmetic: what a kernel's PTX rounds, which bound follows, and that it holds."""

import re

import numpy as np
import pytest

from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem
from gemmkit.verify import Reference, make_inputs
from gemmkit.verify.arithmetic import FORMATS, FP32, Arithmetic, Rounded, named_arithmetic
from gemmkit.verify.bounds import exact_sums, is_exact
from gemmkit.verify.roundings import Updates, arithmetic_of

HALF, BFLOAT = FORMATS["float16"], FORMATS["bfloat16"]

PTX = """.version 8.3
.target sm_90
.address_size 64
.visible .entry k(.param .u64 A, .param .u64 C)
{{
.reg .b16 %h<20>; .reg .b32 %r<30>; .reg .f32 %f<30>; .reg .b64 %rd<9>; .reg .pred %p<4>;
.shared .align 4 .b8 tile[1024];
ld.param.u64 %rd1, [A];
ld.param.u64 %rd2, [C];
ld.global.f32 %f1, [%rd1];
ld.global.f32 %f2, [%rd1+4];
{}
st.global.f32 [%rd2], %f9;
ret;
}}
"""
TO_HALF = "cvt.rn.f16.f32 %h1, %f1; cvt.rn.f16.f32 %h2, %f2;"
# An accumulator of fp32 in a loop, fed by %f3 and %f4.
LOOP = "mov.f32 %f9, 0f00000000;\nL: fma.rn.f32 %f9, %f3, %f4, %f9;\n@%p1 bra L;"
WIDEN = "cvt.f32.f16 %f3, %h1; cvt.f32.f16 %f4, %h2;"


def found(body):
    return arithmetic_of(PTX.format(body), "k")


def test_fp32_is_plain():
    assert found("fma.rn.f32 %f9, %f1, %f2, %f1;") is FP32
    assert found("fma.rn.f32 %f9, %f1, %f2, %f1;").plain


def test_directed_rounding_counts_but_for_that_of_a_constant():
    """exp reduces its argument so; the constants are operands or in registers."""
    assert found("fma.rm.f32 %f9, %f1, %f2, %f1;").directed
    assert found("fma.rm.f32 %f9, %f1, 0f437C0000, 0f4B400001;") is FP32
    constants = "mov.f32 %f7, 0f437C0000; mov.f32 %f8, 0f4B400001;"
    assert found(f"{constants} fma.rm.f32 %f9, %f1, %f7, %f8;") is FP32
    # An accumulator that begins with a constant is none.
    loop = "mov.f32 %f9, 0f3F800000;\nL: fma.rm.f32 %f9, %f1, %f2, %f9;\n@%p1 bra L;"
    assert found(loop).directed


def test_operands_that_are_rounded_once_each():
    seen = found(f"{TO_HALF} {WIDEN} {LOOP}")
    assert seen.rounded == (Rounded(HALF, 2),)
    assert (seen.sums, seen.tensor) == ((), None)
    assert "operands rounded to float16 (cvt.rn.f16.f32" in seen.reason
    assert "sums in fp32" in seen.reason


def test_one_operand_alone_and_truncation():
    assert found(f"cvt.rz.bf16.f32 %h1, %f1; cvt.f32.bf16 %f3, %h1; {LOOP}").rounded == (
        Rounded(BFLOAT, 1, cut=True),
    )


def test_through_shared_memory():
    body = f"{TO_HALF} st.shared.b16 [tile], %h1; st.shared.b16 [tile+2], %h2; "
    body += f"ld.shared.b16 %h1, [tile]; ld.shared.b16 %h2, [tile+2]; {WIDEN} {LOOP}"
    assert found(body).rounded == (Rounded(HALF, 2),)


def test_sums_in_half():
    loop = "mov.b16 %h3, 0;\nL: fma.rn.f16 %h3, %h1, %h2, %h3;\n@%p1 bra L;"
    seen = found(f"{TO_HALF} {loop} cvt.f32.f16 %f9, %h3;")
    assert seen.rounded == (Rounded(HALF, 2, block=1),)
    assert seen.sums == (HALF,)
    assert "sums rounded to float16 (fma.rn.f16" in seen.reason


def test_an_accumulator_converted_at_every_step():
    loop = "mov.b16 %h3, 0;\nL: cvt.f32.f16 %f8, %h3;\nfma.rn.f32 %f7, %f1, %f2, %f8;\n"
    loop += "cvt.rn.f16.f32 %h3, %f7;\n@%p1 bra L;\ncvt.f32.f16 %f9, %h3;"
    assert found(loop).rounded == (Rounded(HALF, 0, block=1),)


def test_a_result_that_is_rounded_once():
    body = LOOP.replace("%f9", "%f8").replace("%f3", "%f1").replace("%f4", "%f2")
    seen = found(f"{body}\ncvt.rn.f16.f32 %h1, %f8; cvt.f32.f16 %f9, %h1;")
    assert seen.rounded == (Rounded(HALF, 1),)
    assert seen.sums == (HALF,), "so that integers must fit into it"
    assert "results rounded to float16" in seen.reason


MMA = "mma.sync.aligned.{}.row.col.{} {{%f5,%f6,%f7,%f8}}, {}, {{%f5,%f6,%f7,%f8}};"
MMA += "\nmov.f32 %f9, %f5;"


@pytest.mark.parametrize(
    ("body", "rounded"),
    [
        (
            TO_HALF
            + "mov.b32 %r1, {%h1,%h2};\nL:"
            + MMA.format("m16n8k16", "f32.f16.f16.f32", "{%r1,%r1,%r1,%r1}, {%r1,%r1}"),
            (Rounded(HALF, 2),),
        ),
        (
            "cvt.rna.tf32.f32 %r1, %f1; cvt.rna.tf32.f32 %r2, %f2;\nL:"
            + MMA.format("m16n8k8", "f32.tf32.tf32.f32", "{%r1,%r1,%r1,%r1}, {%r2,%r2}"),
            (Rounded(FORMATS["tf32"], 2),),
        ),
        # The tensor core truncates fp32 numbers.
        (
            "mov.b32 %r1, %f1; mov.b32 %r2, %f2;\nL:"
            + MMA.format("m16n8k8", "f32.tf32.tf32.f32", "{%r1,%r1,%r1,%r1}, {%r2,%r2}"),
            (Rounded(FORMATS["tf32"], 2, cut=True),),
        ),
        (
            "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2; mov.b32 %r1, {%h1,%h1};\nL:"
            + MMA.format("m16n8k32", "f32.e4m3.e4m3.f32", "{%r1,%r1,%r1,%r1}, {%r1,%r1}"),
            (Rounded(FORMATS["float8_e4m3"], 2),),
        ),
    ],
)
def test_tensor_cores_that_add_up_in_fp32(body, rounded):
    seen = found(body + "\n@%p1 bra L;")
    assert seen.rounded == rounded
    assert seen.tensor is not None
    assert not seen.sums


@pytest.mark.parametrize(("target", "bits"), [("sm_89", 14), ("sm_90a", 24)])
def test_sums_of_fp8_have_the_bits_of_the_target(target, bits):
    body = "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2; mov.b32 %r1, {%h1,%h1};\nL:"
    body += MMA.format("m16n8k32", "f32.e4m3.e4m3.f32", "{%r1,%r1,%r1,%r1}, {%r1,%r1}")
    text = PTX.format(body + "\n@%p1 bra L;")
    text = re.sub(r"\.target \w+", f".target {target}", text)
    seen = arithmetic_of(text, "k")
    assert seen.sum_bits == bits
    assert ("with 14 bits on tensor cores" in seen.reason) == (bits == 14)
    assert (seen.relative(64, 0.0) > 0.1315) == (bits == 14), "twice 2**-4 is 0.129"


def test_tensor_cores_with_sums_in_half_round_once_a_block():
    body = TO_HALF + "mov.b32 %r1, {%h1,%h2};\nL:"
    body += "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r5,%r6}, {%r1,%r1,%r1,%r1}, "
    body += "{%r1,%r1}, {%r5,%r6};\n@%p1 bra L;\nmov.b32 {%h5,%h6}, %r5; cvt.f32.f16 %f9, %h5;"
    seen = found(body)
    assert seen.rounded == (Rounded(HALF, 2, block=4),)
    assert seen.rounded[0].count(64) == 2 + 16


IN_C = "\nL: ld.global.b16 %h3, [%rd2];\ncvt.f32.f16 %f3, %h3; add.f32 %f4, %f3, %f1;\n"
IN_C += "cvt.rn.f16.f32 %h4, %f4;\nst.global.b16 [%rd2], %h4;\n@%p1 bra L;\nmov.f32 %f9, %f1;"


def updated(body, stores):
    """The arithmetic where a launch stored to each element so often, and loads 16 bits from C."""
    from gemmkit.emulator.ptx.parser import parse

    text = PTX.format(body)
    loads = (each.opcode == "ld.global.b16" for each in parse(text).kernels["k"].body)
    seen = Updates(frozenset(number for number, load in enumerate(loads) if load), stores)
    return arithmetic_of(text, "k", "float16", "float16", seen)


def test_each_store_to_an_accumulator_in_c_rounds():
    """The last of them is the rounding of the result, which is part of the problem."""
    body = IN_C
    assert found(body).rounded == (Rounded(HALF, 1),)
    seen = updated(body, 7)
    assert (seen.rounded, seen.sums) == ((Rounded(HALF, 6),), (HALF,))
    assert "sums rounded to float16 (cvt.rn.f16.f32" in seen.reason
    # Elements with more stores than others may have up to k.
    assert updated(body, 0).rounded == (Rounded(HALF, 0, block=1),)


@pytest.mark.parametrize(
    "more",
    [
        # Twice between load and store, in a register from step to step, and by an atomic.
        ("st.global", "cvt.f32.f16 %f5, %h4; cvt.rn.f16.f32 %h4, %f5;\nst.global"),
        ("add.f32 %f4, %f3, %f1;", "add.f32 %f4, %f3, %f4;"),
        ("@%p1 bra", "red.global.add.noftz.f16 [%rd2], %h4;\n@%p1 bra"),
    ],
)
def test_where_stores_do_not_tell_the_roundings_each_step_may_round(more):
    (seen,) = updated(IN_C.replace(*more), 7).rounded
    assert (seen.format, seen.times, seen.block) == (HALF, 0, 1)


def test_what_is_not_stored_does_not_matter():
    body = f"{TO_HALF} fma.rn.f16 %h3, %h1, %h2, %h2; st.shared.b16 [tile], %h3; "
    assert found(body + "fma.rn.f32 %f9, %f1, %f2, %f1;") == FP32


def test_text_that_cannot_be_read_is_judged_by_its_instructions():
    text = PTX.format("cvt.rn.f16.f32 %h1, %f1; what is this {{;")
    assert {each.format for each in arithmetic_of(text, "k").rounded} == {HALF}


def emulated(a, b, operand, total=None):
    """A product of operands of a type, summed one after another in fp32 or in another type."""
    a, b = (x.astype(operand).astype(np.float32) for x in (a, b))
    value = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for p in range(a.shape[1]):
        value += a[:, p : p + 1] * b[p]
        if total is not None:
            value = value.astype(total).astype(np.float32)
    return value


@pytest.mark.parametrize("total", [None, np.float16])
@pytest.mark.parametrize("k", [1, 40, 300])
def test_the_bound_holds_and_shows_a_missing_step(k, total):
    problem = GemmProblem(24, 20, k)
    text = "float16" if total is None else "float16,float16"
    arithmetic = named_arithmetic(text, None)
    inputs = make_inputs(problem, 1)
    a, b = inputs.a.reshape(24, k), inputs.b.reshape(k, 20)
    right, short = emulated(a, b, "f2", total), emulated(a[:, :-1], b[:-1], "f2", total)
    reference = Reference(problem, inputs, arithmetic=arithmetic)
    assert reference.check(right.ravel()).correct
    assert reference.check(right.ravel()).arithmetic.endswith("as requested")
    assert k == 1 or not Reference(problem, inputs).check(right.ravel()).correct
    if total is None:
        assert not reference.check(short.ravel()).correct
    # Integers that stay exact show it for any k.
    exact = make_inputs(problem, 1, "integer", exact_sums(problem, arithmetic))
    assert is_exact(problem, exact, arithmetic)
    a, b = exact.a.reshape(24, k), exact.b.reshape(k, 20)
    reference = Reference(problem, exact, arithmetic=arithmetic)
    assert reference.check(emulated(a, b, "f2", total).ravel()).correct
    assert not reference.check(emulated(a[:, :-1], b[:-1], "f2", total).ravel()).correct


def test_the_bound_is_as_tight_as_the_theory_allows():
    operands = named_arithmetic("bfloat16", None)
    assert operands.tensor is not None
    # Fused sums of unknown depth lose one and a half roundoffs of fp32 per product.
    lost = operands.tensor.logarithm(64)
    assert lost == pytest.approx((64 + 32) * 1.5 * 2**-24)
    rounded = 1 + 2 * 2**-8 + 2**-16
    assert operands.relative(64, 0.0) == pytest.approx(rounded * np.exp(lost) - 1)
    sums = named_arithmetic("float16,float16", None)
    assert sums.relative(64, 0.0) == pytest.approx((1 + 2**-11) ** 68 * np.exp(lost) - 1)
    assert np.isfinite(sums.relative(10**6, 0.0))
    assert FP32.relative(64, 1e-6) == pytest.approx(1e-6)


def test_sparse_integers_keep_long_sums_exact():
    problem = GemmProblem(8, 9, 1000, beta=0.5, alpha=-1.5)
    arithmetic = named_arithmetic("bfloat16,bfloat16", None)
    limit = exact_sums(problem, arithmetic)
    assert 0 < limit <= 2**8
    inputs = make_inputs(problem, 0, "integer", limit)
    rows = np.count_nonzero(inputs.a.reshape(8, 1000), axis=1)
    assert set(rows) == {limit}
    assert is_exact(problem, inputs, arithmetic)
    assert not is_exact(problem, make_inputs(problem, 0, "integer"), arithmetic)


def test_factors_that_a_type_does_not_hold_have_no_exact_test():
    problem = GemmProblem(4, 4, 4, alpha=0.1)
    assert exact_sums(problem, named_arithmetic("float16", None)) == 0


def test_a_tolerance_replaces_the_bound():
    problem = GemmProblem(4, 4, 8)
    inputs = make_inputs(problem)
    right = inputs.a.reshape(4, 8) @ inputs.b.reshape(8, 4)
    for factor, passes in ((1.009, True), (1.5, False)):
        arithmetic = named_arithmetic("", 0.01)
        reference = Reference(problem, inputs, arithmetic=arithmetic)
        assert reference.check((right * np.float32(factor)).ravel()).correct is passes
    assert "tolerance of 0.01" in reference.check(right.ravel()).arithmetic


@pytest.mark.parametrize(
    ("text", "tolerance", "words"),
    [
        ("fp12", None, "unknown compute type 'fp12'"),
        ("flaot16", None, "did you mean float16"),
        ("float16,float16,float16", None, "names 3 types"),
        ("", -1.0, "0 or more"),
        ("", float("nan"), "0 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, tolerance, words):
    with pytest.raises(UsageError, match=words):
        named_arithmetic(text, tolerance)


def test_what_is_not_named_is_left_to_the_kernel():
    assert named_arithmetic("", None) is None
    assert named_arithmetic("float32", None).plain
    assert Arithmetic().plain


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("half", "float16"),
        ("fp16,half", "float16,float16"),
        ("bf16", "bfloat16"),
        ("FP32", "float32"),
        ("float", "float32"),
        ("__nv_bfloat16, float", "bfloat16,float32"),
        ("e4m3,fp16", "float8_e4m3,float16"),
        ("fp8_e5m2", "float8_e5m2"),
    ],
)
def test_short_names_of_types_mean_the_same(short, full):
    asked, known = named_arithmetic(short, None), named_arithmetic(full, None)
    assert (asked, asked.reason) == (known, known.reason)
