"""Who did what, where: instructions, threads and arrays as findings name them."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.counters.accesses import DYNAMIC
from gemmkit.emulator.launch import Dim3, LaunchRequest
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.names import source_name
from gemmkit.record import AccessSite

_STRONG = (".volatile", ".relaxed", ".acquire", ".release", ".acq_rel")


@dataclass(frozen=True, slots=True)
class Names:
    """Names things of one launch."""

    flow: ControlFlow
    actions: tuple[Action, ...]
    request: LaunchRequest
    memory: DeviceMemory

    def thread(self, number: int) -> Dim3:
        """A thread's place in its block."""
        x, y, _ = self.request.block
        return number % x, number // x % y, number // (x * y)

    def lane(self, warp: int, lane: int) -> Dim3:
        """The same of a warp's lane."""
        return self.thread(warp * LANES + lane)

    def block(self, number: int) -> Dim3:
        """A block's place in the grid."""
        x, y, _ = self.request.grid
        return number % x, number // x % y, number // (x * y)

    def site(self, number: int, thread: Dim3 | None) -> AccessSite:
        """An instruction and who ran it."""
        instruction = self.flow.kernel.body[number]
        source = instruction.source
        return AccessSite(
            file=source.file if source is not None else "PTX",
            line=source.line if source is not None else instruction.line,
            instruction=instruction.opcode,
            thread=thread,
            called_from=source.called_from if source is not None else (),
        )

    def shared(self, address: int) -> tuple[str, int]:
        """The variable at an address in shared memory, and the byte in it."""
        for name, variable in self.flow.kernel.shared.items():
            if variable.offset <= address < variable.offset + variable.size:
                return source_name(name), address - variable.offset
        kernel = self.flow.kernel
        start = kernel.shared_base + kernel.shared_bytes
        return DYNAMIC, address - (start if address >= start else kernel.shared_base)

    def device(self, address: int) -> tuple[str, int]:
        """The allocation nearest to an address, and the byte in it (or outside of it)."""
        found = self.memory.nearest(address)
        if found is None:
            return "", 0
        return found.name, address - found.address

    def strong(self, number: int) -> bool:
        """Whether an access is one that may meet others of its kind: atomic, or volatile."""
        action = self.actions[number]
        named = any(word in action.form.opcode for word in _STRONG)
        return named or action.operation in ("atomic", "reduction", "compare_and_swap")


def verb(action: Action) -> str:
    """What an access does."""
    if action.operation == "load":
        return "reads"
    if action.operation == "copy_async":
        return "copies to"
    return "writes" if action.operation == "store" else "updates"


def at(site: AccessSite) -> str:
    """A site in a sentence: the thread and the line."""
    if site.thread is None:
        return f"a thread at {site}"
    return f"thread {site.thread} at {site}"
