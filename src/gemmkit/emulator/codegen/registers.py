"""Assigns memory to each register that lives across basic blocks."""

from __future__ import annotations

from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.layout import WARP_REGISTERS, vector_bytes
from gemmkit.emulator.codegen.values import Slot
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.ptx.module import Register

# Registers with the lanes' own coordinates come first.
THREAD_NUMBERS = {
    name: Slot("w", WARP_REGISTERS + index * vector_bytes(32), 32)
    for index, name in enumerate(("%tid.x", "%tid.y", "%tid.z"))
}
_FIRST_FREE = WARP_REGISTERS + len(THREAD_NUMBERS) * vector_bytes(32)


class RegisterMap:
    """Offsets in a warp's memory: vectors, then scalars, then predicates."""

    def __init__(self, analysis: Analysis) -> None:
        crossing = 0
        for block, live in enumerate(analysis.live_in):
            crossing |= live | analysis.live_out(block)
        self._slots: dict[Register, Slot] = {}
        scalars: list[Register] = []
        predicates: list[Register] = []
        end = _FIRST_FREE
        for register, number in analysis.registers.items():
            if not crossing >> number & 1:
                continue
            bits = TYPES[register.type].bits
            if analysis.scalar >> number & 1:
                scalars.append(register)
            elif bits == 1:
                predicates.append(register)
            else:
                self._slots[register] = Slot("w", end, bits)
                end += vector_bytes(bits)
        self._scalars = {each: end + 8 * index for index, each in enumerate(scalars)}
        end += 8 * len(scalars)
        self._predicates = {each: end + 4 * index for index, each in enumerate(predicates)}
        end += 4 * len(predicates)
        # An odd number of cache lines per warp: the same register of many warps does not compete
        # for one cache set.
        self.warp_bytes = 64 * (-(-end // 64) | 1)

    def slot(self, register: Register) -> Slot:
        """The slot of a vector register."""
        return self._slots[register]

    def predicate(self, register: Register) -> int:
        """Offset of a predicate's 32 bits in the warp's memory."""
        return self._predicates[register]

    def scalar(self, register: Register) -> int:
        """Offset of a scalar in the warp's memory."""
        return self._scalars[register]
