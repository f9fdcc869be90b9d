"""The table by which native code compares what is in the log: see `shadow_layout.COMPARISON`."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Value
from gemmkit.emulator.codegen.shadow_layout import COMPARISON

T = Value("ptr", "%t")


def field(f: Function, name: str) -> Value:
    """A number."""
    return f.load("i64", T, COMPARISON[name])


def pointer(f: Function, name: str) -> Value:
    """The address of an array."""
    return f.load("ptr", T, COMPARISON[name])
