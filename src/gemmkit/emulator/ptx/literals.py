"""Floating-point literals in decimal, as in inline assembly; compilers emit their bits."""

from __future__ import annotations

import re
import struct

_DECIMAL = re.compile(
    r"(?<![\w.$%])-?(?:(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.$])"
)


def with_bits(opcode: str, operands: str) -> str:
    """An instruction's operands, with decimals replaced by `0f…` or `0d…`.

    PTX reads a decimal as a double, and rounds it if the instruction works on fp32. In instructions
    on other types decimals are kept.
    """
    if opcode.endswith(".f32") or opcode.startswith("createpolicy.fractional"):
        return _DECIMAL.sub(lambda number: f"0f{_single(float(number[0])):08X}", operands)
    if opcode.endswith(".f64"):
        return _DECIMAL.sub(lambda number: f"0d{_double(float(number[0])):016X}", operands)
    return operands


def _double(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value), "big")


def _single(value: float) -> int:
    try:
        return int.from_bytes(struct.pack(">f", value), "big")
    except OverflowError:
        return 0xFF800000 if value < 0 else 0x7F800000
