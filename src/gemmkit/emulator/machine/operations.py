"""Instructions without native code, computed for one warp by the definitions of `isa.semantics`."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.cluster import mapped, ranks_of
from gemmkit.emulator.isa.fragments import defined_fragments
from gemmkit.emulator.isa.matrices import defined_products
from gemmkit.emulator.isa.semantics import OPERATIONS, evaluate
from gemmkit.emulator.machine.errors import refusal_error
from gemmkit.emulator.machine.half_atomics import RefusedAccess, atomic
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.phases import Phases
from gemmkit.emulator.machine.printing import Printer
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.scratch import lanes_of, read, write
from gemmkit.emulator.machine.warp_operations import WARP_OPERATIONS
from gemmkit.emulator.machine.warpgroups import Warpgroups
from gemmkit.emulator.machine.worker import Worker

if TYPE_CHECKING:
    from gemmkit.emulator.sanitizer.monitor import Sanitizer


class Operations:
    """Executes single instructions for the workers of a launch, one at a time."""

    def __init__(
        self, kernel: LoadedKernel, memory: DeviceMemory, sanitizer: Sanitizer | None = None
    ) -> None:
        self._kernel = kernel
        self._sanitizer = sanitizer
        self._memory = memory
        self.printer = Printer(memory)
        self._warpgroups = Warpgroups()
        self._lock = threading.Lock()

    def run(self, worker: Worker, warp: int, number: int, lanes: int) -> int:
        """Execute one instruction of one warp; 1 if it failed."""
        try:
            with self._lock:
                self._run(worker, worker.warp_number(warp), number, lanes)
        except RefusedAccess as refused:
            if self._sanitizer is None:
                worker.failure = refused.error
                return 1
            self._sanitizer.outside(worker, number, refused.thread, refused.address)
        except Refusal as refusal:
            self.refuse(worker, refusal)
            return 1
        except BaseException as error:
            worker.failure = error
            return 1
        return 0

    def refuse(self, worker: Worker, refusal: Refusal) -> None:
        """An asynchronous instruction is not valid: it ends the launch or, with sanitizers, is a
        finding that ends the block."""
        if self._sanitizer is None:
            # Native code may execute a few more instructions: the first failure counts.
            worker.failure = worker.failure or refusal_error(worker, refusal)
        else:
            self._sanitizer.refused(worker, refusal)
            worker.abandoned = True

    def _run(self, worker: Worker, warp: int, number: int, lanes: int) -> None:
        # A negative number asks which bits of an instruction's results are defined.
        shadow = number < 0
        action = self._kernel.actions[-1 - number if shadow else number]
        sources, dests = self._kernel.compiled.outside[number]
        if action.operation.startswith("wgmma"):
            self._warpgroups.execute(worker, warp, action, sources, lanes)
            return
        if action.operation == "set_registers":
            if worker.observer is not None:
                worker.observer.registers_set(warp, action)
            return
        active = lanes_of(lanes)
        operands = [read(worker, *each) for each in sources]
        if shadow:
            whole = action.operation == "multiply_matrices"
            results = (defined_products if whole else defined_fragments)(action.form, operands)
        else:
            results = self._compute(worker, warp, action, operands, active)
        for (offset, bits), result in zip(dests, results, strict=False):
            write(worker, offset, bits, result, active)

    def _compute(
        self,
        worker: Worker,
        warp: int,
        action: Action,
        operands: list[Any],
        active: NDArray[np.bool_],
    ) -> tuple[NDArray[Any], ...]:
        if action.operation in OPERATIONS:
            return evaluate(action.form, operands)
        if action.operation == "call":
            read = None
            if self._sanitizer is not None and self._sanitizer.tracks:
                read = partial(self._sanitizer.printed, worker, action.number)
            self.printer.call(worker, warp, operands[0], operands[1], active, read)
            return (np.zeros(LANES, np.uint32),) * len(action.dests)
        if action.operation == "map_address":
            to, blocks = operands[0].copy(), len(worker.peers)
            chosen = mapped(action.instruction, to[active], operands[1][active], blocks)
            to[active] = chosen
            return (to,)
        if action.operation == "cluster_rank":
            return (ranks_of(operands[0]),)
        if action.operation.startswith(("mbarrier", "bulk", "barrier_cluster")):
            if worker.phases is None:
                worker.phases = Phases(worker, self._memory)
            return worker.phases.execute(warp, action, operands, active)
        if action.operation in ("atomic", "reduction"):
            return (atomic(worker, self._memory, warp, action, operands, active),)
        return WARP_OPERATIONS[action.operation](action, operands, active)
