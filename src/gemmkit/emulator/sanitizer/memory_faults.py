"""Explains accesses that are not allowed, and reads of memory that was never written."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.codegen.layout import LANES, WINDOW_BYTES, WINDOWS
from gemmkit.emulator.codegen.operands import Action, access_bytes
from gemmkit.emulator.launch import Dim3
from gemmkit.emulator.machine.errors import ACCESS_KINDS, reserved_memory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.names import source_name
from gemmkit.emulator.ptx.shared_names import DYNAMIC
from gemmkit.emulator.sanitizer.orders import OLD_FLAG, UNINITIALIZED_FLAG
from gemmkit.emulator.sanitizer.shadow import (
    BlockShadow,
    Pattern,
    bits_at,
    granules_of,
)
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import Finding

LOCAL = "local memory"


def space_at(action: Action, address: int) -> str:
    """The state space of an address as native code represents it."""
    declared = action.form.modifiers.get("S", "").removesuffix("::cta")
    if declared in ("shared", "local") and action.operation != "copy_async":
        return declared
    if declared in ("global", "const"):
        return "global"
    for space, start in WINDOWS.items():
        if 0 <= address - start < WINDOW_BYTES:
            return space
    return "shared" if 0 <= address < WINDOW_BYTES else "global"


def outside(
    names: Names, worker: Worker, number: int, thread: int, address: int, space: str
) -> Finding:
    """One thread's access that is misaligned or out of bounds."""
    action = names.actions[number]
    size, here = access_bytes(action), names.site(number, names.thread(thread))
    misaligned = address % size != 0
    array, offset, place = _location(names, worker, number, space, address, size)
    what = f"{ACCESS_KINDS[action.operation]} of {size} byte{'s' * (size != 1)}"
    block = names.block(worker.field("block"))
    kind = "misaligned" if misaligned else "out of bounds"
    return Finding(
        check="memcheck",
        kind=kind,
        message=f"{kind}: {what} {place}, by thread {here.thread} of block {block} at {here}",
        block=block,
        here=here,
        array=array,
        offset=offset,
    )


def _location(
    names: Names, worker: Worker, number: int, space: str, address: int, size: int
) -> tuple[str, int | None, str]:
    """The nearest array, the byte in it, and both in words."""
    if space == "local":
        nbytes = worker.flow.kernel.local_bytes
        return "", None, f"at byte {address} of {nbytes} bytes of local memory"
    if space == "shared":
        # Addresses have 32 bits; those before the first wrap around.
        address -= WINDOW_BYTES if address >= WINDOW_BYTES // 2 else 0
        array, offset = names.shared(address)
        base, end = worker.shared_base, worker.shared_bytes
        start, room = names.part(number)
        if number in names.arrays and not start <= address <= start + room - size:
            inside = base <= address < worker.shared_end and array != DYNAMIC
            met = array if inside else ""
            return _beside(source_name(names.arrays[number]), address - start, room, met)
        if 0 <= address < base:
            return "", None, f"at shared address {address:#x}, {reserved_memory(base)}"
        if address < 0:
            return array, address, f"{-address} bytes before the {end} bytes of shared memory"
        if address + size > worker.shared_end:
            return array, offset, f"at byte {address - base} of {end} bytes of shared memory"
        return array, offset, f"at byte {offset} of '{array}'"
    array, offset = names.device(address)
    nearest = names.memory.nearest(address)
    if nearest is None:
        return "", None, f"at {address:#x}, where no memory is allocated"
    name = f"'{array}'" if array else "an array"
    if offset < 0:
        return array, offset, f"{-offset} bytes before {name} ({nearest.nbytes} bytes)"
    if offset >= nearest.nbytes:
        beyond = offset - nearest.nbytes
        return array, offset, f"{beyond} bytes past the end of {name} ({nearest.nbytes} bytes)"
    return array, offset, f"at byte {offset} of {name} ({nearest.nbytes} bytes)"


def _beside(array: str, offset: int, room: int, met: str) -> tuple[str, int | None, str]:
    """An access outside of the shared variable that its address is derived from; it may have hit
    another variable."""
    if offset < 0:
        where = f"{-offset} bytes before"
    elif offset < room:
        where = f"at byte {offset} and past the end of"
    else:
        where = f"{offset - room} bytes past the end of"
    hit = f", in '{met}'" if met else ""
    kind = "" if room else "dynamic "
    # Without a size, a launch has none.
    given = "" if room else ", which --shared sets"
    return array, offset, f"{where} '{array}' ({room} bytes of {kind}shared memory{given}){hit}"


def unwritten(
    names: Names,
    worker: Worker,
    shadow: BlockShadow,
    numbers: tuple[int, ...],
    pattern: Pattern,
    base: int,
    nbytes: int,
) -> Finding | None:
    """A read of bytes that were never written; `numbers` are the instructions of a row."""
    space = space_at(names.actions[numbers[0]], base)
    if space == "shared":
        granules = granules_of(pattern, base, nbytes, shadow.shift)
        missing = ~bits_at(shadow.common_bits("initialized"), granules)
        missing &= ~bits_at(shadow.common_bits("alarm"), granules)
        if not missing.any():
            return None
        row, column = (int(each[0]) for each in np.nonzero(missing))
        lane = int(pattern.lanes[row])
        address = max(int(granules[row, column]) << shadow.shift, base + int(pattern.offsets[lane]))
        array, offset = names.shared(address)
    elif space == "local":
        first = worker.warp_number(worker.field("running")) * LANES
        found = shadow.unwritten_local(worker, first, pattern, base, nbytes)
        if found is None:
            return None
        lane, address = found
        array, offset = LOCAL, address
    else:
        found = _unwritten_device(names, pattern, base, nbytes)
        if found is None:
            return None
        lane, address = found
        array, offset = names.device(address)
    start = base + int(pattern.offsets[lane])
    if space == "local" and start >= WINDOWS["local"]:
        # A generic address; the offset found is from the start of the thread's local memory.
        start -= WINDOWS["local"]
    number = numbers[min((address - start) // max(nbytes // len(numbers), 1), len(numbers) - 1)]
    warp = worker.warp_number(worker.field("running"))
    thread = names.thread(warp * LANES + lane)
    return never_written(names, number, thread, worker.field("block"), array, offset)


def never_written(
    names: Names, number: int, thread: Dim3, block: int, array: str, offset: int
) -> Finding:
    """A read of a byte that was never written, by a thread of the block with this number."""
    here, where = names.site(number, thread), names.block(block)
    place = f"byte {offset} of '{array}'" if array else f"byte {offset} of an array"
    return Finding(
        check="initcheck",
        kind="uninitialized",
        message=f"uninitialized: thread {thread} of block {where} reads {place} at {here}, "
        "which was never written",
        block=where,
        here=here,
        array=array,
        offset=offset,
    )


def _unwritten_device(
    names: Names, pattern: Pattern, base: int, nbytes: int
) -> tuple[int, int] | None:
    for lane in pattern.lanes.tolist():
        address = base + int(pattern.offsets[lane])
        found = names.memory.find(address)
        written = names.memory.written(found.address) if found is not None else None
        if found is None or written is None:
            continue
        part = written[address - found.address :][:nbytes]
        if not part.all():
            return lane, address + int(np.argmin(part))
    return None


def uninitialized_flag(
    names: Names, block: int, threads: tuple[int, int], numbers: tuple[int, int], address: int
) -> Finding:
    """A thread reads a flag in shared memory that another one writes first, with no barrier between
    (`threads` and `numbers`, of instructions: those of the two)."""
    here, first = (
        names.site(number, names.thread(thread))
        for number, thread in zip(numbers, threads, strict=True)
    )
    array, offset = names.shared(address)
    return Finding(
        check="initcheck",
        kind=UNINITIALIZED_FLAG,
        message=(
            f"{UNINITIALIZED_FLAG}: thread {here.thread} of block {names.block(block)} at {here} "
            f"reads byte {offset} of '{array}', which thread {first.thread} at {first} writes for "
            f"the first time, with no barrier between: {OLD_FLAG}"
        ),
        block=names.block(block),
        here=here,
        other=first,
        array=array,
        offset=offset,
    )
