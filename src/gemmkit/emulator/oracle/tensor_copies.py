"""Tensor copies in the oracle: element by element, when they are issued."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from gemmkit.emulator.isa.bulk_copies import combined
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.isa.tensor_copies import Box, box_at, check_shared, reduction_of
from gemmkit.emulator.isa.tensor_maps import check_place, decoded
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.memory import SHARED_WINDOW, Bytes, Fault, window_of
from gemmkit.emulator.oracle.phases import Phases
from gemmkit.emulator.oracle.steps import Step
from gemmkit.tensor_maps import MAP_BYTES, TensorMap


def copy(group: Group, step: Step, lanes: Mask, phases: Phases) -> None:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`, one lane after the other."""
    form = step.form
    coordinates = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]
    addresses = [np.broadcast_to(group.address(each), lanes.shape) for each in step.addresses]
    for row, lane in np.argwhere(lanes).tolist():
        at = [int(each[row, lane]) for each in addresses]
        if form["D"] == "shared":
            shared_at, map_at, barrier = at
            phases.check(group, step, row, lane, barrier)
        else:
            map_at, shared_at = at
        one = np.zeros_like(lanes)
        one[row, lane] = True
        shared_at %= SHARED_WINDOW
        try:
            tensor_map = _map(group, map_at, one)
            box = box_at(form, tensor_map, [int(each[row, lane]) for each in coordinates])
            check_shared(form, shared_at, box)
        except Misuse as misuse:
            raise Fault(f"{misuse.kind}: it {misuse.what}", shared_at, one) from None
        counts = barrier if form["D"] == "shared" else None
        effect = partial(_effect, group, step, phases, box, shared_at, one, counts)
        phases.perform(group, row, lane, effect, grouped=counts is None)


def _effect(
    group: Group,
    step: Step,
    phases: Phases,
    box: Box,
    shared_at: int,
    one: Mask,
    barrier: int | None,
    shared: Bytes,
) -> None:
    """Move all elements of a box, from `shared` if they come from there."""
    for place, offset in zip(_places(box.map), _shared_offsets(box.map, shared_at), strict=True):
        _move(group, step, box, place, shared_at + offset, one, shared)
    if barrier is not None:
        (row, lane), *_ = np.argwhere(one).tolist()
        phases.deliver(group, step, row, lane, barrier, box.map.box_bytes)


def _map(group: Group, address: int, one: Mask) -> TensorMap:
    generic = np.array([address], np.uint64)
    check_place(address, in_global=bool(window_of(generic, "global")[0]))
    return decoded(_global(group, address, MAP_BYTES, one).tobytes())


def _places(tensor_map: TensorMap) -> Iterator[tuple[int, ...]]:
    """The elements of a box in the order in which they lie in shared memory: their numbers along
    each dimension, innermost dimension first."""
    for place in itertools.product(*(range(count) for count in reversed(tensor_map.counts))):
        yield place[::-1]


def _shared_offsets(tensor_map: TensorMap, address: int) -> Iterator[int]:
    """Where the elements of a box are in shared memory, in bytes from its address."""
    # Bits 4 and up of the address are combined with those from bit 7 on.
    mask = {0: 0, 32: 0b1, 64: 0b11, 128: 0b111}[tensor_map.swizzle]
    for offset in range(0, tensor_map.box_bytes, tensor_map.item_bytes):
        plain = address + offset
        yield (plain ^ (plain >> 7 & mask) << 4) - address


def _move(
    group: Group,
    step: Step,
    box: Box,
    place: Sequence[int],
    shared_at: int,
    one: Mask,
    source: Bytes,
) -> None:
    """Copy one element of a box, or reduce by it; one from shared memory is in `source`."""
    each, form = box.map, step.form
    index = [
        start + number * stride
        for start, number, stride in zip(box.coordinates, place, each.steps, strict=True)
    ]
    inside = all(0 <= number < size for number, size in zip(index, each.sizes, strict=True))
    strides = (each.item_bytes, *each.strides)
    address = each.address + sum(map(int.__mul__, index, strides))
    shared = _shared(group, shared_at, each.item_bytes, one)
    if form["D"] == "shared":
        if inside:
            shared[:] = _global(group, address, each.item_bytes, one)
        else:
            # All bits but the sign's are set in NVIDIA's NaN.
            nan = (1 << 8 * each.item_bytes - 1) - 1
            value = nan if each.fill_nan else 0
            shared[:] = np.frombuffer(value.to_bytes(each.item_bytes, "little"), np.uint8)
    elif inside:
        start = shared_at - group.chunk.spaces["shared"].base
        shared = source[start : start + each.item_bytes]
        target = _global(group, address, each.item_bytes, one)
        reduces = "O" in form.modifiers
        of = reduction_of(form, each.element) if reduces else form
        target[:] = combined(of, target, shared) if reduces else shared


def _shared(group: Group, address: int, nbytes: int, one: Mask) -> Bytes:
    shared = group.chunk.spaces["shared"]
    if not shared.base <= address <= shared.base + shared.nbytes - nbytes:
        raise Fault("out of bounds in shared memory", address, one)
    return shared.view(0, address, nbytes)


def _global(group: Group, address: int, nbytes: int, one: Mask) -> Bytes:
    memory = group.chunk.memory
    found = memory.find(address)
    if found is None or address + nbytes > found.address + found.nbytes:
        raise Fault("out of bounds in global memory", address, one)
    return memory.view(address, nbytes)
