"""Names of instructions, threads and arrays as findings show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import loads_atomically
from gemmkit.emulator.isa.bulk_copies import is_reduction
from gemmkit.emulator.launch import Dim3, LaunchRequest
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import SourceLine
from gemmkit.emulator.ptx.places import source_place
from gemmkit.emulator.ptx.shared_names import shared_array
from gemmkit.emulator.sanitizer.missing_barriers import MissingBarrier, MissingBarriers
from gemmkit.emulator.sanitizer.missing_fences import MissingFences
from gemmkit.emulator.sanitizer.shared_arrays import bounds
from gemmkit.findings import AccessSite

_STRONG = (".volatile", ".relaxed", ".acquire", ".release", ".acq_rel")


@dataclass(frozen=True)
class Names:
    """The names of one launch."""

    flow: ControlFlow
    actions: tuple[Action, ...]
    request: LaunchRequest
    memory: DeviceMemory
    # By the number of an instruction, the shared variable that it is meant to access.
    arrays: Mapping[int, str] = field(default_factory=dict)

    def thread(self, number: int) -> Dim3:
        """A thread's coordinates in its block."""
        x, y, _ = self.request.block
        return number % x, number // x % y, number // (x * y)

    def lane(self, warp: int, lane: int) -> Dim3:
        """The coordinates of a warp's lane."""
        return self.thread(warp * LANES + lane)

    def block(self, number: int) -> Dim3:
        """A block's coordinates in the grid."""
        x, y, _ = self.request.grid
        return number % x, number // x % y, number // (x * y)

    def member_number(self, first: int, rank: int) -> int:
        """The number of the block of a rank in the cluster whose first block is given."""
        (gx, gy, _), (cx, cy, _) = self.request.grid, self.request.cluster_shape
        return first + rank % cx + gx * (rank // cx % cy + gy * (rank // (cx * cy)))

    def member(self, first: int, rank: int) -> Dim3:
        """The coordinates of that block in the grid."""
        return self.block(self.member_number(first, rank))

    def site(self, number: int, thread: Dim3 | None) -> AccessSite:
        """An instruction and the thread that executed it."""
        if number not in self._places:
            instruction = self.flow.kernel.body[number]
            source = instruction.named or SourceLine("PTX", instruction.line)
            self._places[number] = source_place(source)
        file, line, calls = self._places[number]
        opcode = self.flow.kernel.body[number].opcode
        return AccessSite(
            file=file, line=line, instruction=opcode, thread=thread, called_from=calls
        )

    @cached_property
    def _places(self) -> dict[int, tuple[str, int, tuple[str, ...]]]:
        """File, line and calls of the instructions that were asked for, by number."""
        return {}

    @cached_property
    def missing_barriers(self) -> MissingBarriers:
        """The kernel's analysis of missing barriers."""
        return MissingBarriers(self.flow, lambda number: self.site(number, None))

    @cached_property
    def missing_fences(self) -> MissingFences:
        """The kernel's analysis of missing proxy fences."""
        return MissingFences(self.flow, lambda number: self.site(number, None))

    @cached_property
    def _partial_barriers(self) -> bool:
        return any(map(is_partial_barrier, self.actions))

    def missing_barrier(
        self, worker: Worker, earlier: int, later: int, *, within_warp: bool
    ) -> MissingBarrier | None:
        """The missing barrier between two racing instructions, given the last barrier of the block.
        The order is that of execution, which says little about different warps."""
        if self._partial_barriers:
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
        return shared_array(self.flow.kernel, address)

    def part(self, number: int) -> tuple[int, int]:
        """First byte and size of the shared memory that an instruction may access: its variable, or
        all."""
        kernel = self.flow.kernel
        whole = kernel.shared_bytes + self.request.shared_bytes
        if number not in self.arrays:
            return kernel.shared_base, whole
        static, end = kernel.shared_base + kernel.shared_bytes, kernel.shared_base + whole
        return bounds(kernel.shared[self.arrays[number]], static, end)

    def device(self, address: int) -> tuple[str, int]:
        """The allocation nearest to an address, and the byte relative to its start."""
        found = self.memory.nearest(address)
        if found is None:
            return "", 0
        return found.name, address - found.address

    def strong(self, number: int) -> bool:
        """Whether an access may conflict with others of its kind: atomic, or volatile."""
        return is_strong(self.actions[number])


def is_strong(action: Action) -> bool:
    """Whether an access may conflict with others of its kind: atomic, or volatile."""
    named = any(word in action.form.opcode for word in _STRONG)
    return named or action.operation in ("atomic", "reduction", "compare_and_swap")


def is_partial_barrier(action: Action) -> bool:
    """Whether an instruction is a barrier that may be for a part of the block."""
    operands = 2 if action.dests else 1  # a reduction has a predicate
    counted = action.operation == "barrier" and len(action.sources) > operands
    return counted or action.operation == "barrier_arrive"


def verb(action: Action, *, in_global: bool = False) -> str:
    """What an access does in shared memory, or in global memory, which cp.async reads."""
    if (
        action.operation == "load"
        or loads_atomically(action)
        or (in_global and action.operation == "copy_async")
    ):
        return "reads"
    if action.operation == "copy_async":
        return "copies to"
    if is_bulk(action):
        if action.form["D"] != "global":
            return "reads"
        return "updates" if is_reduction(action.form) else "writes"
    return "writes" if action.operation == "store" else "updates"


def is_bulk(action: Action) -> bool:
    """Whether an instruction copies between global and shared memory asynchronously."""
    return action.operation in ("bulk_copy", "bulk_tensor")


def is_bulk_reduction(action: Action) -> bool:
    """Whether it updates global memory, each element atomically."""
    return is_bulk(action) and is_reduction(action.form)


def actor_text(action: Action, site: AccessSite, of: str) -> str:
    """Who makes an access, in words; `of` says in which block."""
    copy = "the bulk copy by " if is_bulk(action) else ""
    return f"{copy}thread {site.thread}{of} at {site}"


def at(site: AccessSite) -> str:
    """A site in a sentence: the thread and the line."""
    if site.thread is None:
        return f"a thread at {site}"
    return f"thread {site.thread} at {site}"
