"""`mma.sync`: the product of small matrices that the lanes of a warp hold, for all lanes at once.

Each lane multiplies the elements that it needs of the other lanes' registers, which permutations
provide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

from gemmkit.emulator.codegen.halves import widened
from gemmkit.emulator.codegen.ir import Function, Module, Value, vector
from gemmkit.emulator.codegen.ir_values import LANES as STRIP
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrices import LANES, Fragment, fragments

PREFIX = "multiply_"

Element = tuple[int, int]


def function_of(form: Form) -> str:
    """The name of the function for a form: `multiply_16_8_f16` has 16 rows and 8 steps of k."""
    return f"{PREFIX}{form['M']}_{form['K']}_{form['T']}"


def define(module: Module, name: str) -> None:
    """Add one function; it takes the addresses of D's registers and of those of A, B and C."""
    rows, depth, kind = name.removeprefix(PREFIX).split("_")
    pair = 1 if kind == "f64" else 2
    of_a, of_b, of_c = fragments(int(rows), int(depth), pair)
    counts = [len(of_c.rows), len(of_a.rows) // pair, len(of_b.rows) // pair, len(of_c.rows)]
    registers = [Value("ptr", f"%r{number}") for number in range(sum(counts))]
    starts = [sum(counts[:index]) for index in range(len(counts) + 1)]
    to, from_a, from_b, from_c = (registers[start:end] for start, end in pairwise(starts))
    with module.function(f"gemmkit.{name}", "void", registers) as f:
        a, b = _Operand(f, of_a, from_a, kind), _Operand(f, of_b, from_b, kind)
        for element, strip in product(range(len(to)), range(LANES // STRIP)):
            lanes = range(strip * STRIP, (strip + 1) * STRIP)
            elements = [(int(of_c.rows[element, i]), int(of_c.columns[element, i])) for i in lanes]
            (total,) = _numbers(f, from_c[element], strip, "f64" if kind == "f64" else "f32")
            for step in range(int(depth)):
                left = a.at([(row, step) for row, _ in elements])
                right = b.at([(step, column) for _, column in elements])
                if kind == "f64":
                    total = f.intrinsic("fma", left, right, total)
                else:  # a product of such numbers is exact
                    total = f.binary("fadd", total, f.binary("fmul", left, right))
            single = total if kind == "f64" else f.cast("fptrunc", total, "float")
            bits = 64 if kind == "f64" else 32
            f.store(f.cast("bitcast", single, f"i{bits}"), to[element], strip * STRIP * bits // 8)
        f.ret()


class _Operand:
    """The elements of A or B in all lanes, as fp64 strips."""

    def __init__(
        self, f: Function, fragment: Fragment, registers: Sequence[Value], kind: str
    ) -> None:
        self._f = f
        self._strips = {
            (element, strip): number
            for strip in range(LANES // STRIP)
            for element, number in enumerate(
                number for register in registers for number in _numbers(f, register, strip, kind)
            )
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


def _numbers(f: Function, register: Value, strip: int, kind: str) -> list[Value]:
    """The numbers that a strip of lanes has in a register, as fp64: one, or the two of a pair."""
    bits = 64 if kind == "f64" else 32
    word = f.load(vector(f"i{bits}"), register, strip * STRIP * bits // 8)
    if kind == "f64":
        return [f.cast("bitcast", word, "double")]
    if kind == "f32":
        return [f.cast("fpext", f.cast("bitcast", word, "float"), "double")]
    halves = (f.and_(word, 0xFFFF), f.lshr(word, 16))
    return [f.cast("fpext", widened(f, half, kind), "double") for half in halves]
