"""Products of arrays in host memory: brought to a device, computed there, and fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.device import Buffer
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.groups import Groups
from gemmkit.ops.arrays import bits
from gemmkit.ops.carriers import Carrier
from gemmkit.ops.compiled import step_numbers, step_places
from gemmkit.ops.groups import GroupsRequest
from gemmkit.ops.operands import WIDEST_ACCESS, Operand, View
from gemmkit.ops.placement import SCALE_ROLES, Copied, Step, Terms, place
from gemmkit.ops.request import Request
from gemmkit.ops.shapes import Shape
from gemmkit.problem import GemmProblem
from gemmkit.storage import placements

Raw = NDArray[Any]


def multiply(request: Request, carrier: Carrier) -> Operand:
    """The product of host arrays, in `out` or in a new array.

    Raises:
        GemmkitError: as compiling and launching raise.
    """
    shape, terms = request.shape, request.terms
    if 0 in shape.result:
        return result_of(request)
    raw = {role: _collapsed(role, bits(each)) for role, each in request.operands.items()}
    least = max(terms.item_bytes("a"), terms.item_bytes("out"))
    terms = replace(terms, alignment=carrier.alignment or least)
    written = {"out": result_of(request)}
    if "auxiliary" in request.operands:
        written["auxiliary"] = request.operands["auxiliary"]
    arrays, steps = _placed(shape, terms, raw, carrier)
    buffers = {role: carrier.upload(array) for role, array in arrays.items()}
    for role, operand in written.items():
        if role == "out" and "c" in raw:
            c = np.broadcast_to(raw["c"], shape.result)
            buffers[role] = carrier.upload(_native(c))
        else:
            buffers[role] = carrier.empty(_nbytes(operand))
    for step in steps:
        plan, binary = carrier.chosen(step.problem)
        addresses = {
            name: buffers[role].address + offset
            for name, (role, offset) in step_places(step).items()
        }
        carrier.launch(plan, binary, step_numbers(step) | addresses)
    for role, operand in written.items():
        if not operand.view.empty:
            _store(carrier, buffers[role], bits(operand))
    return written["out"]


def multiply_groups(groups: GroupsRequest, carrier: Carrier) -> list[Operand]:
    """The products of host arrays of different shapes, in `out` or in new arrays.

    Raises:
        GemmkitError: as compiling and launching raise.
    """
    # The operands of an empty result are not copied.
    depths = groups.k * ((groups.m > 0) & (groups.n > 0))
    terms = groups.terms
    least = max(terms.item_bytes("a"), terms.item_bytes("out"))
    problem = GemmProblem.of_groups(
        Groups.of(groups.m, groups.n, depths),
        alpha=terms.alpha,
        beta=terms.beta,
        epilogue=terms.epilogue,
        dtype=terms.dtype,
        out_dtype=terms.out_dtype,
        precision=terms.precision,
        scales=terms.scales,
        alignment=min(carrier.alignment or least, WIDEST_ACCESS),
    )
    operands, placed = groups.operands, placements(problem)
    buffers = {}
    for name, where in placed.items():
        if name in operands and name != "auxiliary":
            storage = np.zeros(where.size, f"u{terms.item_bytes(name)}")
            for place, operand in zip(where.view(storage), operands[name], strict=True):
                if place.size:
                    place[...] = bits(operand).reshape(place.shape)
            buffers[name] = carrier.upload(storage)
        else:
            buffers[name] = carrier.empty(where.size * terms.item_bytes(name))
    plan, binary = carrier.chosen(problem)
    carrier.launch(plan, binary, bind_arguments(problem, Operands.of(problem, buffers)))
    results = operands.get("out") or groups.new_results(None)
    for name, members in (("c", results), ("auxiliary", operands.get("auxiliary", []))):
        if members:
            found = np.empty(placed[name].size, f"u{terms.item_bytes(name)}")
            carrier.download(buffers[name], found)
            for place, operand in zip(placed[name].view(found), members, strict=True):
                if place.size:
                    bits(operand)[...] = place
    return results


def result_of(request: Request) -> Operand:
    """The array that a product of host arrays is written to: `out`, or a new one."""
    if "out" in request.operands:
        return request.operands["out"]
    like, terms = request.operands["a"], request.terms
    return request.maker.empty(like, request.shape.result, terms.out_dtype, None)


def _nbytes(operand: Operand) -> int:
    return int(np.prod(operand.view.shape, dtype=np.int64)) * operand.item_bytes


def _placed(
    shape: Shape, terms: Terms, raw: Mapping[str, Raw], carrier: Carrier
) -> tuple[dict[str, Raw], tuple[Step, ...]]:
    """What is uploaded, in pieces that are read in place there, and the steps that do."""
    views, arrays = {}, {}
    for role in ("a", "b", "bias", "residual", "scale_result", *SCALE_ROLES):
        if role in raw:
            arrays[role], views[role] = _contiguous(raw[role], carrier.by_columns)
    views["out"] = View.tight(shape.result)
    if "auxiliary" in raw:
        views["auxiliary"] = View.tight(shape.result)
    while True:
        steps = place(shape.stacks(views), terms)
        if not isinstance(steps, Copied):
            return arrays, steps
        stack = shape.stacks(views)[steps.role].shape
        wide = shape.result if steps.role == "residual" else stack
        arrays[steps.role] = _native(np.broadcast_to(raw[steps.role], wide))
        views[steps.role] = View.tight(wide)


def _collapsed(role: str, array: Raw) -> Raw:
    """An array without the repetitions of a broadcast, where its shape need not tell them."""
    matrices = dict.fromkeys(("a", "b", *SCALE_ROLES), max(array.ndim - 2, 0))
    free = (matrices | {"bias": 0, "scale_result": 0}).get(role, array.ndim)
    return array[
        tuple(
            slice(0, 1) if step == 0 and place < free else slice(None)
            for place, step in enumerate(array.strides)
        )
    ]


def _contiguous(array: Raw, by_columns: bool) -> tuple[Raw, View]:
    """The array made contiguous, without a copy if it is so already, and how it lies."""
    if by_columns and array.ndim > 1 and not array.flags.c_contiguous:
        flipped = array.swapaxes(-1, -2)
        if _is_native(flipped):
            strides = View.tight(flipped.shape).strides
            return flipped, View(array.shape, (*strides[:-2], strides[-1], strides[-2]))
    return _native(array), View.tight(array.shape)


def _native(array: Raw) -> Raw:
    """The array contiguous, aligned and in this machine's byte order."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])


def _is_native(array: Raw) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative)


def _store(carrier: Carrier, buffer: Buffer, out: Raw) -> None:
    """Bring results to where they belong, whatever way they lie there."""
    if _is_native(out):
        carrier.download(buffer, out)
        return
    rows = np.empty(out.shape, out.dtype.newbyteorder("="))
    carrier.download(buffer, rows)
    out[...] = rows
