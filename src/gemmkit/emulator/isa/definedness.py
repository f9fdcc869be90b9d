"""How undefined bits propagate from the operands of an instruction to its results.

Both executors follow these rules if they track undefined bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmkit.emulator.isa.form import Form

# moved: the instruction is applied to the undefined bits of its data operands as to their values;
# the other operands control it, and one undefined bit in them makes all undefined. bitwise: a bit
# is undefined if some choice of the undefined bits in its column changes it. packed: two numbers,
# the first in the upper half of the result, each undefined as a whole. whole: one undefined bit in
# any operand makes all of the result undefined.
Kind = Literal["moved", "bitwise", "packed", "whole"]

# The data operands of instructions that move bits, by operation.
_MOVED: dict[str, tuple[int, ...]] = {
    "shift_left": (0,),
    "shift_right": (0,),
    "permute_bytes": (0, 1),
    "extract_bits": (0,),
    "insert_bits": (0, 1),
    "funnel_shift": (0, 1),
    "reverse_bits": (0,),
    "convert_integer": (0,),
    "select": (0, 1),
}
# Modes of `prmt` that are controlled by a whole register.
_OTHER_PERMUTATIONS = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
_BITWISE = frozenset(["logic", "not", "logic3"])
_PACKED_TYPES = frozenset(["f16x2", "bf16x2"])
_HALF = 16


@dataclass(frozen=True, slots=True)
class Flow:
    """How an instruction propagates undefined bits.

    `data` are the operands that `moved` moves. `part` is the width in bits of what `whole` treats
    as one number, 0 for the whole register.
    """

    kind: Kind
    data: tuple[int, ...] = ()
    part: int = 0


_WHOLE, _BY_BIT, _PACKED = Flow("whole"), Flow("bitwise"), Flow("packed")
_BY_HALF = Flow("whole", part=_HALF)


def flow_of(form: Form) -> Flow:
    """The rule of a form that computes registers from registers."""
    if form.operation in _MOVED and not form.modifiers.get("M", "").endswith(_OTHER_PERMUTATIONS):
        return Flow("moved", _MOVED[form.operation])
    if form.operation in _BITWISE:
        return _BY_BIT
    if form.operation == "convert_pack":
        return _PACKED
    if form.operation.startswith("half") and form.modifiers.get("T") in _PACKED_TYPES:
        return _BY_HALF
    return _WHOLE
