"""Groups of host matrices that need not fit in a device's memory: large products are streamed one
after another, as single ones are, and the others are copied whole, as many at a time as fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gemmkit.devices.device import Device
from gemmkit.loading import load
from gemmkit.ops.carriers import carrier_on
from gemmkit.ops.groups import GroupsRequest
from gemmkit.ops.host import multiply_groups
from gemmkit.ops.operands import Operand
from gemmkit.ops.product import STREAMED_BYTES
from gemmkit.ops.request import HostOptions, Request
from gemmkit.ops.shapes import Shape

# Bytes of operands and results that are copied to a device at a time, of which each product has
# fewer than `STREAMED_BYTES`.
_MOST_BYTES = 2 << 30


def multiply_host_groups(
    groups: GroupsRequest, device: Device | str | None, options: HostOptions | None
) -> list[Operand]:
    """The products of host arrays of different shapes, in `out` or in new arrays.

    Args:
        groups: what is multiplied.
        device: where.
        options: how products are streamed: with them, all are; by default those on a GPU that a
            single call would stream.

    Raises:
        UsageError: an option is not valid, or the memory is too little.
        GemmkitError: as compiling and launching raise.
    """
    nbytes = _bytes(groups)
    if options is None and not nbytes:
        return []
    if options is None and max(nbytes) < STREAMED_BYTES and sum(nbytes) <= _MOST_BYTES:
        with carrier_on(device) as carrier:
            return multiply_groups(groups, carrier)
    load("gemmkit.ops.streamed.entry")
    from gemmkit.ops.streamed.entry import multiply_streamed

    results = groups.operands.get("out") or groups.new_results(None)
    rest = []
    for place, size in enumerate(nbytes):
        some = bool(groups.m[place] and groups.n[place])
        asked = some and (options is not None or size >= STREAMED_BYTES)
        if not asked or not multiply_streamed(
            _alone(groups, place), results[place], device, options
        ):
            rest.append(place)
    if rest:
        with carrier_on(device) as carrier:
            for places in _together(rest, nbytes):
                multiply_groups(_some(groups, places, results), carrier)
    return results


def _bytes(groups: GroupsRequest) -> list[int]:
    """Bytes of each product's operands and result."""
    m, n, k = (each.astype(np.int64) for each in (groups.m, groups.n, groups.k))
    item, out = groups.terms.item_bytes("a"), groups.terms.item_bytes("out")
    sizes: list[int] = ((m * k + k * n) * item + m * n * out).tolist()
    return sizes


def _together(places: Sequence[int], nbytes: Sequence[int]) -> Iterator[list[int]]:
    """Products that are copied together, in their order."""
    found: list[int] = []
    total = 0
    for place in places:
        if found and total + nbytes[place] > _MOST_BYTES:
            yield found
            found, total = [], 0
        found.append(place)
        total += nbytes[place]
    yield found


def _alone(groups: GroupsRequest, place: int) -> Request:
    """One of the products."""
    operands = {role: members[place] for role, members in groups.operands.items()}
    shape = Shape.of(operands["a"].view.shape, operands["b"].view.shape)
    return Request(operands, shape, groups.terms, groups.libraries["a"][place])


def _some(groups: GroupsRequest, places: list[int], results: list[Operand]) -> GroupsRequest:
    """Some of the products, with their results."""
    operands = {
        role: [members[place] for place in places]
        for role, members in (*groups.operands.items(), ("out", results))
    }
    return replace(
        groups, operands=operands, m=groups.m[places], n=groups.n[places], k=groups.k[places]
    )
