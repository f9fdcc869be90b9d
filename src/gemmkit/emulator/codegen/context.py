"""The code-generation context that the writers of all blocks of a kernel share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.areas import Areas
from gemmkit.emulator.codegen.ir import Function, Value
from gemmkit.emulator.codegen.registers import RegisterMap
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.ptx.module import Register

# The parameters of the warp function: worker, warp, scratch.
C, W, T = (Value("ptr", f"%{name}") for name in "cwt")

# Where operands and results of an instruction that Python executes are in scratch: (offset, width).
Outside = dict[int, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]


@dataclass(frozen=True, slots=True)
class CodegenContext:
    """The function being emitted, facts about the kernel, and where its data is.

    With `sanitize` the code reports to the sanitizers. `compact` code is compiled in less time, and
    calls functions for what occurs often. `shows_ranks` says whether registers hold
    addresses of shared memory with the rank of their block.
    """

    f: Function
    analysis: Analysis
    registers: RegisterMap
    areas: Areas
    symbols: Callable[[str], Value | None]
    outside: Outside
    sanitize: bool
    compact: bool
    shows_ranks: bool

    @property
    def shadows(self) -> Mapping[Register, Register]:
        """Registers whose undefined bits are tracked, each with its shadow."""
        return self.analysis.shadows

    def often(
        self,
        name: str,
        result: str,
        body: Callable[[Function, Sequence[Value]], Value | None],
        *arguments: Value,
    ) -> Value | None:
        """Emit what `body` writes: in compact code a call of a function of it."""
        if self.compact:
            return self.f.shared(name, result, body, *arguments)
        return body(self.f, arguments)

    def access(self, name: str) -> str:
        """The name of the runtime function that performs an access."""
        watched = self.sanitize and "_local_" not in name
        return PREFIX + name if watched else name
