"""Copies of A and B in the workspace, for kernels whose loads need other rows than they have.

A plan whose kernel reads such copies has a launch before it, of `copy_operands`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.problem import GemmProblem

# What TMA needs rows to begin at multiples of, in bytes; and what copies, and their rows, begin at:
# TMA is faster where a box's lines are those of the cache.
ROW_ALIGNMENT, COPY_ALIGNMENT, COPIED_ROW_ALIGNMENT = 16, 256, 128


@dataclass(frozen=True, slots=True)
class OperandCopy:
    """A copy of an operand, `offset` bytes into the workspace: `count` products of `lines` lines
    each, `length` elements of `dtype` long and `ld` apart. The lines of a `turned` copy are made of
    one element of each of the matrix's own."""

    operand: str
    offset: int
    lines: int
    length: int
    ld: int
    count: int
    dtype: Dtype
    turned: bool = False

    @property
    def source(self) -> tuple[int, int]:
        """Lines of the matrix, and their length."""
        return (self.length, self.lines) if self.turned else (self.lines, self.length)

    @property
    def stride(self) -> int:
        """Elements from a product to the next; 0 if they share the operand."""
        return self.lines * self.ld if self.count > 1 else 0

    @property
    def elements(self) -> int:
        """Elements of the copy, padding included."""
        return self.count * self.lines * self.ld

    @property
    def end(self) -> int:
        """Bytes of the workspace up to its end."""
        return self.offset + self.elements * ITEM_BYTES[self.dtype]


def aligned_copies(
    problem: GemmProblem, *, whole_vectors: bool = False, along_k: bool = False
) -> tuple[OperandCopy, ...]:
    """Copies of those operands whose addresses or rows are no multiples of 16 bytes.

    Args:
        problem: what they are operands of.
        whole_vectors: also copy those whose rows end elsewhere, though the next one begins there.
        along_k: also copy those whose contiguous neighbors do not lie along k, so that they do.
    """
    copies: list[OperandCopy] = []
    item, end = problem.item_bytes, 0
    for operand, transposed, sides, ld, stride in (
        ("A", problem.transa, (problem.m, problem.k), problem.lda, problem.strides[0]),
        ("B", problem.transb, (problem.k, problem.n), problem.ldb, problem.strides[1]),
    ):
        lines, length = sides[::-1] if transposed else sides
        apart = ld if lines > 1 else 0
        if problem.batch != 1:
            apart |= stride
        ends = length if whole_vectors else 0
        turned = along_k and transposed == (operand == "A")
        if not turned and not (problem.alignment | apart * item | ends * item) % ROW_ALIGNMENT:
            continue
        if turned:
            lines, length = length, lines
        ld = rounded_up(length, COPIED_ROW_ALIGNMENT // item)
        count = problem.batch if stride else 1
        copies.append(OperandCopy(operand, end, lines, length, ld, count, problem.dtype, turned))
        end = rounded_up(copies[-1].end, COPY_ALIGNMENT)
    return tuple(copies)


def workspace_bytes(copies: Iterable[OperandCopy]) -> int:
    """Bytes of the workspace up to the end of the last copy."""
    return max((each.end for each in copies), default=0)


def moved_bytes(problem: GemmProblem, copies: Iterable[OperandCopy]) -> int:
    """Bytes that making the copies reads and writes."""
    return sum(2 * each.count * each.lines * each.length for each in copies) * problem.item_bytes


def with_copies(signature: tuple[str, ...], copies: Iterable[OperandCopy]) -> tuple[str, ...]:
    """A signature with the addresses, leading dimensions and strides of copies in place of those of
    their operands."""
    found: dict[str, str] = {}
    for each in copies:
        name = each.operand.lower()
        found |= {
            each.operand: f"workspace + {each.offset}",
            f"ld{name}": str(each.ld),
            f"stride_{name}": str(each.stride),
        }
    return tuple(found.get(text, text) for text in signature)


_IN_WORKSPACE = re.compile(r"workspace(?: \+ (\d+))?")


def place_in_workspace(text: str) -> int | None:
    """How many bytes into the workspace the argument of a signature points, or None if it is no
    such address."""
    found = _IN_WORKSPACE.fullmatch(text)
    return None if found is None else int(found[1] or 0)


def rounded_up(number: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-number // unit) * unit
