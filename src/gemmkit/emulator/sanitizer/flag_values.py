"""`FlagValues`: the values that a flag, or a counter, has had, in order.

A thread that waits for a value may look late, when a later value is there. What it knows then is
only what the first value that lets it go on shows: it might have looked at that time. So a wait for
too small a count is found whatever the schedule was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gemmkit.emulator.codegen.flag_tests import FlagWait
from gemmkit.emulator.codegen.layout import LANES, WINDOWS
from gemmkit.emulator.isa.cluster import divided
from gemmkit.emulator.ptx.module import Register

# So many values are kept; of older ones nothing is known.
_MOST = 256


@dataclass(slots=True)
class FlagValues:
    """The values since they last rose or fell without turning back, each with how much was released
    when it was there. (A flag that is reset begins anew.)"""

    _values: list[tuple[int, int]] = field(default_factory=list)

    def wrote(self, value: int, released: int) -> bool:
        """A value was written; returns whether it is another than before."""
        values = self._values
        if values and values[-1][0] == value:
            return False
        if len(values) > 1 and (values[-1][0] < value) != (values[0][0] < values[-1][0]):
            values.clear()
        if len(values) == _MOST:
            del values[0]
        values.append((value, released))
        return True

    def differs(self, value: int) -> bool:
        """Whether a value is another than the last one, if that is known."""
        return bool(self._values) and self._values[-1][0] != value

    def first(self, satisfied: Callable[[int], bool], least: int) -> int | None:
        """How much was released when there was the first value that satisfies a wait, for one who
        knows of `least`; None if there was none."""
        values = self._values
        start = max((i for i, (_, released) in enumerate(values) if released <= least), default=0)
        found = (released for value, released in values[start:] if satisfied(value))
        return next(found, None)


# What the accesses of one instruction find, by address.
Looks = Mapping[int, "Look"]


@dataclass(frozen=True, slots=True)
class Look:
    """What a strong access finds: the value that is there after it and, if it is that of a wait,
    what the wait is for; which lanes of the warp have made it, if not all did; and the value before
    all strong accesses, if this is the first and it is known."""

    value: int
    wait: FlagWait | None = None
    operand: int = 0
    lanes: int | None = None
    initial: int | None = None

    def satisfied(self, value: int) -> bool:
        """Whether a value would let the thread go on where the one that is there does."""
        if self.wait is None:
            return False
        taken = self.wait.exit(self.value, self.operand)
        return taken > 0 and self.wait.exit(value, self.operand) == taken

    def sees(self, values: FlagValues, least: int, most: int) -> int:
        """How much of what was released the access shows to one who knows of `least`, of `most` in
        all."""
        if self.wait is None or not self.satisfied(self.value):
            return most
        found = values.first(self.satisfied, least)
        return most if found is None else max(found, least)


def flag_place(address: int, own: int) -> tuple[int, int]:
    """The rank of the block that has an address in shared memory, also a generic one, and the
    address there; `own` is the rank of the executing block."""
    start = WINDOWS["shared"]
    return divided(address - start if address >= start else address, own)


def operand_of(wait: FlagWait, address: int, lane: int) -> int:
    """What a lane's wait compares with, given where native code keeps the operand of each lane."""
    if not isinstance(wait.operand, Register):
        return wait.operand
    kind = np.uint64 if wait.bits == 64 else np.uint32
    raw = ctypes.string_at(address, LANES * np.dtype(kind).itemsize)
    return int(np.frombuffer(raw, kind)[lane])
