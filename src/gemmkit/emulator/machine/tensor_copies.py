"""Tensor copies of a running block: their maps and boxes, and the bytes that they move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import WINDOW_BYTES, WINDOWS
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.cluster import divided, reaches_peers
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.tensor_copies import (
    Box,
    box_at,
    check_shared,
    footprint,
    read_shared,
    read_tensor,
    write_shared,
    write_tensor,
)
from gemmkit.emulator.isa.tensor_maps import check_place, decoded
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.shared_names import shared_array
from gemmkit.tensor_maps import MAP_BYTES

_LOCAL = range(WINDOWS["local"], WINDOWS["local"] + WINDOW_BYTES)
_SHARED = range(WINDOWS["shared"], WINDOWS["shared"] + WINDOW_BYTES)


def tensor_copy(
    worker: Worker,
    memory: DeviceMemory,
    action: Action,
    thread: int,
    coordinates: Sequence[int],
    map_at: int,
    shared_at: int,
) -> Copy:
    """A tensor copy that a thread issues; its mbarrier is still missing.

    `shared_at` may be in the window of the cluster.

    Raises:
        Refusal: an operand is not valid, or the box lies outside of memory.
    """
    form, number = action.form, action.number
    try:
        check_place(map_at, in_global=map_at not in _LOCAL and map_at not in _SHARED)
        found = memory.find(map_at)
        if found is None or map_at + MAP_BYTES > found.address + found.nbytes:
            raise Misuse(
                "out of bounds", f"uses a tensor map at {map_at:#x}, where none is allocated"
            )
        box = box_at(form, decoded(memory.view(map_at, MAP_BYTES).tobytes()), coordinates)
    except Misuse as misuse:
        near = memory.nearest(map_at)
        array, offset = ("", 0) if near is None else (near.name, map_at - near.address)
        raise Refusal(misuse.kind, misuse.what, number, thread, array, offset) from None
    try:
        check_shared(form, shared_at, box)
    except Misuse as misuse:
        within = divided(shared_at, worker.rank)[1]
        raise Refusal.at_shared(misuse, number, thread, worker.flow.kernel, within) from None
    _check_shared_bounds(worker, action, thread, box, shared_at)
    _check_global_bounds(memory, action, thread, box)
    loads = form["D"] == "shared"
    to, start = (shared_at, box.first) if loads else (box.first, shared_at)
    return Copy(action, thread, to, start, box.map.box_bytes, None, box=box, map_at=map_at)


def _check_shared_bounds(
    worker: Worker, action: Action, thread: int, box: Box, address: int
) -> None:
    nbytes, rank = footprint(box), worker.rank
    if reaches_peers(action.form):
        rank, address = divided(address, rank)
    inside = worker.shared_base <= address and address + nbytes <= worker.shared_end
    if inside and rank < len(worker.peers):
        return
    array, offset = shared_array(worker.flow.kernel, address)
    does = "writes" if action.form["D"] == "shared" else "reads"
    what = (
        f"{does} a box of {nbytes:,} bytes at byte {offset:,} of '{array}', out of bounds: the "
        f"block has {worker.shared_bytes:,} bytes of shared memory"
    )
    if rank >= len(worker.peers):
        what = f"{does} a box in the shared memory of rank {rank}, which its cluster does not have"
    raise Refusal("out of bounds", what, action.number, thread, array, offset)


def _check_global_bounds(memory: DeviceMemory, action: Action, thread: int, box: Box) -> None:
    if box.empty:
        return
    found = memory.find(box.first)
    if found is not None and box.end <= found.address + found.nbytes:
        return
    does = "writes" if action.form["D"] == "global" else "reads"
    near = found or memory.nearest(box.map.address)
    name, offset = ("", 0) if near is None else (near.name, box.end - 1 - near.address)
    size = "nothing is allocated" if near is None else f"'{name}' has {near.nbytes:,} bytes"
    what = (
        f"{does} a box at coordinates {box.coordinates} up to byte {offset:,}, but {size}, so its "
        "tensor map does not fit the array"
    )
    raise Refusal("out of bounds", what, action.number, thread, name, offset)


def read(worker: Worker, memory: DeviceMemory, copy: Copy) -> NDArray[np.uint8]:
    """The box that a copy reads, without gaps or swizzle."""
    box = copy.box
    assert box is not None
    if copy.action.form["F"] == "shared":
        part = worker.shared[copy.start : copy.start + footprint(box)]
        return read_shared(box, copy.start, part)
    return read_tensor(box, global_bytes(memory, box))


def write(worker: Worker, memory: DeviceMemory, copy: Copy, data: NDArray[np.uint8]) -> None:
    """Write the box that a copy has read, or reduce by it."""
    box = copy.box
    assert box is not None
    if copy.action.form["D"] == "shared":
        rank, to = divided(copy.to, worker.rank)
        write_shared(box, to, data, worker.peers[rank].shared[to : to + footprint(box)])
    else:
        write_tensor(copy.action.form, box, data, global_bytes(memory, box))


def global_bytes(memory: DeviceMemory, box: Box) -> NDArray[np.uint8]:
    """Global memory from a box's first to its last byte in the tensor."""
    return memory.view(box.first, box.end - box.first)
