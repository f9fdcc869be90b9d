"""`FlagWait`: the test that ends a loop in which a thread waits for a flag, as expressions of the
value that the flag has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gemmkit.emulator.codegen.operands import Action, source_widths
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.semantics.raw import UNSIGNED, Raw
from gemmkit.emulator.ptx.module import Register

# So many values of a flag are remembered.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Loaded:
    """The value that a look has found, or (`of_operand`) what it is compared with."""

    of_operand: bool = False


@dataclass(frozen=True, slots=True)
class Computed:
    """A result of an instruction that computes from registers; or its complement."""

    action: Action
    sources: tuple[Expression, ...]
    result: int


@dataclass(frozen=True, slots=True)
class Not:
    """The complement of a predicate."""

    of: Expression


Expression = Loaded | Computed | Not | int


@dataclass(frozen=True, slots=True)
class Branch:
    """What a thread does by a predicate: by which exit it goes on (numbers above 0), that it looks
    again (0), or that another branch decides."""

    predicate: Expression
    taken: int | Branch
    otherwise: int | Branch


@dataclass(frozen=True, slots=True)
class FlagWait:
    """What a loop waits for: a test of the loaded value, which may depend on one register, the
    `operand`, that the loop does not change. It has so many `bits`."""

    test: Branch
    operand: Register | int
    bits: int
    loaded_bits: int
    signed: bool
    _known: dict[tuple[int, int], int] = field(default_factory=dict, compare=False)

    def exit(self, value: int, operand: int) -> int:
        """By which exit of the loop a value lets the thread go on; 0 if by none."""
        found = self._known.get((value, operand))
        if found is None:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            found = self._known[value, operand] = self._taken(value, operand)
        return found

    def _taken(self, value: int, operand: int) -> int:
        value &= (1 << self.loaded_bits) - 1
        if self.signed:
            value -= value >> self.loaded_bits - 1 << self.loaded_bits
        branch: int | Branch = self.test
        while isinstance(branch, Branch):
            holds = bool(_evaluated(branch.predicate, 1, (value, operand)))
            branch = branch.taken if holds else branch.otherwise
        return branch


def _evaluated(of: Expression, width: int, given: tuple[int, int]) -> Raw:
    """An expression in so many bits, given the loaded value and the operand."""
    if isinstance(of, Computed):
        widths = source_widths(of.action)
        sources = [
            _evaluated(each, bits, given) for each, bits in zip(of.sources, widths, strict=True)
        ]
        result = evaluate(of.action.form, sources)[of.result]
        return result if result.dtype == np.bool_ else _resized(int(result), width)
    if isinstance(of, Not):
        return ~_evaluated(of.of, width, given)
    return _resized(given[of.of_operand] if isinstance(of, Loaded) else of, width)


def _resized(value: int, width: int) -> Raw:
    if width == 1:
        return np.asarray(bool(value))
    return np.asarray(value & (1 << width) - 1, UNSIGNED[width])


def depends(of: Expression) -> bool:
    """Whether an expression depends on the loaded value."""
    return any(isinstance(each, Loaded) and not each.of_operand for each in _parts(of))


def _parts(of: Expression) -> Iterator[Expression]:
    yield of
    if isinstance(of, Not):
        yield from _parts(of.of)
    elif isinstance(of, Computed):
        for each in of.sources:
            yield from _parts(each)
