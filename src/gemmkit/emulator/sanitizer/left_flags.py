"""Flags and counters of `__device__` variables, by which blocks learn of each other, that a launch
leaves set.

The next launch finds them as this one leaves them: its blocks may wait for nothing and read what
this launch wrote, or none is the last one. But a barrier that flips a bit, or compares generations,
works from each value that it leaves; so a second launch decides, or a
third one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from gemmkit.emulator.machine.memory import Bytes, DeviceMemory
from gemmkit.emulator.sanitizer.cross_block_races import Actor
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import Finding

FLAG_LEFT_SET = "flag left set"
_FLAG_BYTES = 4
# What is said as long as no second launch has shown more.
_UNDECIDED = "the next launch begins with that"


def left_flags(
    names: Names,
    memory: DeviceMemory,
    variables: Collection[str],
    before: Sequence[tuple[Bytes, Bytes]],
    observed: Mapping[int, Actor],
) -> Iterator[tuple[Finding, int]]:
    """A finding for each read by which blocks observe flags that the launch leaves with another
    value than they had, with the number of the first such block. `decided` says what becomes of it.

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


def decided(finding: Finding, how: str) -> Finding:
    """The finding with what is different in a later launch; `how` says it."""
    return msgspec.structs.replace(finding, message=finding.message.replace(_UNDECIDED, how))


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
        f"{FLAG_LEFT_SET}: byte {offset} of '{array}', where thread {here.thread} of block {block} "
        f"sees at {here} what another block has done, is {_old(before, address)} before the launch "
        f"and {_now(memory, address)} after it, and {_UNDECIDED}; set it back before the kernel "
        f"ends, or give what the host sets it to before each launch: --constant {array}=0"
    )
    return Finding(
        check="synccheck",
        kind=FLAG_LEFT_SET,
        message=text,
        block=block,
        here=here,
        array=array,
        offset=offset,
        count=len(addresses),
    )
