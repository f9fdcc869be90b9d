"""Flags of `__device__` variables, by which blocks wait for each other, that a launch leaves set.

The next launch finds them as this one leaves them: its blocks wait for nothing, and read what this
launch wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gemmkit.emulator.machine.memory import Bytes, DeviceMemory
from gemmkit.emulator.sanitizer.cross_block_races import Actor
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import Finding

_FLAG_BYTES = 4


def left_flags(
    names: Names,
    memory: DeviceMemory,
    variables: Collection[str],
    before: Sequence[tuple[Bytes, Bytes]],
    observed: Mapping[int, Actor],
) -> Iterator[tuple[Finding, int]]:
    """A finding for each read by which blocks observe flags that the launch leaves with another
    value than they had, with the number of the first such block.

    `observed` has, by address, the last observer; `before` what memory held before the launch, as
    `DeviceMemory.snapshot` returns it.
    """
    reads: dict[int, list[int]] = {}
    for address in sorted(observed):
        found = memory.find(address)
        if (
            found is not None
            and found.name in variables
            and _old(before, address) != _now(memory, address)
        ):
            reads.setdefault(observed[address].number, []).append(address)
    for addresses in reads.values():
        by = observed[addresses[0]]
        yield _finding(names, memory, before, addresses, by), by.block


def _now(memory: DeviceMemory, address: int) -> int:
    return int.from_bytes(memory.view(address, _FLAG_BYTES).tobytes(), "little")


def _old(before: Sequence[tuple[Bytes, Bytes]], address: int) -> int:
    return held_before(before, address, _FLAG_BYTES) or 0


def held_before(before: Sequence[tuple[Bytes, Bytes]], address: int, nbytes: int) -> int | None:
    """The number that some bytes of memory held before the launch, if that is known."""
    for held, kept in before:
        start = address - held.ctypes.data
        if 0 <= start <= len(held) - nbytes:
            return int.from_bytes(kept[start : start + nbytes].tobytes(), "little")
    return None


def _finding(
    names: Names,
    memory: DeviceMemory,
    before: Sequence[tuple[Bytes, Bytes]],
    addresses: Sequence[int],
    by: Actor,
) -> Finding:
    address = addresses[0]
    array, offset = names.device(address)
    here, block = names.site(by.number, names.thread(by.thread)), names.block(by.block)
    text = (
        f"flag left set: byte {offset} of '{array}', by which thread {here.thread} of block "
        f"{block} waits for another block at {here}, is {_old(before, address)} before the launch "
        f"and {_now(memory, address)} after it: the next launch's blocks do not wait; set it "
        "back before the kernel ends"
    )
    return Finding(
        check="synccheck",
        kind="flag left set",
        message=text,
        block=block,
        here=here,
        array=array,
        offset=offset,
        count=len(addresses),
    )
