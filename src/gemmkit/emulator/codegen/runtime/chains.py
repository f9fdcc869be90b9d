"""`mma.sync` in fp64: a chain of fused multiply-adds, for all lanes at once.

Each lane multiplies the elements that it needs of the other lanes' registers, which permutations
provide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as pairs

from gemmkit.emulator.codegen.ir import Function, Value, literal, vector
from gemmkit.emulator.codegen.ir_values import LANES as STRIP
from gemmkit.emulator.isa.matrices import LANES, Fragment, MatrixProduct

_BYTES = 8
_DOUBLES, _LONGS = vector("double"), vector("i64")
_QUIET = 1 << 51
# What an operation without a NaN operand returns.
_INDEFINITE = 0xFFF8_0000_0000_0000

Element = tuple[int, int]


def multiply(
    f: Function,
    product: MatrixProduct,
    to: Sequence[Value],
    from_a: Sequence[Value],
    from_b: Sequence[Value],
    from_c: Sequence[Value],
) -> None:
    """Compute the registers `to` of D, given those of A, B and C by their addresses."""
    of_a, of_b, of_c = product.fragments
    a, b = _Operand(f, of_a, from_a), _Operand(f, of_b, from_b)
    strips = list(pairs(range(len(to)), range(LANES // STRIP)))
    factors = {}
    some_nan = literal(vector("i1"), 0)
    for element, strip in strips:
        lanes = range(strip * STRIP, (strip + 1) * STRIP)
        rows, columns = (of[element, lanes] for of in (of_c.rows, of_c.columns))
        factors[element, strip] = [
            (a.at([(int(row), step) for row in rows]), b.at([(step, int(x)) for x in columns]))
            for step in range(product.kind.depth)
        ]
        total = f.load(_DOUBLES, from_c[element], strip * STRIP * _BYTES)
        for left, right in factors[element, strip]:
            total = f.intrinsic("fma", left, right, total)
        f.store(total, to[element], strip * STRIP * _BYTES)
        some_nan = f.or_(some_nan, f.compare_float("uno", total, total))
    # Which NaN processors return differs.
    with f.when(f.compare("ne", f.packed(some_nan), 0)):
        for element, strip in strips:
            total = f.load(_LONGS, from_c[element], strip * STRIP * _BYTES)
            for left, right in factors[element, strip]:
                total = _step(f, left, right, total)
            f.store(total, to[element], strip * STRIP * _BYTES)


def _step(f: Function, left: Value, right: Value, total: Value) -> Value:
    """One multiply-add with the NaN of tensor cores: the first of B's, C's and A's element that is
    one, made quiet."""
    addend = f.cast("bitcast", total, "double")
    found = f.intrinsic("fma", left, right, addend)
    bits = f.cast("bitcast", found, "i64")
    bits = f.select(f.compare_float("uno", found, found), literal(_LONGS, _INDEFINITE), bits)
    for operand in (left, addend, right):
        quiet = f.or_(f.cast("bitcast", operand, "i64"), _QUIET)
        bits = f.select(f.compare_float("uno", operand, operand), quiet, bits)
    return bits


class _Operand:
    """The elements of A or B in all lanes."""

    def __init__(self, f: Function, fragment: Fragment, registers: Sequence[Value]) -> None:
        self._f = f
        self._strips = {
            (element, strip): f.load(_DOUBLES, register, strip * STRIP * _BYTES)
            for element, register in enumerate(registers)
            for strip in range(LANES // STRIP)
        }
        self._where = {
            (int(fragment.rows[element, lane]), int(fragment.columns[element, lane])): (
                (element, lane // STRIP),
                lane % STRIP,
            )
            for element in range(len(fragment.rows))
            for lane in range(LANES)
        }
        self._known: dict[tuple[Element, ...], Value] = {}

    def at(self, elements: Sequence[Element]) -> Value:
        """A strip of the elements at these rows and columns."""
        key = tuple(elements)
        if key not in self._known:
            self._known[key] = self._gathered([self._where[each] for each in elements])
        return self._known[key]

    def _gathered(self, found: Sequence[tuple[Element, int]]) -> Value:
        """Elements of one strip take one permutation; others are combined strip by strip."""
        strip, *others = dict.fromkeys(source for source, _ in found)
        chosen = self._f.permute(self._strips[strip], [lane for _, lane in found])
        for other in others:
            order = [
                STRIP + lane if source == other else index
                for index, (source, lane) in enumerate(found)
            ]
            chosen = self._f.permute(chosen, order, self._strips[other])
        return chosen
