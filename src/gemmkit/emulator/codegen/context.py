"""What the writers of all blocks of a kernel share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.areas import Areas
from gemmkit.emulator.codegen.ir import Function, Value
from gemmkit.emulator.codegen.registers import RegisterMap
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.ptx.module import Register

# The parameters of a warp's function: the worker, the warp, scratch.
C, W, T = (Value("ptr", f"%{name}") for name in "cwt")

# Where the operands and results of an instruction lie that runs through Python: in scratch, as
# (offset, width).
Outside = dict[int, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]


@dataclass(frozen=True, slots=True)
class CodegenContext:
    """The function that is written, facts about the kernel, and places.

    With `sanitize` the code tells the sanitizers what it does.
    """

    f: Function
    analysis: Analysis
    registers: RegisterMap
    areas: Areas
    symbols: Callable[[str], Value | None]
    outside: Outside
    sanitize: bool

    @property
    def shadows(self) -> Mapping[Register, Register]:
        """Registers whose undefined bits are tracked, each with its shadow."""
        return self.analysis.shadows

    def access(self, name: str) -> str:
        """The runtime's function that makes an access."""
        watched = self.sanitize and "_local_" not in name
        return PREFIX + name if watched else name
