"""Arguments in the form in which a kernel's PTX takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemmkit.devices.packing import (
    address_names,
    argument_offsets,
    bound_values,
    entry_parameters,
    packed,
)
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_kernel
from gemmkit.kernels.plan import FieldPlace, LaunchPlan, SourceFile, StructPlace

ARGUMENTS: dict[str, int | float] = {
    "M": 300, "N": 200, "K": 7, "alpha": 1.5, "A": 1 << 40, "lda": 9, "B": 2 << 40, "ldb": 200,
    "beta": -0.5, "C": 3 << 40, "ldc": 200, "bias": 0,
}  # fmt: skip


def binary(parameters: str) -> Binary:
    header = (
        ".version 8.5\n.target sm_80\n.address_size 64\n.visible .entry other(.param .u8 x) {}\n"
    )
    text = f"{header}.visible .entry k({parameters})\n.maxntid 1, 1, 1\n{{ ret; }}\n"
    return Binary(
        entry="k", arch="sm_80", ptx=text, cubin=b"", resources=None, compiler="", key=parameters
    )


def plan(*signature: str) -> LaunchPlan:
    return LaunchPlan("mine", SourceFile("", "k.ptx"), "k", (1, 1, 1), (1, 1, 1), signature)


def bound(parameters: str, *signature: str) -> list[Any]:
    return [
        (type(value), value.item())
        for value in bound_values(binary(parameters), plan(*signature), ARGUMENTS)
    ]


def test_each_value_takes_the_parameters_width() -> None:
    assert bound(
        ".param .u32 a,\n.param .u64 b, .param .s16 c, .param .f32 d, .param .f64 e, "
        ".param .b32 f, .param .b64 g, .param .u64 .ptr .global .align 16 h, .param .f32 i, "
        ".param .u8 j",
        *("M", "N", "K", "alpha", "alpha", "beta", "beta", "C", "2", "true"),
    ) == [
        (np.uint32, 300),
        (np.uint64, 200),
        (np.uint16, 7),
        (np.float32, 1.5),
        (np.float64, 1.5),
        (np.float32, -0.5),
        (np.float64, -0.5),
        (np.uint64, 3 << 40),
        (np.float32, 2.0),
        (np.uint8, 1),
    ]


def test_expressions_and_null_pointers() -> None:
    assert bound(
        ".param .u64 a, .param .u32 b, .param .u64 .ptr .align 1 c, .param .u32 d",
        *("M*K+lda", "-K", "0", "3"),
    ) == [(np.uint64, 2109), (np.int32, -7), (np.uint64, 0), (np.uint32, 3)]


def test_offsets_follow_alignment() -> None:
    text = binary(".param .u32 a, .param .u64 b, .param .u8 c, .param .align 8 .b8 d[12]")
    places = entry_parameters(text.ptx, "k")
    assert [(each.size, each.offset) for each in places] == [(4, 0), (8, 8), (1, 16), (12, 24)]
    pair = binary(".param .u32 a, .param .u64 b")
    values = bound_values(pair, plan("M", "A"), ARGUMENTS)
    assert packed(pair, values) == (300).to_bytes(8, "little") + (1 << 40).to_bytes(8, "little")
    assert packed(binary(""), []) == b""


@pytest.mark.parametrize(
    ("parameters", "signature", "reason"),
    [
        (
            ".param .u32 a",
            ("M", "N"),
            r"has 1 parameters in its PTX, and 2 in its signature \(M, N",
        ),
        (".param .u32 a", ("A",), r"takes an integer of 4 bytes at byte 0 .*, not the address 'A'"),
        (".param .f64 a", ("B",), r"floating-point number of 8 bytes .* not the address 'B'"),
        (".param .u64 .ptr a, .param .u64 b", ("A", "B"), r"an integer of 8 bytes at byte 8"),
        (".param .u64 .ptr .align 1 a", ("M",), r"takes a pointer at byte 0 .* the number 'M'"),
        (".param .u32 a", ("alpha",), r"an integer of 4 bytes .* not the fp32 number 'alpha'"),
        (".param .align 4 .b8 a[8]", ("M",), r"takes 8 bytes at byte 0 of its parameters, not 'M'"),
        (".param .align 2 .b8 a[2]", ("alpha",), r"takes 2 bytes at byte 0"),
        (".param .u8 a", ("M",), r"M = 300 does not fit into 1 bytes"),
        (".param .u32 a", ("-M*M*M*M",), r"does not fit into 4 bytes"),
    ],
)
def test_what_does_not_fit(parameters: str, signature: tuple[str, ...], reason: str) -> None:
    with pytest.raises(DeviceError, match=reason):
        bound(parameters, *signature)


def test_bytes_are_passed_whole_whatever_the_parameter_is() -> None:
    text = binary(".param .u32 a, .param .align 64 .b8 b[128], .param .u64 c")
    tensor_map = bytes(range(128))
    given = {"M": 7, "map": tensor_map, "C": 3}
    values = bound_values(text, plan("M", "map", "C"), given)
    whole = packed(text, values)
    assert whole[:4] == (7).to_bytes(4, "little")
    assert whole[64:192] == tensor_map
    assert whole[192:] == (3).to_bytes(8, "little")
    with pytest.raises(DeviceError, match=r"takes 128 bytes at byte 64 .* 'map' of 127 bytes"):
        bound_values(text, plan("M", "map", "C"), {**given, "map": tensor_map[1:]})


def test_where_each_argument_lies() -> None:
    fields = (FieldPlace(0, 4, "u32"), FieldPlace(8, 8, "u64", pointer=True))
    struct = StructPlace("S s", 16, 8, fields)
    text = binary(".param .u32 a, .param .align 8 .b8 b[16], .param .u64 c")
    placed = replace(plan("M", "N", "A", "C"), structs=(None, struct, None))
    assert argument_offsets(text, placed) == {"M": 0, "N": 8, "A": 16, "C": 24}
    with pytest.raises(DeviceError, match="3 parameters in its PTX, and 1 in its signature"):
        argument_offsets(text, plan("M"))


def test_a_kernel_that_the_text_lacks() -> None:
    with pytest.raises(DeviceError, match="no kernel 'gone'"):
        entry_parameters(binary("").ptx, "gone")


@pytest.mark.parametrize("arch", ["sm_86", "sm_100a"])
def test_what_the_compiler_writes(arch: str) -> None:
    source = (
        "struct S { int a; double b; };\n"
        "__global__ void k(unsigned M, size_t N, double alpha, const float* __restrict__ A, bool f,"
        " S s, const float (*B)[4], float beta) { *(float*)B = A[M] + N + alpha * f + s.a + beta; }"
    )
    made = compile_kernel(source, "k", arch)
    assert [each.size for each in entry_parameters(made.ptx, made.entry)] == [
        *(4, 8, 8, 8, 1, 16, 8, 4)
    ]
    assert [each.offset for each in entry_parameters(made.ptx, made.entry)] == [
        *(0, 8, 16, 24, 32, 40, 56, 64)
    ]


def test_addresses_of_a_plan() -> None:
    assert address_names(plan("M", "A", "0", "M*K", "bias", "C")) == ("A", "bias", "C")
