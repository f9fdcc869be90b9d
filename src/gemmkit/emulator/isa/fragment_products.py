"""`wmma.mma` as the `mma.sync` that ptxas makes of it for sm_80 to sm_100.

A product of 16×16, 32×8 or 8×32 is two of 16×8 with the same depth; of the last one, the
transpose. For tf32 each is a chain of two m16n8k4 along k. This was read from the machine code of
ptxas 13.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import is_left, tiles


@dataclass(frozen=True, slots=True)
class Product:
    """One `mma.sync`, with the registers of the fragments that are its operands.

    `left` and `right` are its factors, each (which of A and B, registers); `sums` are the registers
    of the accumulator that it adds to.
    """

    opcode: str
    left: tuple[str, tuple[int, ...]]
    right: tuple[str, tuple[int, ...]]
    sums: tuple[int, ...]


def sums_type(form: Form) -> str:
    """The type in which a product is accumulated: fp16 only if both C and D are."""
    if form["T"] in ("f64", "s8", "u8"):
        return "f64" if form["T"] == "f64" else "s32"
    return "f16" if (form.modifiers.get("C"), form.modifiers.get("D")) == ("f16",) * 2 else "f32"


def products(form: Form) -> tuple[Product, ...]:
    """The instructions of a `wmma.mma`, in order."""
    saturates = ".satfinite" if form.modifiers.get("A2") else ""
    return _products(form["G"], form["T"] or "f16", sums_type(form), saturates)


@cache
def _products(shape: str, kind: str, sums: str, saturates: str) -> tuple[Product, ...]:
    small = {"tf32": "m16n8k4", "f64": "m8n8k4"}.get(kind, "m16n8k16")
    opcode = f"mma.sync.aligned.{small}.row.col{saturates}.{sums}.{kind}.{kind}.{sums}"
    names = sorted("ab", key=lambda each: not is_left(each, shape))
    left, right = (range(len(tiles(each, shape, kind))) for each in names)
    count = 1 if kind == "f64" else 2
    steps = 2 if kind == "tf32" else 1
    wide = shape in ("m16n16k16", "m16n16k8")  # both products have the same left factor
    registers = {"f64": 2, "f16": 2}.get(sums, 4)
    found = []
    for block in range(count):
        rows, columns = (
            (_part(left, 0, 1), _part(right, block, count))
            if wide
            else (_part(left, block, count), _part(right, 0, 1))
        )
        into = tuple(range(block * registers, (block + 1) * registers))
        found += [
            Product(
                opcode,
                (names[0], _part(rows, step, steps)),
                (names[1], _part(columns, step, steps)),
                into,
            )
            for step in range(steps)
        ]
    return tuple(found)


def _part(numbers: Sequence[int], index: int, count: int) -> tuple[int, ...]:
    size = len(numbers) // count
    return tuple(numbers[index * size : (index + 1) * size])
