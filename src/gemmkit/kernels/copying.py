"""How `copy_operands` is launched: before a kernel that reads copies of its operands."""

from __future__ import annotations

from typing import NamedTuple

from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import source_text
from gemmkit.kernels.operand_copies import OperandCopy, workspace_bytes
from gemmkit.kernels.plan import LaunchPlan, Signature, SourceFile, ceil_div
from gemmkit.kernels.policy import STANDARD
from gemmkit.problem import GemmProblem

_NAME = "copy_operands"
# Of copy_operands.cu: bytes that a warp copies at a time, and warps of a block.
SEGMENT_BYTES, WARPS = 512, 8
# Sides of the tiles in which it turns a matrix.
SIDE = 32
# Blocks that an SM is given for each operand, each of which goes on to further lines.
BLOCKS_PER_SM = 16
MOST_BLOCKS_Y = 65_535

# Types of elements that are only copied, by their size in bytes; larger ones are several of these.
_ELEMENTS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}
_LARGEST = 4


def copying(
    problem: GemmProblem, copies: tuple[OperandCopy, ...], gpu: GpuSpec
) -> LaunchPlan | None:
    """The launch that makes copies, all in one grid; None where there are none."""
    if not copies:
        return None
    item = problem.item_bytes
    # Elements that are copied, of one of a matrix.
    units = max(1, item // _LARGEST)
    products = min(max(each.count for each in copies), MOST_BLOCKS_Y)
    most = gpu.sm_count * BLOCKS_PER_SM // products
    cuts = {each.operand: _Cut.of(each, item, most) for each in copies}
    by_operand = {each.operand: each for each in copies}
    turned = ", ".join(
        str(name in by_operand and by_operand[name].turned).lower() for name in ("A", "B")
    )
    return LaunchPlan(
        kernel=_NAME,
        source=SourceFile(source_text(_NAME), f"{_NAME}.cu", options=(STANDARD,)),
        entry=f"{_NAME}<{_ELEMENTS[item // units]}, {turned}>",
        grid=(sum(each.segments * each.groups for each in cuts.values()), products, 1),
        block=(WARP_SIZE, WARPS, 1),
        signature=(
            *_arguments("A", ("lda", "stride_a"), by_operand.get("A"), cuts.get("A"), units),
            *_arguments("B", ("ldb", "stride_b"), by_operand.get("B"), cuts.get("B"), units),
        ),
        workspace_bytes=workspace_bytes(copies),
        purpose="along k, as tensor cores read it"
        if any(each.turned for each in copies)
        else "into aligned rows",
    )


class _Cut(NamedTuple):
    """Segments of a line, and groups of lines, of which each block has one."""

    segments: int
    groups: int

    @classmethod
    def of(cls, copy: OperandCopy, item_bytes: int, most: int) -> _Cut:
        """That of so many blocks at most, but for lines that are longer."""
        if copy.turned:
            segments = ceil_div(copy.lines, SIDE)
            return cls(segments, min(ceil_div(copy.length, SIDE), max(1, most // segments)))
        segments = ceil_div(copy.length * item_bytes, SEGMENT_BYTES)
        return cls(segments, min(ceil_div(copy.lines, WARPS), max(1, most // segments)))


def _arguments(
    name: str, pitches: Signature, copy: OperandCopy | None, cut: _Cut | None, units: int
) -> Signature:
    if copy is None or cut is None:
        return ("0",) * (len(pitches) + 8)
    apart = pitches if units == 1 else tuple(f"{units} * {pitch}" for pitch in pitches)
    lines, length = copy.source
    sizes = (units * copy.ld, lines, units * length, copy.count, *cut)
    return (name, *apart, copy.address, *map(str, sizes))
