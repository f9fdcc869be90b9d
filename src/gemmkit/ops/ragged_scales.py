"""Scales of 8-bit operands in ragged products: which kinds they are, and how they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemmkit.errors import UsageError
from gemmkit.ops.operands import Operand, View
from gemmkit.ops.scale_shapes import SCALES, shapes_of_scales
from gemmkit.scales import BLOCKS, NONE, TENSOR, UNSCALED, ScaleKind, Scales


@dataclass(frozen=True, slots=True)
class RaggedScales:
    """The scales of A or B: elements from those of a line, or of a block of lines, to the next
    (`ld`), from a chunk of k to the next (`step`), and from a group to the next (`stride`); 0 where
    these share them.

    Those of A have no stride unless each group has one of its own.
    """

    ld: int
    step: int
    stride: int

    @classmethod
    def of(cls, role: str, kind: ScaleKind, view: View) -> RaggedScales:
        """Those that lie as `in_groups` has them."""
        stride, down, across = (
            0 if size == 1 else step for size, step in zip(view.shape, view.strides, strict=True)
        )
        of_lines, of_chunks = (down, across) if role == "scale_a" else (across, down)
        return cls(
            of_lines if kind.lines else 0,
            of_chunks if kind.of_chunks else 0,
            stride,
        )


def in_groups(operand: Operand) -> Operand:
    """Scales as a stack of matrices: one for each group, or one for all."""
    view, missing = operand.view, 3 - len(operand.view.shape)
    return replace(operand, view=View((1,) * missing + view.shape, (0,) * missing + view.strides))


def read_ragged_scales(
    operands: Mapping[str, Operand], rows: int, n: int, k: int, groups: int
) -> Scales:
    """How A and B are scaled, by the shapes of those scales that there are.

    Raises:
        UsageError: one has another shape than scales can have.
    """
    found = dict.fromkeys(SCALES, NONE)
    for role, lines in zip(SCALES, (rows, n), strict=True):
        if role not in operands:
            continue
        shape = operands[role].view.shape
        stack, *matrix = (1,) * (3 - len(shape)) + shape
        allowed = shapes_of_scales(role, lines, k)
        if role == "scale_a":
            # Blocks of rows belong to several groups.
            allowed.pop(BLOCKS)
        kind = next((each for each, own in allowed.items() if own == tuple(matrix)), None)
        # Rows are of one A, and only one scale for all elements may be each group's own.
        of_groups = role == "scale_b" or kind == TENSOR
        if kind is None or stack not in ((1, groups) if of_groups else (1,)):
            told = ", ".join(f"{own} ({each.name})" for each, own in allowed.items())
            own = ", with the number of groups before it" if role == "scale_b" else ""
            own = own or f", or {(groups, 1, 1)} for one of each group"
            raise UsageError(f"{role} has the shape {shape}; use one of {told}{own}")
        found[role] = kind
    return Scales(*found.values()) if any(each != NONE for each in found.values()) else UNSCALED
