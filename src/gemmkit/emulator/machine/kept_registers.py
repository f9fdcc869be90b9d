"""`KeptRegisters`: where the warps of a kernel keep the registers that live across basic blocks."""

from __future__ import annotations

from functools import cached_property

from gemmkit.emulator.codegen import arithmetic
from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.layout import vector_bytes
from gemmkit.emulator.codegen.registers import RegisterMap
from gemmkit.emulator.codegen.tracking import shadows
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.ptx.module import Register


class KeptRegisters:
    """Those of one kernel; found anew, as the code in the cache does not tell."""

    def __init__(self, kernel: LoadedKernel) -> None:
        self._kernel = kernel

    @cached_property
    def _analysis(self) -> Analysis:
        flow, actions = self._kernel.flow, self._kernel.actions
        analysis = Analysis(flow, actions, arithmetic.scalar_native)
        if self._kernel.compiled.tracks:
            followed = shadows(actions, analysis.unset)
            analysis = Analysis(flow, actions, arithmetic.scalar_native, followed)
        return analysis

    @cached_property
    def _map(self) -> RegisterMap:
        return RegisterMap(self._analysis)

    def lives_in(self, register: Register, block: int) -> bool:
        """Whether a basic block may read what a register holds before."""
        number = self._analysis.registers.get(register)
        return number is not None and bool(self._analysis.live_in[block] >> number & 1)

    def is_scalar(self, register: Register) -> bool:
        """Whether one value serves all lanes."""
        return bool(self._analysis.scalar >> self._analysis.registers[register] & 1)

    def span(self, register: Register) -> tuple[int, int]:
        """The offset in a warp's memory, and the bytes, of a register that lives across blocks."""
        bits = TYPES[register.type].bits
        if self.is_scalar(register):
            return self._map.scalar(register), 8
        if bits == 1:
            return self._map.predicate(register), 4
        return self._map.slot(register).offset, vector_bytes(bits)

    @cached_property
    def crossing(self) -> frozenset[Register]:
        """The registers that live across blocks."""
        live = 0
        for block, inside in enumerate(self._analysis.live_in):
            live |= inside | self._analysis.live_out(block)
        numbers = self._analysis.registers.items()
        return frozenset(register for register, number in numbers if live >> number & 1)
