"""`mma.sync`: the fragment layouts of the lanes, and the product.

Lane 4 g + t holds rows g and g + 8 (if there are 16) of A, column g of B, and columns 2 t and 2 t +
1 of A's rows of C and D (PTX ISA, "Matrix multiply-accumulate operation using mma instruction").
Two 16-bit numbers that are adjacent along k share a register.

The order in which the hardware accumulates, and where it truncates fp32 sums, is not documented.
Here k ascends, with one fused multiply-add per step for fp64; sums in fp32 are computed in fp64 and
rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.rounding import (
    BINARY64,
    FORMATS,
    Format,
    decode,
    encode,
    round_to,
    rounded_product_sum,
)

LANES = 32
Indices = NDArray[np.int64]
Raw = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Fragment:
    """The row and column of each element, (elements, lanes), in a matrix."""

    shape: tuple[int, int]
    rows: Indices
    columns: Indices

    def gather(self, numbers: Raw) -> Raw:
        """The matrix, from numbers (…, elements, lanes)."""
        matrix = np.zeros((*numbers.shape[:-2], *self.shape), numbers.dtype)
        matrix[..., self.rows, self.columns] = numbers
        return matrix

    def scatter(self, matrix: Raw) -> Raw:
        """The elements that each lane holds, (…, elements, lanes)."""
        held: Raw = matrix[..., self.rows, self.columns]
        return held


@cache
def fragments(rows: int, depth: int, pair: int) -> tuple[Fragment, Fragment, Fragment]:
    """The fragments of A (rows × depth), B (depth × 8) and C; `pair` numbers share a register."""
    group, thread = np.divmod(np.arange(LANES), 4)
    along, down = depth // (4 * pair), rows // 8

    def steps(r: int, half: int) -> Indices:
        return pair * thread + half + 4 * pair * r

    of_a = [
        (group + 8 * lower, steps(r, half))
        for r in range(along)
        for lower in range(down)
        for half in range(pair)
    ]
    of_b = [(steps(r, half), group) for r in range(along) for half in range(pair)]
    of_c = [(group + 8 * lower, 2 * thread + odd) for lower in range(down) for odd in (0, 1)]
    shapes = ((rows, depth), (depth, 8), (rows, 8))
    a, b, c = (
        Fragment(
            shape,
            np.array([row for row, _ in indices]),
            np.array([column for _, column in indices]),
        )
        for shape, indices in zip(shapes, (of_a, of_b, of_c), strict=True)
    )
    return a, b, c


def multiply(form: Form, registers: Sequence[Raw]) -> tuple[Raw, ...]:
    """The registers of D from those of A, B and C, each (…, lanes) of raw bits."""
    depth, kind = int(form["K"]), FORMATS[form["T"]]
    (of_a, of_b, of_c), operands = _operands(form, registers)
    target = kind if kind is BINARY64 else FORMATS["f32"]
    a, b, c = (_numbers(each, of) for each, of in zip(operands, (kind, kind, target), strict=True))
    left, right, total = of_a.gather(a), of_b.gather(b), of_c.gather(c)
    with np.errstate(all="ignore"):
        for step in range(depth):
            factors = left[..., :, step, None], right[..., step, None, :]
            if kind is BINARY64:
                total = rounded_product_sum(*factors, total, kind, "n")
            else:  # a product of such numbers is exact
                total = total + factors[0] * factors[1]
        numbers = total if kind is BINARY64 else round_to(total, target, "n")
    return tuple(np.moveaxis(of_c.scatter(encode(numbers, target)), -2, 0))


def defined_products(form: Form, registers: Sequence[Raw]) -> tuple[Raw, ...]:
    """The defined bits of D, from those of A, B and C: all bits of an element if its row of A, its
    column of B and its element of C are defined, else none."""
    kind = FORMATS[form["T"]]
    (of_a, of_b, of_c), operands = _operands(form, registers)
    whole = [_unpacked(each) if kind.bits == 16 else each for each in operands[:2]]
    a, b, c = (each == np.iinfo(each.dtype).max for each in (*whole, operands[2]))
    left = np.logical_and.reduce(of_a.gather(a), axis=-1)
    right = np.logical_and.reduce(of_b.gather(b), axis=-2)
    defined = of_c.scatter(left[..., :, None] & right[..., None, :] & of_c.gather(c))
    bits = np.where(defined, np.iinfo(operands[2].dtype).max, 0).astype(operands[2].dtype)
    return tuple(np.moveaxis(bits, -2, 0))


def _operands(
    form: Form, registers: Sequence[Raw]
) -> tuple[tuple[Fragment, Fragment, Fragment], list[Raw]]:
    """The fragments of A, B and C, and the registers of each."""
    rows, depth = int(form["M"]), int(form["K"])
    pair = 1 if FORMATS[form["T"]] is BINARY64 else 2
    counts = [rows * depth // 32 // pair, depth * 8 // 32 // pair]
    split = np.split(np.stack(registers, axis=-2), np.cumsum(counts), axis=-2)
    return fragments(rows, depth, pair), split


def _numbers(registers: Raw, kind: Format) -> Raw:
    """The numbers in a fragment's registers."""
    return decode(_unpacked(registers) if kind.bits == 16 else registers, kind)


def _unpacked(words: Raw) -> Raw:
    """Unpack pairs of 16 bits: (…, registers, lanes) to twice as many."""
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-2)
    merged = halves.reshape(*words.shape[:-2], -1, words.shape[-1])
    unpacked: Raw = merged.astype(np.uint16)
    return unpacked
