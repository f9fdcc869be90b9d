"""Typed values of LLVM IR: operands, literals and the text of types."""

from __future__ import annotations

from functools import cache

import msgspec

LANES = 8


# Hundreds of thousands are made per kernel: a struct takes a fraction of a data class's time.
class Value(msgspec.Struct, frozen=True, gc=False):
    """An operand: its LLVM type, its name or literal, and its value if that is a known integer."""

    type: str
    name: str
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


Operand = Value | int


@cache
def vector(element: str) -> str:
    """The type of a strip of lanes."""
    return f"<{LANES} x {element}>"


@cache
def element_type(of: str) -> str:
    """The element type of a vector type; a scalar type is its own."""
    return of[of.index("x ") + 2 : -1] if of.startswith("<") else of


def literal(of: str, number: int) -> Value:
    """An integer of a scalar type, or a vector filled with it."""
    scalar = element_type(of)
    bits = int(scalar[1:])
    number &= (1 << bits) - 1
    if bits == 1:
        text = "true" if number else "false"
    else:
        text = str(number - (1 << bits) if number >> (bits - 1) else number)
    return Value(of, text if of == scalar else f"splat ({scalar} {text})", number)


def like(a: Value, element: str) -> str:
    """A type with as many elements as a value has."""
    return _like(a.type, element)


@cache
def _like(of: str, element: str) -> str:
    return f"<{of[1 : of.index(' ')]} x {element}>" if of.startswith("<") else element


@cache
def mangled(of: str) -> str:
    """A type in the name of an intrinsic."""
    names = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
    scalar = element_type(of)
    short = names.get(scalar, scalar)
    return f"v{of[1 : of.index(' ')]}{short}" if of.startswith("<") else short


_SIZES = {"float": 4, "double": 8, "half": 2, "ptr": 8, "i1": 1}


@cache
def alignment(of: str) -> int:
    """The default alignment of a type, in bytes."""
    scalar = element_type(of)
    size = _SIZES.get(scalar) or int(scalar[1:]) // 8
    return min(32, size * LANES) if of.startswith("<") else size
