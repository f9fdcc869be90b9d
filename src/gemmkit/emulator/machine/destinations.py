"""The copies that one thread's bulk copy, tensor copy, `st.async` or `red.async` makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gemmkit.emulator.codegen.layout import WINDOWS
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.bulk_copies import check_barrier, check_copy
from gemmkit.emulator.isa.cluster import (
    OFFSET_MASK,
    cluster_address,
    divided,
    multicast_ranks,
    reaches_peers,
)
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.tensor_copies import tensor_copy
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.shared_names import shared_array


def copies_of(
    worker: Worker, memory: DeviceMemory, action: Action, thread: int, operands: Sequence[int]
) -> list[Copy]:
    """One copy, or one per block to which it is multicast.

    Raises:
        Refusal: an operand is not valid.
    """
    form, own = action.form, worker.rank
    if action.operation == "bulk_tensor":
        return _of_tensor(worker, memory, action, thread, operands)
    spaces = [form["D"], form.modifiers.get("F", "shared"), "shared"]
    given = len(action.sources)
    values, addresses = operands[:given], operands[given:]
    if action.operation == "bulk_store":
        to, barrier = (_in_shared("shared", each) for each in addresses)
        of = TYPES[form["T"]]
        data = np.array(values, np.uint64).astype(f"u{of.bytes}").view(np.uint8)
        made = [Copy(action, thread, to, to, len(data), barrier, data=data)]
    else:
        to, start, *barriers = (
            _in_shared(space, each) for space, each in zip(spaces, addresses, strict=False)
        )
        made = [Copy(action, thread, to, start, values[0], barriers[0] if barriers else None)]
    try:
        if "M" in form.modifiers:
            made = _multicast(worker, made[0], values[1])
        for copy in made:
            check_copy(form, copy.to, copy.start, copy.nbytes)
            if copy.barrier is not None and form["D"] == "shared" and reaches_peers(form):
                check_barrier(*(divided(each, own)[0] for each in (copy.to, copy.barrier)))
    except Misuse as misuse:
        array, offset = "", 0
        if form["D"] == "shared":
            array, offset = shared_array(worker.flow.kernel, divided(to, own)[1])
        raise Refusal(misuse.kind, misuse.what, action.number, thread, array, offset) from None
    return made


def _of_tensor(
    worker: Worker, memory: DeviceMemory, action: Action, thread: int, operands: Sequence[int]
) -> list[Copy]:
    """The same of a tensor copy: coordinates and the mask of a multicast, then, as the instruction
    lists them, the addresses of map, shared memory and, for a load, mbarrier."""
    form, barrier = action.form, None
    rank, given = int(form["N"]), len(action.sources)
    coordinates, mask, addresses = operands[:rank], operands[rank:given], operands[given:]
    if form["D"] == "shared":
        shared_at, map_at, barrier = addresses
        barrier = _in_shared("shared", barrier)
    else:
        map_at, shared_at = addresses
    shared_at = _in_shared("shared", shared_at)
    copy = tensor_copy(worker, memory, action, thread, coordinates, map_at, shared_at)
    copy.barrier = barrier
    try:
        made = _multicast(worker, copy, mask[0]) if mask else [copy]
        if barrier is not None and reaches_peers(form) and not mask:
            check_barrier(*(divided(each, worker.rank)[0] for each in (copy.to, barrier)))
    except Misuse as misuse:
        within = divided(shared_at, worker.rank)[1]
        raise Refusal.at_shared(misuse, action.number, thread, worker.flow.kernel, within) from None
    return made


def _multicast(worker: Worker, copy: Copy, mask: int) -> list[Copy]:
    """A copy to each block of a mask."""
    return [_sent_to(rank, copy) for rank in multicast_ranks(mask, len(worker.peers))]


def _in_shared(space: str, address: int) -> int:
    """An address in its space; in shared memory a generic one is accepted too."""
    generic = space == "shared" and address >= WINDOWS["shared"]
    return address - WINDOWS["shared"] if generic else address


def _sent_to(rank: int, copy: Copy) -> Copy:
    """A multicast copy to one block: destination and mbarrier have the same offsets in each."""
    assert copy.barrier is not None
    to, barrier = (cluster_address(rank, each & OFFSET_MASK) for each in (copy.to, copy.barrier))
    return replace(copy, to=to, barrier=barrier)
