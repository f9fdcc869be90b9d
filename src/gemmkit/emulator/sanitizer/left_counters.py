"""Counters in global memory that a launch leaves set, so that the next one counts on from there.

What counts arrivals or hands out work, such as the counter by which the last block of split-k finds
that it is the last, must be as before when the launch ends, unless the host sets it each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gemmkit.emulator.codegen.ordering import ATOMICS
from gemmkit.emulator.machine.memory import Allocation, DeviceMemory
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import Finding

COUNTER_LEFT_SET = "counter left set"
# An argument of gemmkit's vocabulary: zero between launches, as each launch may expect.
SEMAPHORES = "semaphores"
_COUNTER = np.dtype("<u4")


def left_semaphores(
    names: Names, memory: DeviceMemory, regions: Mapping[int, int]
) -> Iterator[Finding]:
    """The finding that a launch does not leave all of the argument `semaphores` at zero.

    `regions` has, by instruction, the first byte of the allocation that it accessed last.
    """
    for at in sorted(set(regions.values())):
        found = memory.find(at)
        if found is None or found.name != SEMAPHORES:
            continue
        counters = memory.view(found.address, found.nbytes // 4 * 4).view(_COUNTER)
        odd = np.flatnonzero(counters)
        number = _counts(names, regions, found)
        if odd.size and number is not None:
            text = (
                f"is {counters[odd[0]]} after the launch, and must be zero, as it was before: the "
                "next launch counts on from there"
            )
            yield _finding(names, found, 4 * int(odd[0]), number, text, int(odd.size))


def left_variable(
    names: Names,
    memory: DeviceMemory,
    regions: Mapping[int, int],
    address: int,
    how: str,
) -> Finding | None:
    """The finding that a later launch, which finds a variable as this one has left it (from an
    address on), goes another way; `how` says in which."""
    found = memory.find(address)
    number = None if found is None else _counts(names, regions, found)
    if found is None or number is None:
        return None
    text = (
        f"has changed after the launch, and {how}; set it back before the kernel "
        f"ends, or give what the host sets it to before each launch: --constant {found.name}=0"
    )
    return _finding(names, found, address - found.address, number, text, 1)


def _counts(names: Names, regions: Mapping[int, int], found: Allocation) -> int | None:
    """The first instruction that writes an allocation: an atomic, or else a store."""
    numbers = sorted(each for each, at in regions.items() if at == found.address)
    for operations in (ATOMICS, ("store",)):
        for number in numbers:
            if names.actions[number].operation in operations:
                return number
    return None


def _finding(
    names: Names, found: Allocation, offset: int, number: int, text: str, count: int
) -> Finding:
    here = names.site(number, None)
    return Finding(
        check="synccheck",
        kind=COUNTER_LEFT_SET,
        message=(
            f"{COUNTER_LEFT_SET}: byte {offset} of '{found.name}', which threads write at {here}, "
            f"{text}"
        ),
        block=names.block(0),
        here=here,
        array=found.name,
        offset=offset,
        count=count,
    )
