"""What a segment computes, apart from where its operands and results are: segments of one kernel
that compute the same are compiled once.

Unrolled loops have hundreds of them. The key of a segment says what its code depends on; its
parameters are the slots and values that it reads and writes, numbered as they occur.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from types import FunctionType
from typing import Any

from gemmkit.emulator.codegen.ir_values import Value
from gemmkit.emulator.codegen.values import (
    LaneNumber,
    Location,
    Node,
    Result,
    Scalar,
    Slot,
)
from gemmkit.emulator.isa.form import Form


class UnknownCode(Exception):
    """What a computation emits may depend on more than can be compared."""


class Parameters:
    """The operands and results of a segment as parameters of a function."""

    def __init__(self) -> None:
        self._names: dict[Slot | Value, Value] = {}
        self._numbers: dict[Node, int] = {}

    @property
    def given(self) -> list[Slot | Value]:
        """What the parameters stand for, in their order."""
        return list(self._names)

    @property
    def names(self) -> list[Value]:
        """The parameters in the function."""
        return list(self._names.values())

    def of(self, each: Slot | Value) -> Value:
        """The parameter of a slot (its address) or value; a number stays what it is."""
        if isinstance(each, Value) and each.number is not None:
            return each
        found = self._names.get(each)
        if found is None:
            kind = "ptr" if isinstance(each, Slot) else each.type
            found = self._names[each] = Value(kind, f"%a{len(self._names)}")
        return found

    def computation(self, node: Node) -> Hashable:
        """What is computed, and from what.

        Raises:
            UnknownCode: this cannot be told.
        """
        key = _part(node.emit), tuple([(self.location(of), bits) for of, bits in node.sources])
        self._numbers[node] = len(self._numbers)
        return key

    def location(self, of: Location) -> Hashable:
        """A value in terms of parameters and of the computations so far."""
        if isinstance(of, Result):
            if of.stored is None:
                return "computed", self._numbers[of.node], of.index
            of = of.stored
        if isinstance(of, LaneNumber):
            return "lane"
        if isinstance(of, Slot):
            return "slot", self.of(of).name, of.bits
        value = self.of(of.value)
        return "scalar" if isinstance(of, Scalar) else "lanes", value.type, value.name


def _part(each: Any) -> Hashable:
    """What the code that a function emits depends on, its arguments aside: itself, what it was made
    for, and what it encloses, which is no value of the code around it."""
    if isinstance(each, FunctionType):
        cells = each.__closure__
        if not cells:
            return each.__code__
        return each.__code__, tuple([_part(cell.cell_contents) for cell in cells])
    if isinstance(each, Form):
        return each.opcode, each.operation
    if isinstance(each, partial):
        return each.func, tuple([_part(argument) for argument in each.args])
    if isinstance(each, (list, tuple)):
        return tuple([_part(part) for part in each])
    if isinstance(each, (int, str)) or each is None:
        return each
    raise UnknownCode
