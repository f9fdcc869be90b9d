"""Who did what, where: instructions, threads and arrays as findings name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.counters.accesses import DYNAMIC
from gemmkit.emulator.launch import Dim3, LaunchRequest
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import SourceLine
from gemmkit.emulator.ptx.names import source_name
from gemmkit.emulator.sanitizer.missing_barriers import MissingBarrier, MissingBarriers
from gemmkit.emulator.sanitizer.shared_arrays import bounds
from gemmkit.record import CUDA_HEADERS, AccessSite

# As NVRTC's line tables have them, or nvcc's.
_CUDA_HEADER = re.compile(CUDA_HEADERS + r"|.*/(cuda[^/]*|cu\d+|targets/[^/]+)/include/")
_STRONG = (".volatile", ".relaxed", ".acquire", ".release", ".acq_rel")


@dataclass(frozen=True)
class Names:
    """Names things of one launch."""

    flow: ControlFlow
    actions: tuple[Action, ...]
    request: LaunchRequest
    memory: DeviceMemory
    # By the number of an instruction, the variable in shared memory that it is to touch.
    arrays: Mapping[int, str] = field(default_factory=dict)

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
        file, line, calls = _out_of_headers(source or SourceLine("PTX", instruction.line))
        return AccessSite(
            file=file, line=line, instruction=instruction.opcode, thread=thread, called_from=calls
        )

    @cached_property
    def missing_barriers(self) -> MissingBarriers:
        """Between which lines barriers are missing."""
        return MissingBarriers(self.flow, lambda number: self.site(number, None))

    def missing_barrier(
        self, worker: Worker, earlier: int, later: int, *, within_warp: bool
    ) -> MissingBarrier | None:
        """Where two instructions that race stand, as seen from the last barrier of the block; this
        is how they ran, which says little of different warps."""
        if any(is_partial_barrier(action) for action in self.actions):
            return None
        warp = worker.warp_number(worker.field("running"))
        last = int(worker.warp_fields("instruction")[warp])
        operation = self.flow.forms[last].operation
        if last and operation != "barrier":
            return None
        barrier = last if operation == "barrier" else None
        how = (
            self.missing_barriers.between_lanes
            if within_warp
            else self.missing_barriers.between_warps
        )
        return how(earlier, later, barrier)

    def shared(self, address: int) -> tuple[str, int]:
        """The variable at an address in shared memory, and the byte in it."""
        for name, variable in self.flow.kernel.shared.items():
            if variable.offset <= address < variable.offset + variable.size:
                return source_name(name), address - variable.offset
        kernel = self.flow.kernel
        start = kernel.shared_base + kernel.shared_bytes
        return DYNAMIC, address - (start if address >= start else kernel.shared_base)

    def part(self, number: int) -> tuple[int, int]:
        """First byte and size of the shared memory that an instruction may touch: its variable, or
        all of it."""
        kernel = self.flow.kernel
        whole = kernel.shared_bytes + self.request.shared_bytes
        if number not in self.arrays:
            return kernel.shared_base, whole
        static, end = kernel.shared_base + kernel.shared_bytes, kernel.shared_base + whole
        return bounds(kernel.shared[self.arrays[number]], static, end)

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


def _out_of_headers(source: SourceLine) -> tuple[str, int, tuple[str, ...]]:
    """File, line and calls of the innermost place that is not in a header of CUDA's own."""
    places = [str(source), *source.called_from]
    for number, place in enumerate(places):
        file, _, line = place.rpartition(":")
        if not _CUDA_HEADER.match(file):
            return file, int(line), tuple(places[number + 1 :])
    return source.file, source.line, source.called_from


def is_partial_barrier(action: Action) -> bool:
    """Whether an instruction is a barrier that need not be for the whole block."""
    counted = action.operation == "barrier" and len(action.sources) > 1 and not action.dests
    return counted or action.operation == "barrier_arrive"


def verb(action: Action, *, in_global: bool = False) -> str:
    """What an access does in shared memory, or in global memory, from where cp.async reads."""
    if action.operation == "load" or (in_global and action.operation == "copy_async"):
        return "reads"
    if action.operation == "copy_async":
        return "copies to"
    return "writes" if action.operation == "store" else "updates"


def at(site: AccessSite) -> str:
    """A site in a sentence: the thread and the line."""
    if site.thread is None:
        return f"a thread at {site}"
    return f"thread {site.thread} at {site}"
