"""`KernelText`, a kernel's PTX, and `CompiledKernel`, the cached result of compiling it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec

from gemmkit.emulator.clusters import ClusterDirectives
from gemmkit.errors import DeviceError

if TYPE_CHECKING:
    from gemmkit.emulator.codegen.areas import Areas
    from gemmkit.emulator.codegen.operands import Action
    from gemmkit.emulator.numerics.rules import Capability
    from gemmkit.emulator.ptx.cfg import ControlFlow
    from gemmkit.emulator.ptx.module import Module

# A text that is parsed takes some 10 MB; a command uses the same few kernels again and again.
KEPT_TEXTS = 8

# The name of the warp function in the object code.
WARP_FUNCTION = "warp"


class KernelText:
    """One kernel of a PTX text, parsed when its instructions are needed.

    `file` is the name of the PTX in messages, if the user wrote it. `capability` is the compute
    capability of the board that it runs on, by default that of the PTX's target. With `stops` its
    warps can follow a schedule.
    """

    def __init__(
        self,
        ptx: str,
        entry: str,
        file: str = "",
        capability: Capability | None = None,
        *,
        stops: bool = False,
    ) -> None:
        self.ptx, self.entry, self._file = ptx, entry, file
        self._capability, self.stops = capability, stops

    @classmethod
    @lru_cache(maxsize=KEPT_TEXTS)
    def of(
        cls, ptx: str, entry: str, file: str = "", capability: Capability | None = None
    ) -> KernelText:
        """The text of these arguments; the ones used last are not parsed again."""
        return cls(ptx, entry, file, capability)

    def with_stops(self) -> KernelText:
        """The same kernel, whose warps can follow a schedule."""
        return KernelText(self.ptx, self.entry, self._file, self._capability, stops=True)

    @property
    def key(self) -> str:
        """What its code depends on: tensor cores differ by the board."""
        digest = hashlib.sha256(self.ptx.encode()).hexdigest()
        board = self._capability if "mma." in self.ptx else None
        stops = "/stops" if self.stops else ""
        return f"{digest}/{self.entry}{stops}" + ("" if board is None else "/{}.{}".format(*board))

    @cached_property
    def module(self) -> Module:
        """The parsed PTX text.

        Raises:
            PtxSyntaxError: it cannot be read.
            DeviceError: it has no such kernel.
        """
        from gemmkit.emulator.ptx.parsed import parsed

        module = parsed(self.ptx, self._file, self.entry)
        if self.entry not in module.kernels:
            known = ", ".join(module.kernels) or "none"
            raise DeviceError(f"the PTX has no kernel '{self.entry}'; it has: {known}")
        return module

    @cached_property
    def flow(self) -> ControlFlow:
        """The kernel's instructions; counts refer to them by number.

        Raises:
            UnsupportedInstruction: one is not in the table.
        """
        from gemmkit.emulator.ptx.cfg import ControlFlow

        kernel = self.module.kernels[self.entry]
        if self._capability is not None:
            kernel = replace(kernel, capability=self._capability)
        return ControlFlow.of(kernel, stops=self.stops)

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """What each instruction reads and writes."""
        from gemmkit.emulator.codegen.operands import actions_of

        return actions_of(self.flow)

    @cached_property
    def areas(self) -> Areas:
        """The offsets of each instruction's data in a worker's buffer."""
        from gemmkit.emulator.codegen.areas import Areas

        return Areas(self.flow, self.actions)


class CompiledKernel(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache holds for a kernel: object code and how to run it. Sizes are in bytes.

    `modules` are the runtime modules that it calls. `sites_start` is the offset of the memory
    records in a worker's buffer, and `counts_as` the value of that field for each record.
    `uses_variables`: it uses module-scope variables; `addresses_parameters`: it takes the address
    of a parameter. `turn_cost` is the number of its instructions, `exit_block` that of its basic
    blocks. `orders_blocks`: its blocks may synchronize with each other, which takes fences.
    `polls`: it may poll memory until others have changed it.
    `reduces_in_bulk`: it has bulk reductions to global memory, which are atomic only if blocks run
    one at a time.
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
    cluster: ClusterDirectives
    parameter_bytes: int
    uses_variables: bool
    addresses_parameters: bool
    sites_start: int
    counts_as: tuple[int, ...]
    turn_cost: int
    exit_block: int
    clears_registers: bool
    orders_blocks: bool
    polls: bool
    reduces_in_bulk: bool
    tracks: bool
    outside: dict[int, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]
