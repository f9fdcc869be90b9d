"""`wmma.mma`: the product of fragments, by the function of `mma.sync`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.fragment_products import products, sums_type
from gemmkit.emulator.isa.matrices import Raw, defined_products
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import form_of

_HALF = 16


def product_form(opcode: str) -> Form:
    """The form of an `mma.sync` that a product is made of."""
    form = form_of(opcode)
    assert form is not None, opcode
    return form


def conversion(narrow: bool) -> Form:
    """The conversion of an accumulator to fp16 (`narrow`) or from it."""
    return product_form("cvt.rn.f16.f32" if narrow else "cvt.f32.f16")


# What computes an `mma.sync`: its form and registers to the registers of its result.
Product = Callable[[Form, Sequence[Raw]], tuple[Raw, ...]]


def multiply_fragments(form: Form, registers: Sequence[Raw], product: Product) -> tuple[Raw, ...]:
    """The registers of D from those of A, B and C, each (…, lanes) of raw bits."""

    def convert(narrow: bool, numbers: Raw) -> Raw:
        return evaluate(conversion(narrow), [numbers])[0]

    return _chained(form, registers, product, convert)


def defined_fragments(form: Form, registers: Sequence[Raw]) -> tuple[Raw, ...]:
    """The defined bits of D, from those of A, B and C, as `defined_products`."""

    def convert(narrow: bool, bits: Raw) -> Raw:
        kind = np.uint16 if narrow else np.uint32
        return np.where(bits == np.iinfo(bits.dtype).max, np.iinfo(kind).max, 0).astype(kind)

    return _chained(form, registers, defined_products, convert)


def _chained(
    form: Form,
    registers: Sequence[Raw],
    product: Product,
    convert: Callable[[bool, Raw], Raw],
) -> tuple[Raw, ...]:
    """All products, each added to what the earlier ones left in the accumulator."""
    a, b = form.operands[1].count, form.operands[2].count
    factors = {"a": registers[:a], "b": registers[a : a + b]}
    sums = list(registers[a + b :])
    single = sums_type(form) == "f32"
    if single and form.modifiers.get("C") == "f16":
        halves = [half for word in sums for half in (word & 0xFFFF, word >> _HALF)]
        sums = [convert(False, half.astype(np.uint16)) for half in halves]
    for each in products(form):
        (left, rows), (right, columns) = each.left, each.right
        operands = [factors[left][number] for number in rows]
        operands += [factors[right][number] for number in columns]
        operands += [sums[number] for number in each.sums]
        results = product(product_form(each.opcode), operands)
        for number, result in zip(each.sums, results, strict=True):
            sums[number] = result
    if single and form.modifiers.get("D") == "f16":
        halves = [convert(True, word).astype(np.uint32) for word in sums]
        sums = [low | high << _HALF for low, high in zip(halves[::2], halves[1::2], strict=True)]
    return tuple(sums)
