"""Static knowledge of shared-memory addresses.

The distance of two addresses is known if they are the same sum of registers plus a constant. The
alignment of a sum is known as far as ptxas knows it: the powers of two that divide every term.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

# The largest power of two considered; no access is that wide.
_MOST = 16

Terms = tuple[tuple[Register | Symbol, int], ...]


@dataclass(frozen=True, slots=True)
class SymbolicAddress:
    """An address as a sum of terms, each a register times a factor, plus `offset` bytes.

    2^`zeros` divides the sum of the terms.
    """

    terms: Terms
    offset: int
    zeros: int


@dataclass(frozen=True, slots=True)
class _Definition:
    name: str
    form: Form
    sources: tuple[Operand | None, ...]


@dataclass(frozen=True, slots=True)
class _Sum:
    terms: Terms
    constant: int

    @classmethod
    def of(cls, factors: Mapping[Register | Symbol, int], constant: int) -> _Sum:
        terms = ((root, factor) for root, factor in factors.items() if factor)
        return cls(tuple(sorted(terms, key=lambda term: term[0].name)), constant)

    def plus(self, other: _Sum, times: int = 1) -> _Sum:
        factors = defaultdict(int, self.terms)
        for root, factor in other.terms:
            factors[root] += factor * times
        return _Sum.of(factors, self.constant + other.constant * times)


class SymbolicAddresses:
    """The symbolic addresses of a kernel's accesses to shared memory."""

    def __init__(self, flow: ControlFlow) -> None:
        self._shared = flow.kernel.shared
        self._definitions: defaultdict[Register, list[_Definition]] = defaultdict(list)
        for instruction, form in zip(flow.kernel.body, flow.forms, strict=True):
            self._define(instruction, form)
        self._known = dict.fromkeys(self._definitions, _MOST)
        self._solve()
        self._sum = cache(self._sum_of)
        self._variables = cache(self._variables_of)

    def of(self, address: Address) -> SymbolicAddress | None:
        """The symbolic address of an operand; None if its variable is not known."""
        found = self._sum(address.base)
        if found is None:
            return None
        zeros = min((self._zeros(root) + _zeros(by) for root, by in found.terms), default=_MOST)
        return SymbolicAddress(found.terms, found.constant + address.offset, zeros)

    def variables(self, address: Address) -> frozenset[str]:
        """The shared variables that an address may be computed from."""
        return self._variables(address.base)

    def _variables_of(self, base: Operand) -> frozenset[str]:
        found: set[str] = set()
        seen: set[Operand | None] = set()
        left: list[Operand | None] = [base]
        while left:
            operand = left.pop()
            if operand in seen:
                continue
            seen.add(operand)
            if isinstance(operand, Symbol) and operand.name in self._shared:
                found.add(operand.name)
            if isinstance(operand, Register):
                left += [each for what in self._definitions[operand] for each in what.sources]
        return frozenset(found)

    def _define(self, instruction: Instruction, form: Form) -> None:
        sides: dict[bool, list[Operand | None]] = {True: [], False: []}
        for operand, spec in zip(instruction.operands, form.operands, strict=False):
            if spec.role in ("dest", "source", "immediate"):
                sides[spec.role == "dest"].append(operand)
        # Nothing is known of results with several parts.
        whole = sides[True] and isinstance(sides[True][0], Register)
        name = form.opcode.split(".", 1)[0] if whole and _of_integers(form) else ""
        for register in (each for dest in sides[True] for each in registers_in(dest)):
            self._definitions[register].append(_Definition(name, form, tuple(sides[False])))

    def _solve(self) -> None:
        """Start from the best possible value of each register and lower it to what all definitions
        allow."""
        changed = True
        while changed:
            changed = False
            for register, definitions in self._definitions.items():
                found = min(self._zeros_defined(each) for each in definitions)
                if found != self._known[register]:
                    self._known[register], changed = found, True

    def _zeros_defined(self, definition: _Definition) -> int:
        rule = _ZEROS.get(definition.name)
        if rule is None:
            return 0
        return max(0, min(_MOST, rule(self._zeros, definition.sources)))

    def _zeros(self, operand: Operand | None) -> int:
        """The power of two that certainly divides a value."""
        if isinstance(operand, Register):
            return self._known.get(operand, 0)
        if isinstance(operand, Immediate):
            return _zeros(operand.value)
        variable = self._shared.get(operand.name) if isinstance(operand, Symbol) else None
        return 0 if variable is None else _zeros(variable.offset)

    def _sum_of(self, operand: Operand | None) -> _Sum | None:
        if isinstance(operand, Immediate):
            return _Sum((), operand.value)
        if isinstance(operand, Symbol):
            return _Sum(((operand, 1),), 0) if operand.name in self._shared else None
        if not isinstance(operand, Register):
            return None
        definitions = self._definitions[operand]
        found = self._sum_defined(definitions[0]) if len(definitions) == 1 else None
        return found or _Sum(((operand, 1),), 0)

    def _sum_defined(self, definition: _Definition) -> _Sum | None:
        """What an instruction computes if it is a sum, else None."""
        name, sources = definition.name, definition.sources
        # A register that changes is represented by its old value.
        if any(isinstance(each, Register) and self._changes(each) for each in sources):
            return None
        sums = [self._sum(each) for each in sources]
        if name in ("mov", "cvta", "add", "sub", "or", "shl", "mul", "mad") and None not in sums:
            first, *others = (each for each in sums if each is not None)
            if name in ("mov", "cvta"):
                return first
            if name in ("add", "sub"):
                return first.plus(others[0], 1 if name == "add" else -1)
            if name == "or":
                disjoint = not others[0].terms and 0 <= others[0].constant < 1 << self._zeros(
                    sources[0]
                )
                return first.plus(others[0]) if disjoint else None
            if others[0].terms:
                return None
            by = others[0].constant
            product = _Sum((), 0).plus(first, 1 << by if name == "shl" else by)
            return product.plus(others[1]) if name == "mad" else product
        return None

    def _changes(self, register: Register) -> bool:
        return len(self._definitions[register]) > 1


def registers_in(operand: Operand | None) -> list[Register]:
    """The registers of a destination operand."""
    if isinstance(operand, Vector):
        return [each for each in operand.elements if isinstance(each, Register)]
    if isinstance(operand, Pair):
        return [each for each in (operand.first, operand.second) if isinstance(each, Register)]
    return [operand] if isinstance(operand, Register) else []


def _of_integers(form: Form) -> bool:
    types = [form.modifiers[each] for each in "TD" if form.modifiers.get(each)]
    wide = ".hi" in form.opcode or ".sat" in form.opcode
    return not wide and all(each[0] in "bsu" or each == "to" for each in types)


def _zeros(number: int) -> int:
    return (number & -number).bit_length() - 1 if number else _MOST


Zeros = Callable[[Operand | None], int]
Sources = tuple[Operand | None, ...]


def _least(zeros: Zeros, sources: Sources) -> int:
    return min(zeros(each) for each in sources)


def _product(zeros: Zeros, sources: Sources) -> int:
    whole = zeros(sources[0]) + zeros(sources[1])
    return whole if len(sources) == 2 else min(whole, zeros(sources[2]))


def _left(zeros: Zeros, sources: Sources) -> int:
    by = sources[1].value if isinstance(sources[1], Immediate) else 0
    return zeros(sources[0]) + by


def _right(zeros: Zeros, sources: Sources) -> int:
    return zeros(sources[0]) - sources[1].value if isinstance(sources[1], Immediate) else 0


_ZEROS: Mapping[str, Callable[[Zeros, Sources], int]] = {
    **dict.fromkeys(("mov", "cvt", "cvta", "add", "sub", "or", "xor", "neg"), _least),
    "selp": lambda zeros, sources: _least(zeros, sources[:2]),
    "and": lambda zeros, sources: max(zeros(each) for each in sources),
    "mul": _product,
    "mad": _product,
    "shl": _left,
    "shr": _right,
}
