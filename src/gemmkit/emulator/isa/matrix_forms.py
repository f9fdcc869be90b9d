"""The forms of `mma.sync`, as rows of the instruction table.

A pattern binds M and K, the types A and B of the operands and R of the result, and S if an integer
result saturates.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmkit.emulator.numerics.rules import SIZES

# M, K, types of A and B, type of C and D (PTX ISA, "Multiply-and-accumulate instruction: mma").
_PRODUCTS = (
    (16, (8, 16), "f16", "f16"),
    (16, (8, 16), "f16", "f32"),
    (16, (8, 16), "bf16", "f32"),
    (16, (4, 8), "tf32", "f32"),
    (16, (16, 32), "e4m3,e5m2", "f16"),
    (16, (16, 32), "e4m3,e5m2", "f32"),
    (8, (16,), "s8,u8", "s32"),
    (16, (16, 32), "s8,u8", "s32"),
    (8, (4,), "f64", "f64"),
    (16, (4, 8, 16), "f64", "f64"),
)
_COLUMNS, _LANES, _REGISTER = 8, 32, 4
# The register that holds sums; binary16 ones share it in pairs.
_REGISTERS = {"f16": "b32", "f32": "f32", "s32": "b32", "f64": "f64"}


def matrix_rows() -> Iterator[tuple[str, str, str, str]]:
    """A row for each shape and combination of types: pattern, operation, operands, class."""
    for m, depths, types, result in _PRODUCTS:
        of = types.partition(",")[0]
        operand = "f64" if of == "f64" else "b32"
        saturating = "{S:,.satfinite}" if result == "s32" else ""
        for k in depths:
            elements = max(1, _REGISTER // SIZES[of]) * _LANES
            sums = m * _COLUMNS // _LANES // (2 if result == "f16" else 1)
            counts = (sums, m * k // elements, k * _COLUMNS // elements, sums)
            registers = (_REGISTERS[result], operand, operand, _REGISTERS[result])
            d, *sources = (
                each if count == 1 else f"v{count}{each}"
                for count, each in zip(counts, registers, strict=True)
            )
            yield (
                f"mma.sync.aligned.m{{M:{m}}}n8k{{K:{k}}}.row.col{saturating}"
                f".{{R:{result}}}.{{A:{types}}}.{{B:{types}}}.{result}",
                "multiply_matrices",
                " ".join([f"={d}", *sources]),
                "tensor",
            )
