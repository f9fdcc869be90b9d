"""Tensor copies in the oracle: element by element, when they are issued or a schedule says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.bulk_copies import check_barrier, combined
from gemmkit.emulator.isa.cluster import (
    OFFSET_MASK,
    cluster_address,
    divided,
    multicast_ranks,
    reaches_peers,
)
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.isa.tensor_copies import (
    NAN_FILL,
    ROUNDED,
    TF32_DROPPED,
    TF32_NAN,
    Box,
    box_at,
    check_shared,
    reduction_of,
)
from gemmkit.emulator.isa.tensor_maps import check_place, decoded
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.memory import SHARED_WINDOW, Bytes, Fault, window_of
from gemmkit.emulator.oracle.phases import Phases
from gemmkit.emulator.oracle.replay import Transfer
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.oracle.transfers import sectors_of_box
from gemmkit.tensor_maps import INTEGERS, MAP_BYTES, TensorMap

# An element's bytes where it is read, and where it is written if that is anywhere.
Pair = tuple[Bytes, Bytes | None]


def copy(group: Group, step: Step, lanes: Mask, phases: Phases, tally: Tally) -> None:
    """`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`, one lane after the other."""
    form, blocks = step.form, group.chunk.cluster_blocks
    values = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]
    addresses = [np.broadcast_to(group.address(each), lanes.shape) for each in step.addresses]
    for row, lane in np.argwhere(lanes).tolist():
        at = [int(each[row, lane]) for each in addresses]
        coordinates = [int(each[row, lane]) for each in values]
        own, barriers = int(group.chunk.rank[group.rows[row]]), []
        if form["D"] == "shared":
            shared_at, map_at, barrier = at
            barriers = [barrier % SHARED_WINDOW]
        else:
            map_at, shared_at = at
        one = np.zeros_like(lanes)
        one[row, lane] = True
        shared_at %= SHARED_WINDOW
        try:
            tensor_map = _map(group, map_at, one)
            if "M" in form.modifiers:
                *coordinates, mask = coordinates
            box = box_at(form, tensor_map, coordinates)
            check_shared(form, shared_at, box)
            targets = [(shared_at, *barriers)]
            if "M" in form.modifiers:
                targets = [
                    tuple(cluster_address(rank, each & OFFSET_MASK) for each in targets[0])
                    for rank in multicast_ranks(mask, blocks)
                ]
            elif barriers and reaches_peers(form):
                check_barrier(*(divided(each, own)[0] for each in targets[0]))
        except Misuse as misuse:
            raise Fault(f"{misuse.kind}: it {misuse.what}", shared_at, one) from None
        each_sectors = sectors_of_box(box, loads=form["D"] == "shared")
        tally.sectors[step.number] += len(targets) * each_sectors
        signaled = phases.signaled(group, step, row, lane, targets)
        watch = group.chunk.watch
        if watch is not None:
            watch.copy(step.number, int(group.rows[row]), _spans(box), signaled)
        # An address may depend on integers.
        moves = group.chunk.data_matters or tensor_map.element in INTEGERS
        for there, *count in targets:
            rank, within = divided(there, own) if reaches_peers(form) else (own, there)
            elements = zip(_places(tensor_map), _shared_offsets(tensor_map, within), strict=True)
            pairs = [
                _pair(group, step, box, place, (rank, within + offset), one)
                for place, offset in (elements if moves else ())
            ]
            nbytes = tensor_map.box_bytes
            moved = Transfer(
                partial(_read, box, pairs),
                partial(_write, form, box, pairs),
                partial(phases.deliver, group, step, row, lane, count[0], nbytes)
                if count
                else None,
            )
            phases.perform(group, row, lane, moved)


def _spans(box: Box) -> list[tuple[int, int]]:
    """Address and bytes of each row of a box, as far as it is in the tensor."""
    if box.empty:
        return []
    (*extents, nbytes), (*strides, _) = box.extent
    return [
        (box.first + sum(map(int.__mul__, place, strides)), nbytes)
        for place in itertools.product(*map(range, extents))
    ]


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
    for row in range(0, tensor_map.shared_bytes, tensor_map.pitch):
        for offset in range(row, row + tensor_map.row_bytes, tensor_map.item_bytes):
            plain = address + offset
            yield (plain ^ (plain >> 7 & mask) << 4) - address


def _pair(
    group: Group,
    step: Step,
    box: Box,
    place: Sequence[int],
    shared_at: tuple[int, int],
    one: Mask,
) -> Pair:
    """Where one element of a box is read and where it is written, the latter None if that is
    outside of the tensor; `shared_at` is the rank of the block that has it in shared memory, and
    the address there."""
    each = box.map
    index = [
        start + number * stride
        for start, number, stride in zip(box.coordinates, place, each.steps, strict=True)
    ]
    innermost, *outer_sizes = each.sizes
    if step.form["D"] == "global":
        # A store ends at a multiple of 16 bytes.
        innermost += -innermost % (16 // each.item_bytes)
    sizes = (innermost, *outer_sizes)
    inside = all(0 <= number < size for number, size in zip(index, sizes, strict=True))
    strides = (each.item_bytes, *each.strides)
    address = each.address + sum(map(int.__mul__, index, strides))
    shared = _shared(group, *shared_at, each.item_bytes, one)
    outer = _global(group, address, each.item_bytes, one) if inside else None
    if step.form["D"] != "shared":
        return shared, outer
    if outer is None:
        fill = NAN_FILL.to_bytes(2, "little") * (each.item_bytes // 2)
        value = fill if each.fill_nan else bytes(each.item_bytes)
        outer = np.frombuffer(value, np.uint8)
    return outer, shared


def _read(box: Box, pairs: Sequence[Pair]) -> list[Bytes]:
    if box.map.element in ROUNDED:
        return [_rounded_to_tf32(source) for source, _ in pairs]
    return [source.copy() for source, _ in pairs]


def _rounded_to_tf32(source: Bytes) -> Bytes:
    word = int.from_bytes(source.tobytes(), "little")
    if word & 0x7FFFFFFF > 0x7F800000:
        word = TF32_NAN
    else:
        kept, rest = divmod(word, 1 << TF32_DROPPED)
        half = 1 << TF32_DROPPED - 1
        kept += rest > half or (rest == half and kept % 2)
        word = kept << TF32_DROPPED
    return np.frombuffer(word.to_bytes(4, "little"), np.uint8)


def _write(form: Form, box: Box, pairs: Sequence[Pair], data: Sequence[Bytes]) -> None:
    reduces = form["D"] != "shared" and "O" in form.modifiers
    of = reduction_of(form, box.map.element) if reduces else form
    for (_, target), value in zip(pairs, data, strict=True):
        if target is not None:
            target[:] = combined(of, target, value) if reduces else value


def _shared(group: Group, rank: int, address: int, nbytes: int, one: Mask) -> Bytes:
    shared = group.chunk.spaces["shared"]
    inside = shared.base <= address <= shared.base + shared.nbytes - nbytes
    if not inside or rank >= group.chunk.cluster_blocks:
        raise Fault("out of bounds in shared memory", address, one)
    return shared.view(rank, address, nbytes)


def _global(group: Group, address: int, nbytes: int, one: Mask) -> Bytes:
    memory = group.chunk.memory
    found = memory.find(address)
    if found is None or address + nbytes > found.address + found.nbytes:
        raise Fault("out of bounds in global memory", address, one)
    return memory.view(address, nbytes)
