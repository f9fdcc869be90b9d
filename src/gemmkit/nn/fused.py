"""Kernels of the layers' own, for what surrounds the products of arrays on a GPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gemmkit.gpu import MAX_GRID, MAX_GRID_YZ
from gemmkit.kernels.plan import Dim3, LaunchPlan, SourceFile, ceil_div
from gemmkit.loading import load
from gemmkit.nn.namespace import Array
from gemmkit.nn.products import recorded
from gemmkit.ops.arrays import WarmLibrary, library_of
from gemmkit.ops.operands import Operand, View
from gemmkit.ops.tracing import needs_operator

if TYPE_CHECKING:
    from gemmkit.devices.launcher import PreparedLaunch

Shape = tuple[int, ...]
Grid = tuple[Dim3, Dim3]
# From a kernel's inputs its name with template arguments, and the numbers that a launch gets; None
# if it does not take them.
Fit = Callable[[Sequence[Operand]], tuple[str, list[int]] | None]

# What a signature calls the arrays of a kernel, inputs and then outputs, and a launch their roles.
_UNSIGNED = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
_ARRAYS = {"A": "a", "B": "b", "C": "out", "bias": "bias"}

_BLOCK = 256
# Blocks along x; what is counted in 32 bits, the last block's threads past the end included.
_MOST_ROWS, _MOST_COUNTED = MAX_GRID[0], 2**31 - 2**16
# Threads for a row, as softmax.cu says, and most elements of it that each keeps, by fours.
_SOFTMAX_BLOCK, _MOST_QUADS = 128, 4
# Threads of a block, places side by side that one may have, images for which it finds them once.
_IM2COL_BLOCK, _WIDTHS, _IMAGES = 128, (4, 2, 1), 4
# Launches that a thread keeps prepared.
_MOST_KEPT = 1024


class _Ready(threading.local):
    """Launches that a thread has prepared, None where a kernel does not take the arrays."""

    def __init__(self) -> None:
        self.launches: dict[Hashable, tuple[PreparedLaunch, int] | None] = {}


_ready = _Ready()


def lstm_cell(gates: Array, c: Array) -> list[Array] | None:
    """h and c after a step, from its gates (batch, 4·hidden) and c (batch, hidden) before it.

    None if the arrays are not float32 on a GPU, in the rows that the kernel reads.
    """
    batch, hidden = c.shape

    def fit(operands: Sequence[Operand]) -> tuple[str, list[int]] | None:
        gates, c = operands
        fits = gates.dtype == c.dtype == "float32" and _tight(c) and gates.view.strides[1] == 1
        return ("lstm_cell", [batch, hidden, gates.view.strides[0]]) if fits else None

    return _fused("lstm_cell", [gates, c], [(batch, hidden)] * 2, _state_grid(batch, hidden), fit)


def gru_cell(p: Array, s: Array, h: Array) -> list[Array] | None:
    """h after a step, from both projections (batch, 3·hidden) and h (batch, hidden) before it.

    None as of `lstm_cell`.
    """
    batch, hidden = h.shape

    def fit(operands: Sequence[Operand]) -> tuple[str, list[int]] | None:
        p, s, h = operands
        fits = p.dtype == "float32" and _tight(s) and _tight(h) and p.view.strides[1] == 1
        return ("gru_cell", [batch, hidden, p.view.strides[0]]) if fits else None

    return _fused("gru_cell", [p, s, h], [(batch, hidden)], _state_grid(batch, hidden), fit)


def softmax(scores: Array, *, causal: bool) -> Array | None:
    """Softmax along the last axis of scores (…, queries, keys); zeros for rows of -inf alone.

    With `causal` query number i has weights for keys 0 to i only. None as of `lstm_cell`.
    """
    *rest, queries, keys = shape = tuple(scores.shape)
    grid = (math.prod(rest) * queries, 1, 1), (_SOFTMAX_BLOCK, 1, 1)

    def fit(operands: Sequence[Operand]) -> tuple[str, list[int]] | None:
        (rows,) = operands
        if rows.dtype != "float32" or not _tight(rows) or grid[0][0] > _MOST_ROWS:
            return None
        quads = ceil_div(keys, 4 * _SOFTMAX_BLOCK)
        if keys % 4 or rows.address % 16 or quads > _MOST_QUADS:
            quads = 0
        return f"softmax<{quads}>", [queries, keys, int(causal)]

    made = _fused("softmax", [scores], [shape], grid, fit, key=causal)
    return made[0] if made else None


def im2col(
    x: Array, taps: Shape, results: Shape, stride: Shape, dilation: Shape, padding: Shape
) -> Array | None:
    """Patches (images, channels · taps, places) of images (images, channels, height, width).

    Each of the other arguments has a number for rows and one for columns. None as of `lstm_cell`,
    but for elements of any type.
    """
    images, channels, height, width = x.shape
    depth, places = channels * taps[0] * taps[1], results[0] * results[1]
    side_by_side = next(each for each in _WIDTHS if places % each == 0)
    block = _block(places // side_by_side, _IM2COL_BLOCK)
    along_z = min(ceil_div(images, _IMAGES), MAX_GRID_YZ)
    grid = (ceil_div(places, block * side_by_side), min(depth, MAX_GRID_YZ), along_z)
    rest = (*taps, *results, *stride, *dilation, *padding)

    def fit(operands: Sequence[Operand]) -> tuple[str, list[int]] | None:
        image_pitch, channel_pitch, row, column = operands[0].view.strides
        if (row, column) != (width, 1) or max(depth, places, height * width) > _MOST_COUNTED:
            return None
        entry = f"im2col<{_UNSIGNED[operands[0].item_bytes]}, {side_by_side}>"
        return entry, [images, image_pitch, channel_pitch, depth, height, width, *rest]

    made = _fused("im2col", [x], [(images, depth, places)], (grid, (block, 1, 1)), fit, key=rest)
    return made[0] if made else None


def _fused(
    name: str,
    inputs: Sequence[Array],
    shapes: Sequence[Shape],
    grid: Grid,
    fit: Fit,
    *,
    key: Hashable = None,
) -> list[Array] | None:
    """New arrays that a kernel fills from others, on the current stream of their library."""
    if needs_operator(inputs):
        # A tracer sees the arrays' own operations, but no launch.
        return None
    library = cast(WarmLibrary, library_of(inputs[0], "an array"))
    empty = any(0 in shape for shape in shapes)
    if empty or not hasattr(library, "glance") or recorded(*inputs):
        return None
    seen = [library.glance(each) for each in inputs]
    low = reduce(or_, (address for address, _ in seen))
    call = name, key, low & 15, *(what for _, what in seen)
    if call not in _ready.launches:
        if len(_ready.launches) >= _MOST_KEPT:
            _ready.launches.clear()
        _ready.launches[call] = _prepared(name, library, inputs, len(shapes), grid, fit)
    found = _ready.launches[call]
    if found is None:
        return None
    launch, ordinal = found
    made = [library.new(inputs[0], shape, None) for shape in shapes]
    addresses = [address for address, _ in seen] + [address for _, address in made]
    launch.run(addresses, library.current_stream(ordinal))
    return [array for array, _ in made]


def _prepared(
    name: str,
    library: WarmLibrary,
    inputs: Sequence[Array],
    outputs: int,
    grid: Grid,
    fit: Fit,
) -> tuple[PreparedLaunch, int] | None:
    operands = [library.read(each, "an array") for each in inputs]
    ordinal, fitted = operands[0].device, fit(operands)
    if ordinal is None or fitted is None or any(each.device != ordinal for each in operands):
        return None
    entry, values = fitted
    load("gemmkit.devices.launcher", "gemmkit.ops.compiled")
    from gemmkit.devices.context import context_of
    from gemmkit.devices.launcher import PreparedLaunch
    from gemmkit.ops.compiled import binary_of

    arrays = list(_ARRAYS)[: len(operands) + outputs]
    plan = LaunchPlan(
        kernel=name,
        source=_source(name),
        entry=entry,
        grid=grid[0],
        block=grid[1],
        signature=(*arrays, *map(str, values)),
    )
    context = context_of(ordinal)
    places = {array: (_ARRAYS[array], 0) for array in arrays}
    launch = PreparedLaunch(context, plan, binary_of(plan, context.spec), {}, places)
    return launch, ordinal


@cache
def _source(name: str) -> SourceFile:
    path = Path(__file__).with_name(f"{name}.cu")
    return SourceFile(path.read_text("utf-8"), path.name)


def _state_grid(batch: int, hidden: int) -> Grid:
    """A thread for each element of a state."""
    block = _block(hidden)
    return (ceil_div(hidden, block), min(batch, MAX_GRID_YZ), 1), (block, 1, 1)


def _block(elements: int, most: int = _BLOCK) -> int:
    """Threads of a block for as many elements: whole warps."""
    return min(most, 32 * ceil_div(elements, 32))


def _tight(operand: Operand) -> bool:
    return operand.view == View.tight(operand.view.shape)
