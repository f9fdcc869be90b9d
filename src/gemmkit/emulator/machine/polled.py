"""What the warps of a block poll, which has been found to be stalled."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from gemmkit.emulator.codegen.addresses import space_of
from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.layout import RUNNING, WINDOWS
from gemmkit.emulator.codegen.loops import Loops
from gemmkit.emulator.codegen.operands import Action, source_widths
from gemmkit.emulator.codegen.polls import Polls
from gemmkit.emulator.isa.cluster import divided
from gemmkit.emulator.isa.semantics import OPERATIONS, evaluate
from gemmkit.emulator.isa.semantics.raw import UNSIGNED
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.machine.kept_registers import KeptRegisters
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.module import Immediate, Register, Symbol
from gemmkit.emulator.ptx.shared_names import shared_array


class Poll(NamedTuple):
    """An instruction by which lanes of a warp (a mask) poll memory of a space; where that is, if
    it is known, and how many bytes."""

    number: int
    lanes: int
    space: str
    address: int | None
    nbytes: int

    def variable(self, worker: Worker, memory: DeviceMemory) -> tuple[str, int | None]:
        """The array that a block polls, or nothing, and the byte in it, if that is known."""
        if self.space == "shared":
            if self.address is None:
                return "", None
            _, within = divided(self.address, worker.rank)
            return shared_array(worker.flow.kernel, within)
        at = self.address or worker.regions().get(self.number, 0)
        found = memory.find(at)
        if found is None:
            return "", None
        return found.name, None if self.address is None else at - found.address

    def text(self, worker: Worker, memory: DeviceMemory) -> str:
        """What a block polls, in words."""
        array, offset = self.variable(worker, memory)
        if offset is None or self.address is None:
            return f"a value in '{array}'" if array else f"a value in {self.space} memory"
        if self.space == "shared":
            rank, within = divided(self.address, worker.rank)
            held = worker.peers[rank].shared[within : within + self.nbytes]
        else:
            held = memory.view(self.address, self.nbytes)
        value = int.from_bytes(held.tobytes(), "little")
        of = f"byte {offset} of '{array}'" if array else f"byte {offset} of an array"
        return f"{of}, which is {value}"


class Polled:
    """What the warps of blocks of one kernel poll."""

    def __init__(self, kernel: LoadedKernel) -> None:
        self._kernel, self._flow = kernel, kernel.flow
        self._loops, self._polls = Loops(kernel.flow), Polls(kernel.flow, kernel.actions)
        self._kept = KeptRegisters(kernel)

    def kept_waiting(self, worker: Worker) -> tuple[int, int, int] | None:
        """A warp that polls, lanes of it (a mask) which wait for others and might change something
        if they ran, and the number of the instruction at which they would go on."""
        masks, exited = worker.warp_fields("mask"), worker.warp_fields("exited")
        for warp in np.flatnonzero(worker.warp_fields("status") == RUNNING).tolist():
            others = ~int(masks[warp]) & ~int(exited[warp])
            for block, lanes in worker.waiting_lanes(warp)[::-1]:
                waits = lanes & others & 0xFFFFFFFF
                if waits and not self._polls.waits_at(block) and self.by(worker, warp):
                    return warp, waits, self._flow.blocks[block].start
        return None

    def by(self, worker: Worker, warp: int) -> list[Poll]:
        """What a warp polls in the smallest loop around where it is."""
        header = worker.warp_fields
        at, lanes = int(header("block")[warp]), int(header("mask")[warp]) & 0xFFFFFFFF
        loop = next(
            (each for each in sorted(self._loops.around(at), key=len) if self._polls.in_loop(each)),
            set[int](),
        )
        lane = (lanes & -lanes).bit_length() - 1
        found = []
        for action in self._polls.in_loop(loop) if lanes else ():
            if action.operation != "mbarrier_test":
                space = space_of(action)
                address = self._address(worker, warp, lane, action, at, loop)
                if address is not None and space == "generic":
                    shared = WINDOWS["shared"] <= address < WINDOWS["local"]
                    space = "shared" if shared else "global"
                    address -= WINDOWS["shared"] * shared
                found.append(Poll(action.number, lanes, space, address, action.form.type.bytes))
        return found

    def _address(
        self,
        worker: Worker,
        warp: int,
        lane: int,
        action: Action,
        block: int,
        loop: Collection[int],
    ) -> int | None:
        """The address at which a lane polls."""
        if action.address is None:
            return None
        base, offset = action.address.base, action.address.offset
        if isinstance(base, Immediate):
            return base.value + offset
        if isinstance(base, Symbol):
            start = self._symbol(worker, base.name)
        else:
            start = self._value(worker, warp, lane, base, block, loop)
        return None if start is None else start + offset

    def _symbol(self, worker: Worker, name: str) -> int | None:
        """The address of a variable of the kernel or the module."""
        kernel, variables = self._flow.kernel, self._kernel.text.module.globals
        if name in kernel.shared:
            return kernel.shared[name].offset
        return worker.field("globals") + variables[name].offset if name in variables else None

    def _value(
        self,
        worker: Worker,
        warp: int,
        lane: int,
        register: Register,
        block: int,
        loop: Collection[int],
    ) -> int | None:
        """The value of a register in the loop whose head is a block, if it is kept across basic
        blocks or computed from those that are."""
        bits = TYPES[register.type].bits
        if bits < 32:
            return None
        if self._kept.lives_in(register, block):
            at = self._kept.span(register)[0]
            at += 0 if self._kept.is_scalar(register) else lane * (bits // 8)
            held = worker.warp_memory.reshape(worker.warps, -1)[warp, at : at + bits // 8]
            return int.from_bytes(held.tobytes(), "little")
        inside = [self._flow.blocks[each] for each in loop]
        by = [
            each
            for some in inside
            for each in self._kernel.actions[some.start : some.end]
            if register in each.dests
        ]
        if len(by) != 1 or by[0].operation not in OPERATIONS or by[0].guard is not None:
            return None
        (action,), sources = by, []
        for each, width in zip(action.sources, source_widths(action), strict=True):
            value: int | None = None
            if isinstance(each, Immediate):
                value = each.value
            elif isinstance(each, Symbol):
                value = self._symbol(worker, each.name)
            elif isinstance(each, Register):
                value = self._value(worker, warp, lane, each, block, loop)
            if value is None or width < 8:
                return None
            sources.append(np.asarray(value & (1 << width) - 1, UNSIGNED[width]))
        return int(evaluate(action.form, sources)[action.dests.index(register)])
