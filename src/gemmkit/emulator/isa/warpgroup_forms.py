"""The forms of `wgmma`, as rows of the instruction table.

The shapes and types are those of the PTX ISA ("Asynchronous Warpgroup Level Matrix
Multiply-Accumulate Instructions"). A pattern binds N and K, the types A and B of the operands and R
of the result, and S if an integer result saturates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gemmkit.emulator.isa.form import Form, OperandSpec
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.numerics.rules import SIZES
from gemmkit.emulator.ptx.module import Immediate, Instruction, Operand, Vector

WARPS = 4
ROWS, COLUMNS = 16, 8
OPERATION = "wgmma_multiply"
_ROW_BYTES = 32
_COLUMN_COUNTS = range(8, 257, 8)
_INTEGER_COLUMN_COUNTS = (8, 24, *range(16, 257, 16))
# Types of A, of B and of D; the immediate operands after `scale-d`.
_PRODUCTS = (
    ("f16", "f16", "f16", 4),
    ("f16", "f16", "f32", 4),
    ("bf16", "bf16", "f32", 4),
    ("tf32", "tf32", "f32", 2),
    *((a, b, d, 2) for d in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *((a, b, "s32", 0) for a in ("s8", "u8") for b in ("s8", "u8")),
)
_REGISTERS = {"f16": "b32", "f32": "f32", "s32": "b32"}
_FRAGMENT = OperandSpec("source", TYPES["b32"], 4)
_SIGNS, _MAJORS = (1, -1), (0, 1)


def warpgroup_rows() -> Iterator[tuple[str, str, str, str]]:
    """The rows of the instruction table: pattern, operation, operands (with A in shared memory),
    class."""
    for a, b, d, immediates in _PRODUCTS:
        integers = d == "s32"
        for n in _INTEGER_COLUMN_COUNTS if integers else _COLUMN_COUNTS:
            start = f"wgmma.mma_async.sync.aligned.m64n{{N:{n}}}k{{K:{_ROW_BYTES // SIZES[a]}}}"
            types = f".{{R:{d}}}.{{A:{a}}}.{{B:{b}}}"
            # ptxas accepts both places.
            patterns = (
                f"{start}{types}{{S:,.satfinite}}|{start}{{S:.satfinite}}{types}"
                if integers
                else start + types
            )
            sums = n // (4 if d == "f16" else 2)
            operands = f"=v{sums}{_REGISTERS[d]} b64 b64 pred" + " #" * immediates
            yield patterns, OPERATION, operands, "tensor"
    for name, operation, given in (
        ("fence", "wgmma_fence", ""),
        ("commit_group", "wgmma_commit", ""),
        ("wait_group", "wgmma_wait", "#"),
    ):
        yield f"wgmma.{name}.sync.aligned", operation, given, "synchronize"


def taking(form: Form, instruction: Instruction) -> Form:
    """The form for an instruction's operands: A may be in registers, which have no major-ness."""
    given = instruction.operands
    if form.operation != OPERATION or len(given) < 2 or not isinstance(given[1], Vector):
        return form
    result, _, *others = form.operands
    # B's descriptor, `scale-d`, two signs, two major-nesses.
    kept = others[:-1] if len(others) == 6 else others
    return replace(form, operands=(result, _FRAGMENT, *kept))


def immediates_fit(form: Form, given: Sequence[Operand | None]) -> bool:
    """Whether the factors of A and B are 1 or -1, and their major-nesses 0 or 1."""
    if form.operation == "wgmma_wait":
        return isinstance(given[0], Immediate) and given[0].value >= 0
    if form.operation != OPERATION:
        return True
    result = given[0]
    if not isinstance(result, Vector) or None in result.elements:
        return False
    numbers = [each.value for each in given[4:] if isinstance(each, Immediate)]
    return all(each in _SIGNS for each in numbers[:2]) and all(
        each in _MAJORS for each in numbers[2:]
    )
