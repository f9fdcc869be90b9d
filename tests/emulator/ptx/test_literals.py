"""Decimal numbers among the operands of an instruction."""

from __future__ import annotations

import struct

import pytest

from gemmkit.emulator.ptx.literals import with_bits


@pytest.mark.parametrize(
    "number", ["1.0", "-0.5", ".25", "2.", "1e-3", "-1.5E+3", "0.1", "16777217.0", "1e-60"]
)
def test_a_decimal_becomes_its_bits(number: str) -> None:
    single = struct.pack(">f", float(number)).hex().upper()
    double = struct.pack(">d", float(number)).hex().upper()
    assert with_bits("mov.f32", f"%f1, {number}") == f"%f1, 0f{single}"
    assert with_bits("mov.f64", f"%fd1, {number}") == f"%fd1, 0d{double}"
    policy = "createpolicy.fractional.L2::evict_first.b64"
    assert with_bits(policy, f"%rd1, {number}") == f"%rd1, 0f{single}"


def test_what_exceeds_fp32_is_infinite() -> None:
    assert with_bits("add.f32", "%f1, 1e40, -1e40") == "%f1, 0f7F800000, 0fFF800000"


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        ("add.f32", "%f1, %f2.5, 0f3F800000"),
        ("ld.global.f32", "%f1, [%rd1+16]"),
        ("mov.f64", "%fd1, 0d3FF8000000000000"),
        ("st.local.f32", "[name.1], %f1e3"),
        ("mov.u32", "%r1, 1.5"),
    ],
)
def test_all_else_stays(opcode: str, operands: str) -> None:
    assert with_bits(opcode, operands) == operands
