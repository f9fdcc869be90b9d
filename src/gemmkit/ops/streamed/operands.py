"""What a request means for streaming: its arrays as stacks of matrices, and its `StreamProblem`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import FLOAT_BYTES, ITEM_BYTES
from gemmkit.float8_products import CHUNK
from gemmkit.ops.arrays import bits
from gemmkit.ops.operands import Operand
from gemmkit.ops.placement import SCALE_ROLES, Terms
from gemmkit.ops.request import Request
from gemmkit.ops.shapes import Shape
from gemmkit.ops.streamed.host_matrices import HostStack, merged, widened
from gemmkit.ops.streamed.sizes import StreamProblem
from gemmkit.scales import UNSCALED

# The matrices that tiles of C have a part of each.
OF_TILES = ("c", "residual", "out", "auxiliary")


@dataclass(frozen=True, slots=True)
class Streamed:
    """A product's host matrices by role (a, b, out, and c, residual, auxiliary where there are),
    and what is copied whole: bias and scales, as arrays of one, two or three dimensions."""

    problem: StreamProblem
    terms: Terms
    stacks: Mapping[str, HostStack]
    bias: NDArray[Any] | None
    scales: Mapping[str, NDArray[Any]]

    def close(self) -> None:
        """Close the files of its matrices."""
        for stack in self.stacks.values():
            stack.close()

    def whole(self, wide: bool) -> dict[str, NDArray[Any]]:
        """What is copied whole, contiguous; of `wide` accumulators, a bias of 16 bits in fp32."""
        found = dict(self.scales)
        if self.bias is not None:
            bias = np.ascontiguousarray(self.bias, self.bias.dtype.newbyteorder("="))
            found["bias"] = widened(bias, self.terms.out_dtype) if wide else bias
        return found


def streamed(request: Request, out: Operand) -> Streamed:
    """A request's matrices as they are streamed; `out` is the operand that is written."""
    shape, terms = request.shape, request.terms
    arrays = _stacked(request, out)
    if not terms.alpha:
        arrays["a"], arrays["b"] = arrays["a"][..., :0], arrays["b"][..., :0, :]
    if not arrays["a"].shape[-1]:
        terms = replace(terms, scales=UNSCALED)
    scales = {
        role: _scales(bits(request.operands[role]), shape)
        for role in SCALE_ROLES
        if role in request.operands and terms.scales
    }
    folded = _folded(arrays, terms, scales)
    if folded is not None:
        arrays = folded
    stacks = {
        role: HostStack(
            array,
            terms.dtype if role in ("a", "b") else terms.out_dtype,
            by_rows=role in OF_TILES,
            writable=role in ("out", "auxiliary"),
        )
        for role, array in arrays.items()
    }
    bias = bits(request.operands["bias"]) if "bias" in request.operands else None
    *stack, m, n = arrays["out"].shape
    k = arrays["a"].shape[-1]
    fixed = 0 if bias is None else bias.size * max(bias.itemsize, FLOAT_BYTES)
    fixed += sum(each.nbytes for each in scales.values())
    lines = max(terms.scales.a.lines, terms.scales.b.lines, 1)
    problem = StreamProblem(
        m=m,
        n=n,
        k=k,
        batch=prod(stack),
        item=ITEM_BYTES[terms.dtype],
        out_item=ITEM_BYTES[terms.out_dtype],
        columns_a=stacks["a"].columns,
        columns_b=stacks["b"].columns,
        shared_a=stacks["a"].shared,
        shared_b=stacks["b"].shared,
        reads_c="c" in arrays,
        residual="residual" in arrays,
        auxiliary="auxiliary" in arrays,
        # Each begins at a multiple of 256 bytes.
        fixed_bytes=fixed + 256 * (len(scales) + 1) if fixed else 0,
        k_unit=CHUNK if terms.scales.of_chunks else 1,
        line_unit=lines,
    )
    return Streamed(problem, terms, stacks, bias, scales)


def _stacked(request: Request, out: Operand) -> dict[str, NDArray[Any]]:
    """The matrices by role, each broadcast to the stack of the result, with both sides."""
    shape = request.shape
    a, b = (bits(request.operands[role]) for role in "ab")
    a = a[np.newaxis] if shape.vector_a else a
    b = b[:, np.newaxis] if shape.vector_b else b
    found = {
        "a": np.broadcast_to(a, (*shape.stack, shape.m, shape.k)),
        "b": np.broadcast_to(b, (*shape.stack, shape.k, shape.n)),
        "out": _sided(bits(out), shape),
    }
    for role in ("c", "residual", "auxiliary"):
        if role in request.operands:
            array = bits(request.operands[role])
            if role != "auxiliary":
                array = np.broadcast_to(array, shape.result)
            found[role] = _sided(array, shape)
    return found


def _sided(array: NDArray[Any], shape: Shape) -> NDArray[Any]:
    array = array[..., np.newaxis] if shape.vector_b else array
    return array[..., np.newaxis, :] if shape.vector_a else array


def _scales(array: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """Scales as a stack of matrices, contiguous: one for all products, or one for each."""
    array = array.reshape((1,) * max(2 - array.ndim, 0) + array.shape)
    one = prod(array.shape[:-2]) == 1
    stack = () if one else shape.stack
    own = array.reshape(array.shape[-2:]) if one else array
    found = np.broadcast_to(own, (*stack, *array.shape[-2:]))
    return np.ascontiguousarray(found).reshape(prod(stack), *array.shape[-2:])


def _folded(
    arrays: dict[str, NDArray[Any]], terms: Terms, scales: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]] | None:
    """Products that share B as one of more rows, where all else lies row on row; else None."""
    stack = arrays["out"].shape[:-2]
    steps = arrays["b"].strides[: len(stack)]
    shared = all(step == 0 or size == 1 for size, step in zip(stack, steps, strict=True))
    if prod(stack) == 1 or not shared or terms.epilogue.bias == "row" or scales:
        return None
    taller = {}
    for role, array in arrays.items():
        if role == "b":
            taller[role] = array[(0,) * len(stack)]
            continue
        rows = merged(array, 1)
        if rows is None:
            return None
        taller[role] = rows
    return taller
