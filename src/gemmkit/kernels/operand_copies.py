"""Copies of A and B, for kernels whose loads need other rows than they have.

A plan whose kernel reads such copies has a launch before it, of `copy_operands`, that leaves them
in the workspace. Those of prepared operands are in memory of their own, where they stay.
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
# A sector of the cache, in bytes.
SECTOR = 32

# The arguments that are addresses of memory for copies; prepared operands have their own.
WORKSPACE, PREPARED = "workspace", ("prepared_a", "prepared_b")


@dataclass(frozen=True, slots=True)
class OperandCopy:
    """A copy of an operand, `offset` bytes into the workspace or another `memory`: `count` products
    of `lines` lines each, `length` elements of `dtype` long and `ld` apart. The lines of a `turned`
    copy are made of one element of each of the matrix's own."""

    operand: str
    offset: int
    lines: int
    length: int
    ld: int
    count: int
    dtype: Dtype
    turned: bool = False
    memory: str = WORKSPACE

    @property
    def is_prepared(self) -> bool:
        """Whether it is that of a prepared operand, which launches only read."""
        return self.memory != WORKSPACE

    @property
    def address(self) -> str:
        """Where it begins, as signatures have it."""
        return f"{self.memory} + {self.offset}"

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
        """Bytes of its memory up to its end."""
        return self.offset + self.elements * ITEM_BYTES[self.dtype]


def aligned_copies(
    problem: GemmProblem,
    *,
    whole_vectors: bool = False,
    along_k: str = "",
) -> tuple[OperandCopy, ...]:
    """Copies of those operands whose addresses or rows are no multiples of 16 bytes.

    Args:
        problem: what they are operands of.
        whole_vectors: also copy those whose rows end elsewhere, though the next one begins there.
        along_k: of these, such as "AB", also copy those whose contiguous neighbors do not lie along
            k, so that they do.
    """
    copies: list[OperandCopy] = []
    item, ends = problem.item_bytes, dict.fromkeys((WORKSPACE, *PREPARED), 0)
    for operand, transposed, sides, ld, stride in (
        ("A", problem.transa, (problem.m, problem.k), problem.lda, problem.strides[0]),
        ("B", problem.transb, (problem.k, problem.n), problem.ldb, problem.strides[1]),
    ):
        lines, length = sides[::-1] if transposed else sides
        apart = ld if lines > 1 else 0
        if problem.batch != 1:
            apart |= stride
        rows_end = length if whole_vectors else 0
        turned = operand in along_k and transposed == (operand == "A")
        loads = not (problem.alignment | rows_end * item) % ROW_ALIGNMENT
        if not turned and loads and not apart * item % ROW_ALIGNMENT:
            continue
        if turned:
            lines, length = length, lines
        ld = rounded_up(length, COPIED_ROW_ALIGNMENT // item)
        count = problem.batch if stride else 1
        memory = memory_of(problem, operand)
        copies.append(
            OperandCopy(
                *(operand, ends[memory], lines, length, ld, count),
                *(problem.dtype, turned, memory),
            )
        )
        ends[memory] = rounded_up(copies[-1].end, COPY_ALIGNMENT)
    return tuple(copies)


def memory_of(problem: GemmProblem, operand: str) -> str:
    """The memory that a copy of A or of B is in."""
    name = operand.lower()
    return f"prepared_{name}" if name in problem.prepared else WORKSPACE


def made_anew(copies: Iterable[OperandCopy]) -> tuple[OperandCopy, ...]:
    """Those that each launch makes: not of prepared operands."""
    return tuple(each for each in copies if not each.is_prepared)


def workspace_bytes(copies: Iterable[OperandCopy]) -> int:
    """Bytes of the workspace up to the end of the last copy there."""
    return max((each.end for each in made_anew(copies)), default=0)


def moved_bytes(problem: GemmProblem, copies: Iterable[OperandCopy]) -> int:
    """Bytes that making the copies reads and writes, but for those of prepared operands."""
    elements = sum(each.count * each.lines * each.length for each in made_anew(copies))
    return 2 * elements * problem.item_bytes


def with_copies(signature: tuple[str, ...], copies: Iterable[OperandCopy]) -> tuple[str, ...]:
    """A signature with the addresses, leading dimensions and strides of copies in place of those of
    their operands."""
    found: dict[str, str] = {}
    for each in copies:
        name = each.operand.lower()
        found |= {
            each.operand: each.address,
            f"ld{name}": str(each.ld),
            f"stride_{name}": str(each.stride),
        }
    return tuple(found.get(text, text) for text in signature)


_IN_MEMORY = re.compile(rf"({'|'.join((WORKSPACE, *PREPARED))})(?: \+ (\d+))?")


def place_in_memory(text: str) -> tuple[str, int] | None:
    """Into which memory for copies the argument of a signature points, and how many bytes into it;
    None if it is no such address."""
    found = _IN_MEMORY.fullmatch(text)
    return None if found is None else (found[1], int(found[2] or 0))


def rounded_up(number: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-number // unit) * unit
