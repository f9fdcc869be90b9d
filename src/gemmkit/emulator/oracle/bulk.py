"""Bulk copies, `st.async` and `red.async` in the oracle: they take effect when they are issued,
unless a schedule says otherwise."""

from __future__ import annotations

from functools import partial

import numpy as np

from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.bulk_copies import check_barrier, check_copy, combined, is_reduction
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
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.memory import SHARED_WINDOW, Bytes, Fault
from gemmkit.emulator.oracle.phases import Phases
from gemmkit.emulator.oracle.replay import Transfer
from gemmkit.emulator.oracle.steps import Step
from gemmkit.emulator.oracle.transfers import sectors_of_bytes


def copy(group: Group, step: Step, lanes: Mask, phases: Phases, tally: Tally) -> None:
    """`cp.async.bulk`, `cp.reduce.async.bulk`, `st.async` and `red.async`, one lane after the
    other."""
    values = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]
    addresses = [np.broadcast_to(group.address(each), lanes.shape) for each in step.addresses]
    form, blocks = step.form, group.chunk.cluster_blocks
    stored: set[tuple[int, int]] = set()
    for row, lane in np.argwhere(lanes).tolist():
        one = np.zeros_like(lanes)
        one[row, lane] = True
        given = [int(each[row, lane]) for each in values]
        places = [int(each[row, lane]) for each in addresses]
        data = None
        if form.operation == "bulk_store":
            to, *barrier = places
            of = TYPES[form["T"]]
            data = np.array(given, np.uint64).astype(f"u{of.bytes}").view(np.uint8)
            nbytes, start = len(data), to
        else:
            to, start, *barrier = places
            nbytes = given[0]
        spaces = form["D"], form.modifiers.get("F", "shared")
        to, start = (
            address % SHARED_WINDOW if space == "shared" else address
            for space, address in zip(spaces, (to, start), strict=True)
        )
        targets = [(to, *barrier)]
        try:
            if "M" in form.modifiers:
                targets = [
                    tuple(cluster_address(rank, each & OFFSET_MASK) for each in (to, *barrier))
                    for rank in multicast_ranks(given[1], blocks)
                ]
            for there, *count in targets:
                check_copy(form, there, start, nbytes)
                if count and reaches_peers(form):
                    check_barrier(*(_rank(group, row, each) for each in (there, *count)))
        except Misuse as misuse:
            raise Fault(f"{misuse.kind}: it {misuse.what}", to, one) from None
        signaled = phases.signaled(group, step, row, lane, targets)
        watch = group.chunk.watch
        if watch is not None and nbytes and "global" in spaces:
            in_global = start if spaces[1] == "global" else to
            watch.copy(step.number, int(group.rows[row]), [(in_global, nbytes)], signaled)
        for there, *count in targets:
            source = data
            if source is None and nbytes:
                source = _bytes(group, step, form["F"], start, nbytes, one)
            target = _bytes(group, step, form["D"], there, nbytes, one) if nbytes else None
            if form.operation == "bulk_store":
                place = cluster_address(*divided(there, int(group.chunk.rank[group.rows[row]])))
                stored.add((row, place // SECTOR_BYTES))
            elif form["F"] == "global":
                tally.sectors[step.number] += sectors_of_bytes(start, nbytes)
            else:
                counts = tally.sectors if form["D"] == "global" else tally.peer_sectors
                counts[step.number] += sectors_of_bytes(there, nbytes)
            moved = Transfer(
                partial(_read, source),
                partial(_write, form, target),
                partial(phases.deliver, group, step, row, lane, count[0], nbytes)
                if count
                else None,
            )
            phases.perform(group, row, lane, moved)
    tally.peer_sectors[step.number] += len(stored)
    tally.peer_requests[step.number] += len({row for row, _ in stored})


def _read(source: Bytes | None) -> Bytes | None:
    return None if source is None else source.copy()


def _write(form: Form, target: Bytes | None, data: Bytes | None) -> None:
    if target is not None and data is not None:
        target[:] = combined(form, target, data) if is_reduction(form) else data


def _rank(group: Group, row: int, address: int) -> int:
    own = int(group.chunk.rank[group.rows[row]])
    return divided(address % SHARED_WINDOW, own)[0]


def _bytes(group: Group, step: Step, space: str, address: int, nbytes: int, one: Mask) -> Bytes:
    """Bytes in memory, readable and writable.

    Raises:
        Fault: there are none.
    """
    if space == "shared":
        shared = group.chunk.spaces["shared"]
        rank = int(group.chunk.rank[group.rows[int(one.any(axis=1).argmax())]])
        if reaches_peers(step.form):
            rank, address = divided(address, rank)
        inside = shared.base <= address <= shared.base + shared.nbytes - nbytes
        if not inside or rank >= group.chunk.cluster_blocks:
            raise Fault("out of bounds in shared memory", address, one)
        return shared.view(rank, address, nbytes)
    memory = group.chunk.memory
    found = memory.find(address)
    if found is None or address + nbytes > found.address + found.nbytes:
        raise Fault("out of bounds in global memory", address, one)
    return memory.view(address, nbytes)
