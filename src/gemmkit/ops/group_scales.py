"""Scales of 8-bit operands in groups: which kinds they are, and how they lie for a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from numpy.typing import ArrayLike

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.errors import UsageError
from gemmkit.kernels.group_table import SCALES, Pitches
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.scale_shapes import shapes_of_scales, usual_shape
from gemmkit.scales import NONE, UNSCALED, ScaleKind, Scales

Shapes = Sequence[tuple[int, ...]]


def scales_of_groups(shapes: Mapping[str, Shapes], sizes: Sequence[tuple[int, int, int]]) -> Scales:
    """How A and B of products are scaled: each operand of all products in one way.

    Args:
        shapes: of the scales of each product, by role, of those that there are.
        sizes: m, n and k of each product.

    Raises:
        UsageError: one has another shape than scales can have, or no kind goes with all.
    """
    found = dict.fromkeys(SCALES, NONE)
    for role, each in shapes.items():
        found[role] = _kind(role, each, sizes)
    return Scales(*found.values()) if any(each != NONE for each in found.values()) else UNSCALED


def _kind(role: str, shapes: Shapes, sizes: Sequence[tuple[int, int, int]]) -> ScaleKind:
    left: dict[ScaleKind, None] | None = None
    for place, (own, (m, n, k)) in enumerate(zip(shapes, sizes, strict=True)):
        allowed = shapes_of_scales(role, m if role == "scale_a" else n, k)
        fits = dict.fromkeys(kind for kind, wanted in allowed.items() if wanted == usual_shape(own))
        if len(own) > 2 or not fits:
            told = ", ".join(f"{wanted} ({each.name})" for each, wanted in allowed.items())
            raise UsageError(f"{role}[{place}] has the shape {own}; use one of {told}")
        both = fits if left is None else {kind: None for kind in left if kind in fits}
        if not both:
            names = " or ".join(each.name for each in left or ())
            raise UsageError(
                f"{role}[{place}] has the shape {own}, and those before it are scales of "
                f"{names}: the products of a launch are scaled in one way"
            )
        left = both
    return next(iter(left or {}), NONE)


def pitches_of_scales(extents: Mapping[str, Extents], scales: Scales) -> Pitches:
    """Elements from the scales of a line, or of a block of lines, to those of the next, and from
    those of a chunk of k to those of the next, by the names in a table."""
    return dict(_pitches(extents, scales))


def _pitches(extents: Mapping[str, Extents], scales: Scales) -> Iterator[tuple[str, ArrayLike]]:
    for role, kind in zip(SCALES, (scales.a, scales.b), strict=True):
        if role not in extents or kind == NONE:
            continue
        down, across = extents[role].places.T[4:] // FLOAT_BYTES
        of_lines, of_chunks = (down, across) if role == "scale_a" else (across, down)
        yield f"{role}_ld", of_lines * bool(kind.lines)
        yield f"{role}_step", of_chunks * kind.of_chunks
