"""Copies of A and B in the workspace, for kernels whose loads need other rows than the matrices have.

A plan whose kernel reads such copies has a launch before it, of `copy_operands`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import source_text
from gemmkit.kernels.plan import LaunchPlan, Signature, SourceFile, ceil_div
from gemmkit.kernels.policy import STANDARD
from gemmkit.problem import GemmProblem

# What TMA needs rows to begin at multiples of, in bytes; and what copies, and their rows, begin at:
# TMA is faster where a box's lines are those of the cache.
ROW_ALIGNMENT, COPY_ALIGNMENT, COPIED_ROW_ALIGNMENT = 16, 256, 128

_NAME = "copy_operands"
# Of copy_operands.cu: bytes that a warp copies at a time, and warps of a block.
SEGMENT_BYTES, WARPS = 512, 8
# Blocks that an SM is given for each operand, each of which goes on to further lines.
BLOCKS_PER_SM = 16
MOST_BLOCKS_Y = 65_535

# Types of elements that are only copied, by their size in bytes.
_ELEMENTS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}


@dataclass(frozen=True, slots=True)
class OperandCopy:
    """A copy of an operand, `offset` bytes into the workspace: `count` products of `lines` lines
    each, `length` elements long and `ld` apart."""

    operand: str
    offset: int
    lines: int
    length: int
    ld: int
    count: int

    @property
    def stride(self) -> int:
        """Elements from a product to the next; 0 if they share the operand."""
        return self.lines * self.ld if self.count > 1 else 0

    @property
    def elements(self) -> int:
        """Elements of the copy, padding included."""
        return self.count * self.lines * self.ld


def aligned_copies(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """Copies of those operands whose addresses or rows are no multiples of 16 bytes."""
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
        if problem.alignment % ROW_ALIGNMENT == 0 and apart * item % ROW_ALIGNMENT == 0:
            continue
        unit = COPIED_ROW_ALIGNMENT // item
        count = problem.batch if stride else 1
        copy = OperandCopy(operand, end, lines, length, ceil_div(length, unit) * unit, count)
        copies.append(copy)
        end += ceil_div(copy.elements * item, COPY_ALIGNMENT) * COPY_ALIGNMENT
    return tuple(copies)


def workspace_bytes(problem: GemmProblem, copies: Iterable[OperandCopy]) -> int:
    """Bytes of the workspace up to the end of the last copy."""
    return max((each.offset + each.elements * problem.item_bytes for each in copies), default=0)


def moved_bytes(problem: GemmProblem, copies: Iterable[OperandCopy]) -> int:
    """Bytes that making the copies reads and writes."""
    return sum(2 * each.count * each.lines * each.length for each in copies) * problem.item_bytes


def copying(problem: GemmProblem, copies: tuple[OperandCopy, ...], gpu: GpuSpec) -> LaunchPlan:
    """The launch that makes copies, all in one grid."""
    item = problem.item_bytes
    products = min(max(each.count for each in copies), MOST_BLOCKS_Y)
    most = gpu.sm_count * BLOCKS_PER_SM // products
    cuts = {each.operand: _Cut.of(each, item, most) for each in copies}
    by_operand = {each.operand: each for each in copies}
    return LaunchPlan(
        kernel=_NAME,
        source=SourceFile(source_text(_NAME), f"{_NAME}.cu", options=(STANDARD,)),
        entry=f"{_NAME}<{_ELEMENTS[item]}>",
        grid=(sum(each.segments * each.groups for each in cuts.values()), products, 1),
        block=(WARP_SIZE, WARPS, 1),
        signature=(
            *_arguments("A", ("lda", "stride_a"), by_operand.get("A"), cuts.get("A")),
            *_arguments("B", ("ldb", "stride_b"), by_operand.get("B"), cuts.get("B")),
        ),
        workspace_bytes=workspace_bytes(problem, copies),
    )


class _Cut(NamedTuple):
    """Segments of a line, and groups of lines, of which each block has one."""

    segments: int
    groups: int

    @classmethod
    def of(cls, copy: OperandCopy, item_bytes: int, most: int) -> _Cut:
        """That of so many blocks at most, but for lines that are longer."""
        segments = ceil_div(copy.length * item_bytes, SEGMENT_BYTES)
        return cls(segments, min(ceil_div(copy.lines, WARPS), max(1, most // segments)))


def _arguments(
    name: str, pitches: Signature, copy: OperandCopy | None, cut: _Cut | None
) -> Signature:
    if copy is None or cut is None:
        return ("0",) * (len(pitches) + 8)
    sizes = (copy.ld, copy.lines, copy.length, copy.count, *cut)
    return (name, *pitches, f"workspace + {copy.offset}", *map(str, sizes))


_IN_WORKSPACE = re.compile(r"workspace(?: \+ (\d+))?")


def place_in_workspace(text: str) -> int | None:
    """How many bytes into the workspace the argument of a signature points, or None if it is no
    such address."""
    found = _IN_WORKSPACE.fullmatch(text)
    return None if found is None else int(found[1] or 0)
