"""`wgmma.mma_async`: the product of a warp's 16 rows out of the warpgroup's 64.

Warp i of the four has rows 16 i to 16 i + 15. In its lanes A, each eight columns of B, and D with
these columns have the fragments of `mma.sync` (PTX ISA, "Register Fragments and Shared Memory
Matrix Layouts").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrices import MatrixProduct, Raw
from gemmkit.emulator.isa.matrix_descriptors import check
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.warpgroup_forms import ROWS, WARPS
from gemmkit.emulator.numerics.formats import FORMATS
from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import SIZES, Capability, Kind


def check_warpgroup(warp: int, warps: int, active: NDArray[np.bool_]) -> None:
    """Check that all lanes of a warp, one of `warps` in its block, execute an instruction, and that
    its warpgroup is complete.

    Raises:
        Misuse: they do not, or it is not.
    """
    if not active.all():
        raise Misuse(
            "incomplete warpgroup",
            f"executes it with {np.count_nonzero(active)} of the 32 lanes of its warp; all threads "
            "of a warpgroup must",
        )
    if warp | (WARPS - 1) >= warps:
        raise Misuse(
            "incomplete warpgroup",
            f"is in warp {warp} of a block of {warps} warps; a warpgroup is four warps, the first "
            "of which has a number that is a multiple of four",
        )


def check_operands(
    product: WarpgroupProduct, operands: Sequence[Raw], rank: int, memory: range
) -> tuple[int, ...]:
    """The descriptors that a warp's lanes give, checked: they and `scale-d`, the last operand, must
    be the same in all lanes, and describe what is in shared memory.

    Args:
        product: the product.
        operands: the descriptors and `scale-d`, by lane.
        rank: that of the warp in its warpgroup.
        memory: the addresses of the block's shared memory.

    Raises:
        Misuse: they are not.
    """
    *given, scale = operands
    for name, each in (*zip(product.in_shared, given, strict=True), ("", scale)):
        if (each != each[0]).any():
            what = f"gives matrix descriptors of {name}" if name else "gives values of scale-d"
            raise Misuse("lanes disagree", f"{what} that differ between the lanes of its warp")
    words = tuple(int(each[0]) for each in given)
    _check_descriptors(product, words, rank, memory)
    return words


@lru_cache(maxsize=4096)
def _check_descriptors(
    product: WarpgroupProduct, words: tuple[int, ...], rank: int, memory: range
) -> None:
    for name, word in zip(product.in_shared, words, strict=True):
        rows, transposed = product.rows_of(name, rank)
        check(word, name, rows, transposed=transposed, memory=memory)


@dataclass(frozen=True, slots=True)
class WarpgroupProduct:
    """What a `wgmma.mma_async` multiplies.

    `in_registers`: A is. `negates`: the product is negated, as it is if one of A and B is.
    `transposed`: whether A, and B, are adjacent in shared memory along their rows and columns, not
    along k.
    """

    kind: Kind
    columns: int
    in_registers: bool
    negates: bool
    transposed: tuple[bool, bool]

    @classmethod
    def of(cls, form: Form, immediates: Sequence[int]) -> WarpgroupProduct:
        """The product of a form with these immediate operands."""
        saturates = form.modifiers.get("S", "") == "satfinite"
        kind = Kind("wgmma", form["A"], form["B"], form["R"], int(form["K"]), saturates)
        in_registers = form.operands[1].count > 1
        signs, majors = immediates[:2], [each == 1 for each in immediates[2:]]
        if in_registers:
            majors = [False, *majors]
        a, b = (*majors, False, False)[:2]
        return cls(kind, int(form["N"]), in_registers, signs.count(-1) == 1, (a, b))

    @property
    def in_shared(self) -> str:
        """The operands in shared memory."""
        return "B" if self.in_registers else "AB"

    def rows_of(self, operand: str, rank: int) -> tuple[range, bool]:
        """The rows of A, or columns of B, that a warp of this rank reads, and whether the elements
        are adjacent along these."""
        if operand == "A":
            return range(ROWS * rank, ROWS * (rank + 1)), self.transposed[0]
        return range(self.columns), self.transposed[1]

    @property
    def tile(self) -> MatrixProduct:
        """The product of a warp's rows and eight columns."""
        return MatrixProduct(self.kind, ROWS)

    @property
    def sign_bit(self) -> int:
        """The sign bit of an element of A; integers are never negated."""
        return 1 << 8 * SIZES[self.kind.a] - 1

    def elements(self, chunks: Raw, *, transposed: bool) -> Raw:
        """The raw elements (rows, depth) from the bytes (…, 16) of the chunks of these rows, in the
        order of `Descriptor.chunks`."""
        numbers = np.ascontiguousarray(chunks).view(f"u{SIZES[self.kind.a]}")
        if not transposed:
            rows: Raw = numbers.reshape(-1, self.kind.depth)
            return rows
        turned = np.swapaxes(numbers.reshape(-1, self.kind.depth, 8), -1, -2)
        return np.ascontiguousarray(turned.reshape(-1, self.kind.depth))

    def multiply(self, capability: Capability, a: Raw, b: Raw, c: Raw) -> Raw:
        """The raw D (16, columns) from A (16, depth), B (columns, depth) and C (16, columns).

        Raises:
            UnsupportedInstruction: an architecture of this compute capability has no such
                instruction.
        """
        left = a ^ a.dtype.type(self.sign_bit) if self.negates else a
        return multiply(self.kind, capability, left, np.ascontiguousarray(b.T), c)

    @property
    def result_bits(self) -> int:
        """The width of an element of D."""
        return 32 if self.kind.result == "s32" else FORMATS[self.kind.result].bits
