"""Convolution by products: one with the matrix of patches, or one for each tap of the filter."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

from gemmkit.epilogue import Activation, Custom
from gemmkit.errors import UsageError, unknown_name
from gemmkit.nn import fused
from gemmkit.nn.namespace import (
    Array,
    Namespace,
    expect_one_type,
    expect_shape,
    shape_of,
    shared_namespace,
)
from gemmkit.nn.products import multiply, recorded
from gemmkit.ops.tracing import recordable

Method = Literal["im2col", "implicit"]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """How a filter of `taps` rows and columns goes over padded images; each a pair of the two.

    `results` are the places where it stops.
    """

    taps: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    results: Pair

    @classmethod
    def of(cls, image: Pair, taps: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Window:
        """The window over images of these sizes.

        Raises:
            UsageError: the filter is larger than the padded image, or has no taps.
        """
        if 0 in taps:
            raise UsageError(f"a filter of {taps[0]}x{taps[1]} elements has no taps")
        reach = tuple(step * (count - 1) + 1 for step, count in zip(dilation, taps, strict=True))
        room = tuple(size + 2 * more for size, more in zip(image, padding, strict=True))
        if not (reach[0] <= room[0] and reach[1] <= room[1]):
            raise UsageError(
                f"a filter that reaches over {reach[0]}x{reach[1]} elements is larger than the "
                f"padded image, {room[0]}x{room[1]}"
            )
        height, width = ((room[i] - reach[i]) // stride[i] + 1 for i in (0, 1))
        return cls(taps, stride, padding, dilation, (height, width))

    @property
    def pointwise(self) -> bool:
        """Whether the patches are the images themselves."""
        return self.taps == self.stride == (1, 1) and self.padding == (0, 0)


@recordable()
def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    method: Method = "im2col",
    activation: Activation | Custom | None = "none",
    precision: str | None = None,
    device: Any = None,
) -> Array:
    """Cross-correlation, activation(x ∗ weight + bias), as PyTorch's `conv2d`.

    `method` "im2col" writes the patches as a matrix, which takes as many times the memory of x as
    the filter has taps, and computes all images as one batch of products. "implicit" makes no such
    matrix: it adds one product for each tap of the filter, which reads the padded images in place,
    shifted by the position of the tap. If the stride is not 1, rows and columns are first sorted by
    their remainders, so that the elements of a tap are adjacent. Rows of the result are computed
    together with the padding, which is removed at the end. A 1×1 filter with stride 1 is one
    product with x itself in both. Bias and activation are fused in both.

    Each group of channels is a batch. Work is launched on the caller's current stream.

    Args:
        x: (images, channels, height, width).
        weight: (filters, channels / groups, rows, columns).
        bias: (filters), or None.
        stride: elements from one position of the filter to the next, vertically and horizontally.
        padding: rows and columns of zeros on each side.
        dilation: elements from one tap of the filter to the next.
        groups: number of groups of channels, each with its own filters.
        method: "im2col" or "implicit".
        activation: a name, that of an `Epilogue.custom`, or None.
        precision: as for `gemmkit.matmul`.
        device: as for `gemmkit.matmul`.

    Returns:
        (images, filters, rows, columns), of x's kind and on its device.

    Raises:
        UsageError: shapes, types or numbers do not fit.
    """
    xp = shared_namespace(x=x, weight=weight, bias=bias)
    if method not in get_args(Method):
        raise UsageError(unknown_name("method", method, get_args(Method)))
    _, channels, *image = shape_of(x, "x", rank=4)
    filters, _, *taps = shape_of(weight, "weight", rank=4)
    if not isinstance(groups, int) or groups < 1 or channels % groups or filters % groups:
        raise UsageError(
            f"groups = {groups} must divide the {channels} channels and the {filters} filters"
        )
    expect_shape(weight, "weight", (filters, channels // groups, *taps))
    if bias is not None:
        expect_shape(bias, "bias", (filters,))
    if not recorded(x, weight, bias):
        expect_one_type(x=x, weight=weight, bias=bias)
    window = Window.of(
        _sizes(image),
        _sizes(taps),
        _pair("stride", stride, 1),
        _pair("padding", padding, 0),
        _pair("dilation", dilation, 1),
    )
    how = {"precision": precision, "device": device}
    compute = _im2col if method == "im2col" or window.pointwise else _implicit
    found = []
    for group in range(groups):
        inputs, outputs = (
            slice(group * size // groups, (group + 1) * size // groups)
            for size in (channels, filters)
        )
        finish = {
            "row_bias": None if bias is None else bias[outputs],
            "activation": activation,
        }
        found.append(compute(xp, x[:, inputs], weight[outputs], window, finish, how))
    return found[0] if groups == 1 else xp.concatenate(found, 1)


def _im2col(
    xp: Namespace,
    x: Array,
    weight: Array,
    window: Window,
    finish: dict[str, Any],
    how: dict[str, Any],
) -> Array:
    """The product of the filters and the matrix of patches, one of a batch for each image."""
    images, channels = x.shape[:2]
    (rows, columns), (height, width) = window.taps, window.results
    depth = channels * rows * columns
    patches = x if window.pointwise else _patches(xp, x, window)
    result = multiply(
        weight.reshape((weight.shape[0], depth)),
        patches.reshape((images, depth, height * width)),
        **how,
        **finish,
    )
    return result.reshape((images, weight.shape[0], height, width))


def _patches(xp: Namespace, x: Array, window: Window) -> Array:
    """A row for each channel and tap, a column for each place, of every image."""
    w = window
    made = fused.im2col(x, w.taps, w.results, w.stride, w.dilation, w.padding)
    if made is not None:
        return made
    (rows, columns), (height, width) = w.taps, w.results
    (down, across), (dy, dx) = w.stride, w.dilation
    padded = xp.pad(x, *((more, more) for more in w.padding))
    # What a tap sees is a view; stacked, in one copy, they are the rows.
    seen = [
        padded[
            :,
            :,
            row * dy : row * dy + (height - 1) * down + 1 : down,
            column * dx : column * dx + (width - 1) * across + 1 : across,
        ]
        for row, column in product(range(rows), range(columns))
    ]
    return xp.stack(seen, 2)


def _implicit(
    xp: Namespace,
    x: Array,
    weight: Array,
    window: Window,
    finish: dict[str, Any],
    how: dict[str, Any],
) -> Array:
    """The sum over taps of the filters' elements there times the shifted images."""
    images, channels, *image = x.shape
    (rows, columns), (height, width) = window.taps, window.results
    (down, across), (dy, dx) = window.stride, window.dilation
    # The last row gives every shifted image its whole length.
    room = [size + 2 * more for size, more in zip(image, window.padding, strict=True)]
    below, right = -room[0] % down + down, -room[1] % across
    padded = xp.pad(
        x,
        (window.padding[0], window.padding[0] + below),
        (window.padding[1], window.padding[1] + right),
    )
    lines, pitch = (room[0] + below) // down, (room[1] + right) // across

    made: dict[Pair, Array] = {}

    def subsampled(first_row: int, first_column: int) -> Array:
        """Every stride-th row and column, each image's as one line; made once."""
        if (first_row, first_column) not in made:
            every = padded[:, :, first_row::down, first_column::across]
            lined = xp.contiguous(every).reshape((images, channels, lines * pitch))
            made[first_row, first_column] = lined
        return made[first_row, first_column]

    matrices = xp.contiguous(xp.moveaxis(weight, (2, 3), (0, 1)))
    total: Array = None
    for row, column in product(range(rows), range(columns)):
        (shift_down, first_row), (shift_across, first_column) = (
            divmod(row * dy, down),
            divmod(column * dx, across),
        )
        start = shift_down * pitch + shift_across
        last = (row, column) == (rows - 1, columns - 1)
        total = multiply(
            matrices[row, column],
            subsampled(first_row, first_column)[:, :, start : start + height * pitch],
            total=total,
            writable=xp.writable,
            **how,
            **(finish if last else {}),
        )
    wide = total.reshape((images, weight.shape[0], height, pitch))
    return xp.contiguous(wide[..., :width])


def _sizes(sizes: list[int]) -> Pair:
    return sizes[0], sizes[1]


def _pair(name: str, given: int | Pair, least: int) -> Pair:
    """A number for rows and one for columns.

    Raises:
        UsageError: it is not a number or pair of numbers, or too small.
    """
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    if len(pair) != 2 or not all(isinstance(each, int) and each >= least for each in pair):
        raise UsageError(f"{name} = {given} must be a number or a pair of them, {least} or more")
    return pair[0], pair[1]
