"""Runs the warps of a chunk; all warps at the same basic block run together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.isa.semantics import OPERATIONS
from gemmkit.emulator.isa.table import stop_of
from gemmkit.emulator.oracle import (
    access,
    arithmetic,
    bulk,
    matrix_access,
    tensor_copies,
    warp,
    warpgroups,
)
from gemmkit.emulator.oracle.calls import print_formatted
from gemmkit.emulator.oracle.chunk import WARP, Chunk, Group
from gemmkit.emulator.oracle.control import DONE, RUNNING, WAITING, Lanes, Rows
from gemmkit.emulator.oracle.definedness import Definedness
from gemmkit.emulator.oracle.memory import Fault
from gemmkit.emulator.oracle.phases import Phases
from gemmkit.emulator.oracle.repeats import PolledInVain, Repeats
from gemmkit.emulator.oracle.replay import Replay
from gemmkit.emulator.oracle.steps import PREDICATE, Step
from gemmkit.emulator.ptx.cfg import RETRIED, ControlFlow
from gemmkit.emulator.schedule import Schedule
from gemmkit.emulator.watching import SignalKind
from gemmkit.errors import DeviceError, UnsupportedInstruction

_MEMORY: Mapping[str, Callable[[Group, Step, Lanes, Tally], None]] = {
    "load": access.load,
    "store": access.store,
    "copy_async": access.copy_async,
    "atomic": access.atomic,
    "compare_and_swap": access.atomic,
    "reduction": access.atomic,
}
_MATRICES: Mapping[str, Callable[[Group, Step, Lanes, Tally], None]] = {
    "load": matrix_access.load_matrix,
    "store": matrix_access.store_matrix,
}
_LANEWISE: Mapping[str, Callable[[Group, Step, Lanes], None]] = {
    "convert_address": access.convert_address,
    "is_space": access.is_space,
    "create_policy": access.create_policy,
    "map_address": access.map_address,
    "cluster_rank": access.cluster_rank,
    "shuffle": warp.shuffle,
    "vote": warp.vote,
    "ballot": warp.ballot,
    "active_mask": warp.active_mask,
    "match_any": warp.match_any,
    "match_all": warp.match_all,
    "reduce_warp": warp.reduce_warp,
    "elect": warp.elect,
    "multiply_matrices": warp.multiply_matrices,
    "multiply_fragments": warp.multiply_fragments,
    "transpose_matrix": warp.transpose_matrix,
    "wgmma_multiply": warpgroups.multiply,
}
# Operations at the end of a block that say where a warp continues.
_MOVES_ON = frozenset(["branch", "exit", "barrier", "mbarrier_test", *RETRIED])
_NOTHING = frozenset(
    [
        *("no_operation", "set_registers", "copy_async_commit", "copy_async_wait"),
        *("bulk_commit", "bulk_wait", "bulk_acquire_map", "bulk_release_map"),
        "wgmma_fence",
    ]
)
# Operations whose order other warps can observe: then one warp runs at a time.
_UPDATES = frozenset(
    [
        *("mbarrier_init", "mbarrier_invalidate", "mbarrier_arrive", "mbarrier_transact"),
        "mbarrier_arrive_copies",
    ]
)
# Classes of instructions that may multiply and add.
_MULTIPLIES = frozenset(["fma", "fp64", "tensor"])
_ASKS = RETRIED | {"mbarrier_test"}
COPIES = frozenset(["bulk_copy", "bulk_store", "bulk_tensor"])
_IN_CLUSTERS = COPIES | {"map_address", "barrier_cluster_arrive"}
_ORDERED = (
    frozenset(["atomic", "compare_and_swap", "reduction", "call"]) | _UPDATES | _ASKS | _IN_CLUSTERS
)


def is_ordered(flow: ControlFlow) -> bool:
    """Whether a kernel's results may depend on the order of its warps without being wrong."""
    return any(form.operation in _ORDERED for form in flow.forms)


class Lockstep:
    """The run of one chunk; counts into `tally`, prints into `printed`."""

    def __init__(
        self,
        flow: ControlFlow,
        steps: tuple[Step, ...],
        chunk: Chunk,
        tally: Tally,
        printed: list[str],
        defined: Definedness | None = None,
        schedule: Schedule | None = None,
        left_out: frozenset[int] = frozenset(),
        repeats: Repeats | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        """`left_out` are the numbers of instructions whose results do not matter, `repeats` finds
        polls that never end, `ordered` says whether one warp runs at a time."""
        self._defined, self._left_out = defined, left_out
        self._flow, self._steps, self._chunk = flow, steps, chunk
        self._tally, self._printed = tally, printed
        self._together, self._repeats = not ordered, repeats
        # By row: the instruction, the lanes, the number of the barrier.
        self._waiting_at: dict[int, tuple[Step, Lanes, int]] = {}
        # What multiplies is of interest beside the copies that it may have to wait for.
        self._copies = chunk.watch is not None and any(
            form.operation in COPIES for form in flow.forms
        )
        self._phases = Phases(chunk)
        self._products = warpgroups.ProductGroups(chunk)
        # The block of the cluster whose turn it is, and in each block the warp, if one runs at a
        # time.
        self._begin_turns()
        self._replay: Replay | None = None
        if schedule is not None:
            self._replay = self._phases.replay = Replay(schedule, chunk, flow, self._where)

    def run(self) -> None:
        """Run until all warps have ended.

        Raises:
            DeviceError: an access out of bounds or misaligned, a trap, a deadlock, an endless poll;
                a step of the schedule is not possible.
        """
        warps = self._chunk.warps
        while True:
            runnable = np.flatnonzero(warps.status == RUNNING)
            if self._replay is not None:
                runnable = self._replay.allowed(runnable)
            if not len(runnable):
                if self._replay is not None and self._replay.advance():
                    self._begin_turns()
                    continue
                if self._phases.expire():
                    continue
                break
            if self._together and self._chunk.cluster_blocks == 1:
                block = warps.block[runnable].min()
                rows = runnable[warps.block[runnable] == block]
            else:
                rows = self._next(runnable)
            block = int(warps.block[rows[0]])
            self._run_block(Group(self._chunk, rows, whole=len(rows) == self._chunk.count))
            if self._repeats is not None:
                self._look_for_polls(self._repeats, int(rows[0]), block)
        if (warps.status != DONE).any():
            raise DeviceError(self._deadlock())
        if self._replay is not None:
            self._replay.finish()

    def _look_for_polls(self, repeats: Repeats, row: int, block: int) -> None:
        """A warp that polls in vain lets others run; if all do, the launch never ends."""
        repeats.ran(row, block, self._turns)
        if repeats.alone:
            self._phases.turn_over = True
            self._phases.polled = len(self._turns) > 1
        elif repeats.together:
            if not self._phases.expire():
                raise PolledInVain(self._polled(repeats))
            repeats.expired()

    def _begin_turns(self) -> None:
        """The first warp of the first block is next."""
        self._block, size = 0, self._chunk.warps_per_block
        self._turns = [block * size for block in range(self._chunk.count // size)]
        self._phases.turn_over = self._phases.polled = False

    def _next(self, runnable: Rows) -> Rows:
        """The warp whose turn it is: the same until it waits, ends or polls in vain, then the next
        one of its block. In a cluster the next block's turn begins once no warp of this one can
        run, or when one polls in vain."""
        first = self._turns[self._block] + self._phases.turn_over
        self._phases.turn_over = False
        size = self._chunk.warps_per_block
        blocks = runnable // size
        if self._phases.polled or self._block not in blocks:
            if self._block in blocks:
                self._turns[self._block] = first
            elif len(self._turns) > 1:
                self._turns[self._block] = self._block * size
            later = blocks[blocks > self._block]
            self._block = int((later if len(later) else blocks)[0])
            first = self._turns[self._block]
        self._phases.polled = False
        runnable = runnable[blocks == self._block]
        later = runnable[runnable >= first]
        chosen = (later if len(later) else runnable)[:1]
        self._turns[self._block] = int(chosen[0])
        return chosen

    def _run_block(self, group: Group) -> None:
        warps, rows = self._chunk.warps, group.rows
        number = int(warps.block[rows[0]])
        block = self._flow.blocks[number]
        active = warps.mask[rows]
        if self._replay is not None and not self._products.waits(int(rows[0])):
            (row,), first = rows.tolist(), self._steps[block.start]
            if self._replay.stops(row, number, self._guarded(group, first, active)[0]):
                return
        for step in self._steps[block.start : block.end]:
            lanes = self._guarded(group, step, active)
            if step.form.operation in RETRIED and not self._goes_on(group, step, lanes, number):
                return
            self._tally.executed[step.number] += len(rows)
            self._tally.lanes[step.number] += int(np.count_nonzero(lanes))
            if self._copies and step.form.opcode_class in _MULTIPLIES:
                self._signal("multiply", rows, number=step.number, count=1)
            if step.number in self._left_out:
                continue
            if self._defined is not None:
                self._defined.step(group, step, lanes, active)
            try:
                self._execute(group, step, lanes, active, number)
            except Fault as fault:
                raise DeviceError(self._describe(group, step, fault)) from None
        operation = self._flow.forms[block.end - 1].operation
        if operation not in _MOVES_ON:
            warps.go(rows, number + 1)
        self._release(rows)

    def _goes_on(self, group: Group, step: Step, lanes: Lanes, block: int) -> bool:
        """Whether a warp has the result of an instruction that waits."""
        if step.form.operation == "wgmma_wait":
            goes_on = self._products.wait(group, step, lanes)
            if goes_on:
                self._signal("wait products", group.rows, count=step.immediates[0])
                self._chunk.warps.go(group.rows, block + 1)
            return goes_on
        if step.form.operation == "mbarrier_try":
            return self._phases.ask(group, step, lanes, block)
        return self._phases.wait_in_cluster(group, step, lanes, block)

    def _guarded(self, group: Group, step: Step, active: Lanes) -> Lanes:
        guard = step.instruction.guard
        if guard is None:
            return active
        holds = group.read(guard.register, PREDICATE)
        return active & (~holds if guard.negated else holds)

    def _execute(self, group: Group, step: Step, lanes: Lanes, active: Lanes, block: int) -> None:
        operation = step.form.operation
        if operation == "move":
            arithmetic.move(group, step, lanes)
        elif operation in OPERATIONS:
            arithmetic.evaluate_step(group, step, lanes)
        elif operation in _MEMORY:
            table = _MATRICES if is_matrix(step.form) else _MEMORY
            table[operation](group, step, lanes, self._tally)
        elif operation in _LANEWISE:
            if operation == "wgmma_multiply":
                self._products.issue(group, lanes)
                if not self._chunk.data_matters:
                    return
            _LANEWISE[operation](group, step, lanes)
        elif operation == "wgmma_commit":
            self._products.commit(group, lanes)
            self._signal("commit", group.rows)
        elif operation == "branch":
            self._branch(group, step, lanes, active, block)
        elif operation == "exit":
            self._chunk.warps.leave(group.rows, lanes, block + 1)
        elif operation in ("barrier", "barrier_arrive"):
            self._barrier(group, step, lanes, block)
        elif operation in _UPDATES:
            self._phases.update(group, step, lanes)
        elif operation in ("bulk_commit", "bulk_wait") and self._replay is not None:
            self._replay.group(group, step, lanes)
        elif operation in ("bulk_copy", "bulk_store"):
            bulk.copy(group, step, lanes, self._phases, self._tally)
        elif operation == "barrier_cluster_arrive":
            self._phases.arrive_in_cluster(group, step, lanes)
        elif operation == "bulk_tensor":
            tensor_copies.copy(group, step, lanes, self._phases, self._tally)
        elif operation == "mbarrier_test":
            self._phases.ask(group, step, lanes, block)
        elif operation == "call":
            print_formatted(group, step, lanes, self._printed)
        elif operation == "trap":
            self._trap(step, lanes)
        elif operation not in _NOTHING and operation not in RETRIED:
            raise UnsupportedInstruction(f"the oracle does not know '{step.form.opcode}'")

    def _trap(self, step: Step, lanes: Lanes) -> None:
        if lanes.any():
            name = self._flow.kernel.source_name
            stop = stop_of(step.instruction)
            raise DeviceError(f"kernel '{name}': {stop} at {step.instruction.where}")

    def _branch(self, group: Group, step: Step, lanes: Lanes, active: Lanes, block: int) -> None:
        warps, (target, *following) = self._chunk.warps, self._flow.blocks[block].successors
        jumps, stays = lanes.any(axis=1), (active & ~lanes).any(axis=1)
        diverged = np.flatnonzero(jumps & stays)
        self._tally.divergent[step.number] += len(diverged)
        warps.go(group.rows[jumps & ~stays], target)
        for fall in following:
            warps.go(group.rows[stays & ~jumps], fall)
            for each in diverged.tolist():
                reconvergence = self._flow.reconvergence[block]
                warps.diverge(int(group.rows[each]), lanes[each], target, fall, reconvergence)

    def _barrier(self, group: Group, step: Step, lanes: Lanes, block: int) -> None:
        chunk, waits = self._chunk, step.form.operation == "barrier"
        if waits and chunk.watch is not None:
            chunk.watch.barrier(group.rows)
        operands = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]
        votes = np.zeros(len(group.rows), int)
        if step.dests:
            holds = operands.pop() == (step.form["R"] != "and")
            votes = np.count_nonzero(holds & lanes, axis=1)
        if waits:
            chunk.warps.go(group.rows, block + 1)
        for each in np.flatnonzero(lanes.any(axis=1)).tolist():
            row, lane = int(group.rows[each]), int(lanes[each].argmax())
            number, *threads = (int(operand[each, lane]) for operand in operands)
            needed = threads[0] // WARP if threads else 0
            waiting = None
            if waits and chunk.warps.status[row] == RUNNING:
                self._phases.turn_over = True
                chunk.warps.status[row] = WAITING
                self._waiting_at[row] = step, lanes[each], number
                waiting = row
            own = row // chunk.warps_per_block
            self._signal("arrive", [row], (own, -1 - number))
            self._go_on(chunk.barriers[own].arrive(number, needed, waiting, int(votes[each])))

    def _release(self, rows: Rows) -> None:
        """Warps that have ended are no longer waited for."""
        ended = rows[self._chunk.warps.status[rows] == DONE]
        for row in ended.tolist():
            self._go_on(self._chunk.barriers[row // self._chunk.warps_per_block].end())

    def _signal(
        self,
        kind: SignalKind,
        rows: Iterable[int],
        *barriers: tuple[int, int],
        number: int = -1,
        count: int = 0,
    ) -> None:
        """Tell what watches the launch of each of these warps."""
        if self._chunk.watch is not None:
            for row in rows:
                self._chunk.watch.signal(kind, int(row), barriers, number=number, count=count)

    def _go_on(self, opened: list[tuple[int, int]]) -> None:
        complete: set[tuple[int, int]] = set()
        for row, votes in opened:
            self._chunk.warps.status[row] = RUNNING
            step, lanes, number = self._waiting_at.pop(row)
            barrier = row // self._chunk.warps_per_block, -1 - number
            if barrier not in complete:
                complete.add(barrier)
                self._signal("complete", [-1], barrier)
            self._signal("wait", [row], barrier)
            for dest, of in step.dests:
                found = {"popc": votes, "or": votes != 0, "and": votes == 0}[step.form["R"]]
                group = Group(self._chunk, np.array([row]), whole=self._chunk.count == 1)
                value = np.full((1, WARP), found, bool if of.bits == 1 else np.uint32)
                group.write(dest, of, value, lanes[None])

    def _describe(self, group: Group, step: Step, fault: Fault) -> str:
        row = group.rows[fault.row]
        x, y, _ = self._chunk.request.block
        thread = int(self._chunk.thread[row, fault.lane])
        place = (thread % x, thread // x % y, thread // (x * y))
        return (
            f"kernel '{self._flow.kernel.source_name}': {fault}, by '{step.form.opcode}' at "
            f"{step.instruction.where}, thread {place} of block {self._chunk.block_of(row)}"
        )

    def _where(self, row: int) -> str:
        """Where a warp waits."""
        if row in self._waiting_at:
            return self._waiting_at[row][0].instruction.where
        return next(where for each, where, _ in self._stuck() if each == row)

    def _stuck(self) -> list[tuple[int, str, str]]:
        """What warps wait for but barriers of the block: row, source position, and in words."""
        return [*self._phases.stuck(), *self._products.stuck()]

    def _deadlock(self) -> str:
        barriers = [
            (row, step.instruction.where, "") for row, (step, *_) in self._waiting_at.items()
        ]
        others = [(row, where, f" for {what}") for row, where, what in self._stuck()]
        waiting = "; ".join(
            f"{self._warp_text(row)} waits at {where}{what}"
            for row, where, what in sorted([*barriers, *others])
        )
        return f"kernel '{self._flow.kernel.source_name}' is deadlocked: {waiting}"

    def _polled(self, repeats: Repeats) -> str:
        """Which warps poll for ever, and where."""
        body, blocks = self._flow.kernel.body, self._flow.blocks
        asking = "; ".join(
            f"{self._warp_text(row)} polls at {body[blocks[block].start].where}"
            for row, block in sorted(repeats.asks().items())
        )
        how = "does not end" if repeats.might_end() else "is deadlocked"
        return f"kernel '{self._flow.kernel.source_name}' {how}: {asking}"

    def _warp_text(self, row: int) -> str:
        return f"warp {row % self._chunk.warps_per_block} of block {self._chunk.block_of(row)}"
