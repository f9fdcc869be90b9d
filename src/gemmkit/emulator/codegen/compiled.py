"""`KernelText`, a kernel's PTX, and `CompiledKernel`, what is made of it and kept in the cache."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from gemmkit.errors import DeviceError

if TYPE_CHECKING:
    from gemmkit.emulator.codegen.areas import Areas
    from gemmkit.emulator.codegen.operands import Action
    from gemmkit.emulator.ptx.cfg import ControlFlow
    from gemmkit.emulator.ptx.module import Module

# The function of the object code that runs a warp.
WARP_FUNCTION = "warp"


class KernelText:
    """One kernel of a PTX text; it is parsed when something about its instructions is needed.

    `file` is what messages call the PTX, where it is what the user wrote.
    """

    def __init__(self, ptx: str, entry: str, file: str = "") -> None:
        self.ptx, self.entry, self._file = ptx, entry, file

    @cached_property
    def module(self) -> Module:
        """The PTX text.

        Raises:
            PtxSyntaxError: it cannot be read.
            DeviceError: it has no such kernel.
        """
        from gemmkit.emulator.ptx.parser import parse

        module = parse(self.ptx, self._file, self.entry)
        if self.entry not in module.kernels:
            known = ", ".join(module.kernels) or "none"
            raise DeviceError(f"the PTX has no kernel '{self.entry}'; it has: {known}")
        return module

    @cached_property
    def flow(self) -> ControlFlow:
        """The kernel's instructions, which counts refer to by number.

        Raises:
            UnsupportedInstruction: one is not in the table.
        """
        from gemmkit.emulator.ptx.cfg import ControlFlow

        return ControlFlow.of(self.module.kernels[self.entry])

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """What each instruction reads and writes."""
        from gemmkit.emulator.codegen.operands import actions_of

        return actions_of(self.flow)

    @cached_property
    def areas(self) -> Areas:
        """Which part of a worker's memory belongs to which instruction."""
        from gemmkit.emulator.codegen.areas import Areas

        return Areas(self.flow, self.actions)


class CompiledKernel(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache holds of a kernel: object code and how to run it. Sizes are in bytes.

    `modules` are those of the runtime that it calls. `sites_start` is where the records of its
    memory instructions begin in a worker's memory, and `counts_as` what each of them holds in its
    field of that name. `uses_variables` says whether it uses module-scope variables. `turn_cost` is
    its number of instructions, `exit_block` that of its basic blocks. `orders_blocks` says whether
    blocks may make an order among themselves: none can without fences.
    """

    code: bytes
    calls: tuple[str, ...]
    modules: tuple[str, ...]
    worker_bytes: int
    warp_bytes: int
    scratch_bytes: int
    shared_base: int
    shared_bytes: int
    local_bytes: int
    parameter_bytes: int
    uses_variables: bool
    sites_start: int
    counts_as: tuple[int, ...]
    turn_cost: int
    exit_block: int
    clears_registers: bool
    orders_blocks: bool
    tracks: bool
    may_hold_undefined: bool
    outside: dict[int, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]
