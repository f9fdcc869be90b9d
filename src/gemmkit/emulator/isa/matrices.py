"""`mma.sync`: the fragment layouts of the lanes, and the product.

Lane 4 g + t holds rows g and g + 8 (if there are 16) of A, column g of B, and columns 2 t and 2 t +
1 of A's rows of C and D (PTX ISA, "Matrix multiply-accumulate operation using mma instruction").
Numbers that are adjacent along k share a register: four of 8 bits, two of 16 bits; two binary16
numbers of C or D that are adjacent in a row do so too.

What the product is, to the bit, depends on the architecture: see `numerics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.numerics.model import multiply as multiply_matrices
from gemmkit.emulator.numerics.rules import SIZES, Capability, Kind

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
def fragments(rows: int, depth: int, packed: int) -> tuple[Fragment, Fragment, Fragment]:
    """The fragments of A (rows × depth), B (depth × 8) and C; `packed` numbers of A or B share a
    register."""
    group, thread = np.divmod(np.arange(LANES), 4)
    along, down = depth // (4 * packed), rows // 8

    def steps(r: int, number: int) -> Indices:
        return packed * thread + number + 4 * packed * r

    of_a = [
        (group + 8 * lower, steps(r, number))
        for r in range(along)
        for lower in range(down)
        for number in range(packed)
    ]
    of_b = [(steps(r, number), group) for r in range(along) for number in range(packed)]
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


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """What an `mma.sync` multiplies: rows × depth of A, and eight columns of B."""

    kind: Kind
    rows: int

    @classmethod
    def of(cls, form: Form) -> MatrixProduct:
        """The product of a form."""
        saturates = form.modifiers.get("S", "") == "satfinite"
        kind = Kind("mma", form["A"], form["B"], form["R"], int(form["K"]), saturates)
        return cls(kind, int(form["M"]))

    @classmethod
    def named(cls, name: str) -> MatrixProduct:
        """The product with this `name`."""
        rows, depth, a, b, result, overflow = name.split("_")
        return cls(Kind("mma", a, b, result, int(depth), overflow == "clamp"), int(rows))

    @property
    def name(self) -> str:
        """Everything about it in one word, such as `16_8_f16_f16_f32_wrap`."""
        kind = self.kind
        overflow = "clamp" if kind.saturates else "wrap"
        return f"{self.rows}_{kind.depth}_{kind.a}_{kind.b}_{kind.result}_{overflow}"

    @property
    def packed(self) -> int:
        """How many numbers of A or B share a register."""
        return max(1, 4 // SIZES[self.kind.a])

    @property
    def packed_sums(self) -> int:
        """How many numbers of C share a register."""
        return 2 if self.kind.result == "f16" else 1

    @property
    def words(self) -> int:
        """A lane's registers of a row of A, and of a column of B."""
        return self.kind.depth // (4 * self.packed)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many registers D, A, B and C have."""
        down = self.rows // 8
        sums = 2 * down // self.packed_sums
        return sums, self.words * down, self.words, sums

    @property
    def fragments(self) -> tuple[Fragment, Fragment, Fragment]:
        """The fragments of A, B and C."""
        return fragments(self.rows, self.kind.depth, self.packed)

    def numbers(self, registers: Sequence[Raw]) -> list[Raw]:
        """The numbers in the registers of A, B and C, as raw bits (…, elements, lanes)."""
        split = np.split(np.stack(registers, axis=-2), np.cumsum(self.counts[1:3]), axis=-2)
        packed = (self.packed, self.packed, self.packed_sums)
        return [_unpacked(each, count) for each, count in zip(split, packed, strict=True)]

    def registers(self, numbers: Raw) -> tuple[Raw, ...]:
        """The registers that hold the numbers of D, (…, elements, lanes)."""
        words = numbers
        if self.packed_sums > 1:
            words = numbers[..., ::2, :] | numbers[..., 1::2, :].astype(np.uint32) << np.uint32(16)
        return tuple(np.moveaxis(words, -2, 0))


def multiply(form: Form, capability: Capability, registers: Sequence[Raw]) -> tuple[Raw, ...]:
    """The registers of D from those of A, B and C, each (…, lanes) of raw bits.

    Raises:
        UnsupportedInstruction: an architecture of this compute capability has no such instruction.
    """
    product = MatrixProduct.of(form)
    parts = zip(product.fragments, product.numbers(registers), strict=True)
    a, b, c = (fragment.gather(numbers) for fragment, numbers in parts)
    found = multiply_matrices(product.kind, capability, a, b, c)
    return product.registers(product.fragments[2].scatter(found))


def defined_products(form: Form, registers: Sequence[Raw]) -> tuple[Raw, ...]:
    """The defined bits of D, from those of A, B and C: all bits of an element if its row of A, its
    column of B and its element of C are defined, else none."""
    product = MatrixProduct.of(form)
    of_a, of_b, of_c = product.fragments
    numbers = product.numbers(registers)
    a, b, c = (each == np.iinfo(each.dtype).max for each in numbers)
    left = np.logical_and.reduce(of_a.gather(a), axis=-1)
    right = np.logical_and.reduce(of_b.gather(b), axis=-2)
    defined = of_c.scatter(left[..., :, None] & right[..., None, :] & of_c.gather(c))
    kind = numbers[2].dtype
    return product.registers(np.where(defined, np.iinfo(kind).max, 0).astype(kind))


def _unpacked(words: Raw, packed: int) -> Raw:
    """The numbers in words: (…, registers, lanes) to `packed` times as many."""
    if packed == 1:
        return words
    bits = 32 // packed
    shifts = np.arange(packed, dtype=np.uint32)[:, None] * np.uint32(bits)
    numbers = words[..., :, None, :] >> shifts & np.uint32((1 << bits) - 1)
    merged = numbers.reshape(*words.shape[:-2], -1, words.shape[-1])
    unpacked: Raw = merged.astype(f"u{bits // 8}")
    return unpacked
