"""Instructions that access memory: loads, stores, cp.async and atomics, and their counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.cluster import (
    OFFSET_MASK,
    RANK_SHIFT,
    mapped,
    ranks_of,
    reaches_peers,
)
from gemmkit.emulator.isa.matrix_access import has_rows
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.counting import (
    copy_counts_of,
    distinct_sectors,
    global_counts_of,
    local_sectors_of,
    more_tags_of,
    wavefronts_of,
)
from gemmkit.emulator.oracle.memory import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    Addresses,
    Fault,
    Lanes,
    Span,
    check_aligned,
    global_spans,
    window_of,
)
from gemmkit.emulator.oracle.steps import PREDICATE, Step
from gemmkit.emulator.ptx.module import Address, Symbol

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


def space_of(group: Group, step: Step) -> str:
    """The state space of an instruction; param is that of the kernel or of a call."""
    space = step.form["S"].removesuffix("::cta") or "generic"
    if space != "param":
        return {"const": "global"}.get(space, space)
    base = step.addresses[0].base
    own = isinstance(base, Symbol) and base.name in group.chunk.kernel.parameters
    return "parameters" if own else "arguments"


def _address(group: Group, step: Step, space: str) -> Addresses:
    return group.address(step.addresses[0], ranked=space in ("shared", "generic"))


def load(group: Group, step: Step, lanes: Lanes, tally: Tally) -> None:
    """`ld`: one number, or a vector of them, into registers."""
    of, space = step.form.type, space_of(group, step)
    if space == "parameters":
        _load_parameters(group, step, lanes)
        return
    addresses, nbytes = _address(group, step, space), of.bytes * len(step.dests)
    values = [np.zeros(lanes.shape, f"u{of.bytes}") for _ in step.dests]
    for span in _spans(group, step, space, addresses, lanes, nbytes, tally):
        for number, value in enumerate(values):
            loaded = span.moved(number * of.bytes).load(of.bytes)
            values[number] = np.where(span.lanes, loaded, value)
    for (dest, kind), value in zip(step.dests, values, strict=True):
        group.write(dest, kind, value, lanes)


def _load_parameters(group: Group, step: Step, lanes: Lanes) -> None:
    address: Address = step.addresses[0]
    assert isinstance(address.base, Symbol)
    start = group.chunk.kernel.parameters[address.base.name].offset + address.offset
    size = step.form.type.bytes
    for number, (dest, of) in enumerate(step.dests):
        span = start + number * size
        data = group.chunk.request.parameters[span : span + size].ljust(size, b"\0")
        group.write(dest, of, np.frombuffer(data, f"u{size}"), lanes)


def store(group: Group, step: Step, lanes: Lanes, tally: Tally) -> None:
    """`st`: one number, or a vector of them, from registers."""
    of, space = step.form.type, space_of(group, step)
    addresses, nbytes = _address(group, step, space), of.bytes * len(step.sources)
    values = [group.read(source, of) for source, _ in step.sources]
    for span in _spans(group, step, space, addresses, lanes, nbytes, tally):
        for number, value in enumerate(values):
            span.moved(number * of.bytes).store(value)


def _spans(
    group: Group,
    step: Step,
    space: str,
    addresses: Addresses,
    lanes: Lanes,
    nbytes: int,
    tally: Tally,
) -> Iterator[Span]:
    """Check and count an access; returns the memory that it accesses."""
    if space != "arguments" and step.form.modifiers.get("S") != "const":
        if not step.silent:
            tally.requests[step.number] += int(np.count_nonzero(lanes.any(axis=1)))
        tally.data_bytes[step.number] += nbytes * int(np.count_nonzero(lanes))
    yield from spans_by_space(group, step, space, addresses, lanes, nbytes, tally)


def spans_by_space(
    group: Group,
    step: Step,
    space: str,
    addresses: Addresses,
    lanes: Lanes,
    nbytes: int,
    tally: Tally,
) -> Iterator[Span]:
    """The memory that an access by addresses of a space, or generic ones, goes to; its sectors and
    wavefronts are counted.

    Raises:
        Fault: an address is misaligned or out of bounds.
    """
    check_aligned(addresses, lanes, nbytes)
    if space != "generic":
        yield from _spans_in(group, step, space, addresses, lanes, nbytes, tally)
        return
    for part in ("shared", "local", "global"):
        inside = lanes & window_of(addresses, part)
        if inside.any():
            offset = np.uint64(WINDOWS.get(part, 0))
            yield from _spans_in(group, step, part, addresses - offset, inside, nbytes, tally)


def _spans_in(
    group: Group,
    step: Step,
    space: str,
    addresses: Addresses,
    lanes: Lanes,
    nbytes: int,
    tally: Tally,
) -> Iterator[Span]:
    if space == "shared" and group.chunk.cluster_blocks > 1 and reaches_peers(step.form):
        distant = lanes & (addresses >> np.uint64(RANK_SHIFT) != 0)
        if distant.any():
            yield from peer_spans(group, addresses, distant, nbytes)
            tally.peer_requests[step.number] += int(np.count_nonzero(distant.any(axis=1)))
            tally.peer_sectors[step.number] += distinct_sectors(addresses, distant)
            lanes = lanes & ~distant
        if not lanes.any():
            return
    _record(group, step, space, addresses, lanes, nbytes)
    if space == "global":
        found = list(global_spans(group.chunk.memory, addresses, lanes, nbytes))
        if step.form.modifiers.get("S") != "const":
            _count_global(step, addresses, lanes, nbytes, tally)
        yield from found
        return
    owners = group.take(group.chunk.owners[space])
    yield from group.chunk.spaces[space].spans(owners, addresses, lanes, nbytes)
    if space == "shared" and not step.silent:
        apart = step.form.operation != "load" or has_rows(step.form)
        wavefronts, conflicts = wavefronts_of(addresses, lanes, step.width or nbytes, apart)
        tally.wavefronts[step.number] += wavefronts
        tally.conflicts[step.number] += conflicts
    elif space == "local":
        tally.sectors[step.number] += local_sectors_of(addresses, lanes, nbytes)


def peer_spans(group: Group, addresses: Addresses, lanes: Lanes, nbytes: int) -> Iterator[Span]:
    """The memory of an access by addresses in the window of the cluster."""
    chunk = group.chunk
    ranks = (addresses >> np.uint64(RANK_SHIFT)).astype(np.int64) - 1
    beyond = lanes & (ranks >= chunk.cluster_blocks)
    if beyond.any():
        raise Fault("out of bounds in the cluster", int(addresses[beyond][0]), beyond)
    owners = np.where(lanes, ranks, 0)
    within = addresses & np.uint64(OFFSET_MASK)
    yield from chunk.spaces["shared"].spans(owners, within, lanes, nbytes)


def _count_global(
    step: Step, addresses: Addresses, lanes: Lanes, nbytes: int, tally: Tally
) -> None:
    sectors, ideal, tags = global_counts_of(addresses, lanes, nbytes)
    tally.sectors[step.number] += sectors
    tally.ideal_sectors[step.number] += ideal
    tally.tag_wavefronts[step.number] += tags


def _record(
    group: Group, step: Step, space: str, addresses: Addresses, lanes: Lanes, nbytes: int
) -> None:
    watch = group.chunk.watch
    if watch is not None and step.form.modifiers.get("S") != "const":
        watch.access(step.number, space, group.rows, addresses, lanes, nbytes)


def copy_async(group: Group, step: Step, lanes: Lanes, tally: Tally) -> None:
    """`cp.async`: 4 to 16 bytes from global to shared memory, performed at once.

    With a source size, bytes beyond it are written as zeros; a lane with size 0 reads nothing, as
    does one whose `ignore-src` is true.
    """
    to, start = (group.address(each) for each in step.addresses)
    (size,) = step.immediates
    length = np.full(lanes.shape, size, np.uint32)
    if step.sources:
        source, of = step.sources[0]
        given = group.read(source, of)
        length = np.where(given, 0, length) if of is PREDICATE else np.minimum(length, given)
    reading = lanes & (length > 0)
    check_aligned(to, lanes, size)
    check_aligned(start, reading, size)
    _record(group, step, "global", start, reading, size)
    _record(group, step, "shared", to, lanes, size)
    data = np.zeros((*lanes.shape, size), np.uint8)
    for count in np.unique(length[reading]).tolist():
        unit = 4 if count % 4 == 0 else 1
        numbers = data.view(f"u{unit}")
        for span in global_spans(group.chunk.memory, start, reading & (length == count), count):
            for number in range(count // unit):
                loaded = span.moved(number * unit).load(unit)
                numbers[..., number] = np.where(span.lanes, loaded, numbers[..., number])
    owners = group.take(group.chunk.owners["shared"])
    for span in group.chunk.spaces["shared"].spans(owners, to, lanes, size):
        for number in range(size // 4):
            span.moved(4 * number).store(data.view("u4")[..., number])
    tally.requests[step.number] += int(np.count_nonzero(reading.any(axis=1)))
    _count_global(step, start, reading, size, tally)
    cached = step.form["C"] == "ca"
    wavefronts, conflicts, again = copy_counts_of(to, start, lanes, reading, size, cached)
    tally.wavefronts[step.number] += wavefronts
    tally.conflicts[step.number] += conflicts
    tally.sectors[step.number] += again
    if not cached:
        tally.tag_wavefronts[step.number] += more_tags_of(to, start, reading)
    tally.data_bytes[step.number] += int(length[reading].sum())


def atomic(group: Group, step: Step, lanes: Lanes, tally: Tally) -> None:
    """`atom` and `red`: one lane after the other."""
    of, space = step.form.type, space_of(group, step)
    addresses = _address(group, step, space)
    operands = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]
    before = np.zeros(lanes.shape, f"u{of.bytes}")
    for span in _spans(group, step, space, addresses, lanes, of.bytes, tally):
        for row, lane in np.argwhere(span.lanes).tolist():
            only = np.zeros_like(lanes)
            only[row, lane] = True
            one = Span(span.data, span.index, only)
            old = one.load(of.bytes)
            new = _combined(step, old[row, lane], *(each[row, lane] for each in operands))
            one.store(np.full(lanes.shape, new, old.dtype))
            before[row, lane] = old[row, lane]
    if step.dests:
        group.write(*step.dests[0], before, lanes)


def _combined(step: Step, old: Any, *operands: Any) -> Any:
    """What an atomic stores to memory; raw bits, as scalars."""
    if step.form.operation == "compare_and_swap":
        return operands[1] if old == operands[0] else old
    operation, (operand,) = step.form["O"], operands
    if operation == "exch":
        return operand
    if operation == "inc":
        return old.dtype.type(0) if old >= operand else old + old.dtype.type(1)
    if operation == "dec":
        return operand if old == 0 or old > operand else old - old.dtype.type(1)
    return evaluate(table()[f"{operation}.{step.form['T']}"], [old, operand])[0]


def convert_address(group: Group, step: Step, lanes: Lanes) -> None:
    """`cvta`: between addresses of a space and generic ones."""
    offset = WINDOWS.get(step.form["S"], 0)
    (source, of), (dest, _) = step.sources[0], step.dests[0]
    moved = -offset if step.form["D"] == "to" else offset
    base = np.broadcast_to(group.read(source, of), lanes.shape)
    group.write(dest, of, base + base.dtype.type(moved % (1 << of.bits)), lanes)


def is_space(group: Group, step: Step, lanes: Lanes) -> None:
    """`isspacep`: whether a generic address is in a space."""
    addresses = np.broadcast_to(group.read(*step.sources[0]), lanes.shape)
    inside: Mask = window_of(addresses, step.form["S"])
    if step.form["S"] == "shared" and "::cluster" not in step.form.opcode:
        own = group.own_window(64) + np.uint64(SHARED_WINDOW)
        inside = addresses - own <= OFFSET_MASK
    group.write(*step.dests[0], inside, lanes)


def map_address(group: Group, step: Step, lanes: Lanes) -> None:
    """`mapa`: the address of the same variable in the block of a rank."""
    addresses, ranks = (np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources)
    found = addresses.copy()
    blocks = group.chunk.cluster_blocks
    found[lanes] = mapped(step.instruction, addresses[lanes], ranks[lanes], blocks)
    group.write(*step.dests[0], found, lanes)


def cluster_rank(group: Group, step: Step, lanes: Lanes) -> None:
    """`getctarank`: the rank of the block that has an address."""
    addresses = np.broadcast_to(group.read(*step.sources[0]), lanes.shape)
    group.write(*step.dests[0], ranks_of(addresses), lanes)


def create_policy(group: Group, step: Step, lanes: Lanes) -> None:
    """`createpolicy`: zero for every policy, since none changes a result."""
    group.write(*step.dests[0], np.zeros(lanes.shape, np.uint64), lanes)
