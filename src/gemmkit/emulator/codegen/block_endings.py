"""`BlockEndings`: emits what ends a basic block: branches, exits, barriers and other waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmkit.emulator.codegen import effects, sanitizer_calls, undefined, warpgroup_effects
from gemmkit.emulator.codegen.areas import counted_separately
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, CodegenContext, W
from gemmkit.emulator.codegen.counting import count_block, count_lanes, count_separately
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import (
    ANSWERED,
    AT_BARRIER,
    AT_PHASE,
    AT_PRODUCTS,
    HELD,
    PAUSED,
    POLLED,
    TRAPPED,
    WARP,
    WORKER,
)
from gemmkit.emulator.codegen.operands import Action, unsupported
from gemmkit.emulator.codegen.python_calls import executed_by_python
from gemmkit.emulator.codegen.values import Scalar
from gemmkit.emulator.ptx.cfg import RETRIED


class BlockEndings:
    """The control flow between the blocks of one kernel."""

    def __init__(self, context: CodegenContext) -> None:
        self._context = context
        self._f = context.f
        self._analysis = context.analysis
        self._blocks = context.analysis.flow.blocks
        self._exit = len(self._blocks)

    def ends_block(self, b: BlockWriter, action: Action, number: int) -> bool:
        """Emit an instruction if it ends the block of a number; returns whether it does."""
        write = _ENDINGS.get(action.operation)
        if write is not None:
            write(self, b, action, number)
        return write is not None

    def _count_block(self, number: int, mask: Value) -> None:
        count_block(self._context, self._context.areas.block(number), mask)

    def _go(self, here: int, to: int) -> None:
        """Continue at a block with all active lanes; a backward branch costs fuel."""
        f = self._f
        if to >= self._exit:
            self._leave_all()
        elif to > here:
            f.branch(f"b{to}")
        else:
            cost = self._blocks[here].end - self._blocks[to].start
            left = f.sub(f.load("i64", C, WORKER["fuel"]), cost)
            f.store(left, C, WORKER["fuel"])
            pause = f.name("pause")
            f.branch_if(f.compare("slt", left, 0), pause, f"b{to}")
            f.label(pause)
            self._wait(to, PAUSED, self._blocks[here].end - 1)

    def _wait(self, block: int, status: int, instruction: int) -> None:
        f = self._f
        f.store(literal("i32", block), W, WARP["block"])
        f.store(literal("i32", instruction), W, WARP["instruction"])
        f.ret(literal("i32", status))

    def _leave_all(self) -> None:
        f = self._f
        mask, ended = (f.load("i32", W, WARP[each]) for each in ("mask", "exited"))
        f.store(f.or_(ended, mask), W, WARP["exited"])
        f.branch("next")

    def _count(self, action: Action, lanes: Value) -> None:
        if counted_separately(action):
            count_lanes(self._context, self._context.areas.counter(action.number), lanes)

    def branch(self, b: BlockWriter, action: Action, number: int) -> None:
        """Continue at the target, or diverge."""
        f = self._f
        block = self._blocks[number]
        target = block.successors[0]
        if action.guard is None:
            b.finish()
            self._go(number, target)
            return
        condition = b.guard_location(action.guard)
        lanes = b.finish(condition)
        taken_label, fall_label = f.name("taken"), f.name("fall")
        fall = block.successors[1] if len(block.successors) > 1 else target
        if isinstance(condition, Scalar):
            taken = f.select(condition.value, b.mask, 0)
            self._count(action, taken)
            f.branch_if(condition.value, taken_label, fall_label)
        else:
            assert lanes is not None
            taken = f.and_(lanes, b.mask)
            self._count(action, taken)
            if self._analysis.divergent(number):
                self._diverge(action, number, taken, b.mask, taken_label, fall_label)
            else:
                f.branch_if(f.compare("ne", taken, 0), taken_label, fall_label)
        f.label(taken_label)
        self._go(number, target)
        f.label(fall_label)
        self._go(number, fall)

    def _diverge(
        self, action: Action, number: int, taken: Value, mask: Value, yes: str, no: str
    ) -> None:
        f = self._f
        if self._context.compact:
            self._call_diverge(action, number, taken, mask, yes, no)
            return
        some, diverged = f.name("some"), f.name("diverged")
        f.branch_if(f.compare("eq", taken, 0), no, some)
        f.label(some)
        f.branch_if(f.compare("eq", taken, mask), yes, diverged)
        f.label(diverged)
        f.increase(C, self._context.areas.counter(action.number), 1)
        fall = self._blocks[number].successors[1]
        reconvergence = self._analysis.flow.reconvergence[number]
        locations = (literal("i32", each) for each in (fall, reconvergence))
        f.runtime("diverge", "void", W, taken, *locations)
        f.branch(yes)

    def _call_diverge(
        self, action: Action, number: int, taken: Value, mask: Value, yes: str, no: str
    ) -> None:
        """The same by a function."""

        def body(f: Function, s: Sequence[Value]) -> Value:
            warp, counter, taken, mask, fall, reconvergence = s
            some = f.compare("ne", taken, 0)
            with f.when(f.and_(some, f.compare("ne", taken, mask))):
                f.increase(counter, 0, 1)
                f.runtime("diverge", "void", warp, taken, fall, reconvergence)
            return some

        f = self._f
        places = self._blocks[number].successors[1], self._analysis.flow.reconvergence[number]
        counter = f.offset(C, self._context.areas.counter(action.number))
        given = (W, counter, taken, mask, *(literal("i32", each) for each in places))
        f.branch_if(f.shared("take_branch", "i1", body, *given), yes, no)

    def exit(self, b: BlockWriter, action: Action, number: int) -> None:
        """End the lanes in which the guard holds."""
        f = self._f
        lanes = b.active(action.guard)
        self._count(action, lanes)
        if action.guard is None:
            self._leave_all()
            return
        b.finish()
        ended = f.or_(f.load("i32", W, WARP["exited"]), lanes)
        f.store(ended, W, WARP["exited"])
        staying = f.and_(b.mask, f.not_(lanes))
        f.store(staying, W, WARP["mask"])
        stay = f.name("stay")
        f.branch_if(f.compare("ne", staying, 0), stay, "next")
        f.label(stay)
        self._go(number, number + 1)

    def barrier(self, b: BlockWriter, action: Action, number: int) -> None:
        """Wait at a barrier if a lane does."""
        f = self._f
        lanes = b.active(action.guard)
        self._count(action, lanes)
        reduces = bool(action.dests)
        if reduces:
            if action.guard is not None:
                raise unsupported(
                    action.instruction, "a reduction at a barrier cannot have a guard"
                )
            b.f.store(self._votes(b, action, lanes), W, WARP["votes"])
        given = action.sources[:-1] if reduces else action.sources
        operands = [b.source(each, 32) for each in given]
        first = [effects.first_lane(b, location, lanes) for location in operands]
        b.finish()
        if action.guard is not None:
            wait, skip = f.name("wait"), f.name("skip")
            f.branch_if(f.compare("ne", lanes, 0), wait, skip)
            f.label(skip)
            self._go(number, number + 1)
            f.label(wait)
        sanitizer_calls.barrier(b, action, lanes, first)
        warps = f.lshr(first[1], 5) if len(first) > 1 else literal("i32", 0)
        f.store(first[0], W, WARP["barrier"])
        f.store(warps, W, WARP["barrier_warps"])
        after = number + 1
        self._wait(after + self._exit if reduces else after, AT_BARRIER, action.number)

    def _votes(self, b: BlockWriter, action: Action, lanes: Value) -> Value:
        """How many lanes have the predicate of a reduction; for `and`, how many have it false."""
        f = self._f
        holds = b.lanes(b.source(action.sources[-1], 1))
        if action.form["R"] == "and":
            holds = f.not_(holds)
        return f.intrinsic("ctpop", f.and_(lanes, holds))

    def wait_for_phase(self, b: BlockWriter, action: Action, number: int) -> None:
        """Ask whether an mbarrier's phase has completed; if it has not, other lanes or warps run.

        A `try_wait` or wait for the cluster counts once it has a result: how often a warp was woken
        does not matter.
        """
        f = self._f
        sanitizer_calls.aligned(b, action)
        f.store(literal("i32", ANSWERED), W, WARP["verdict"])
        lanes = b.active(action.guard)
        tries = action.operation in RETRIED
        results = executed_by_python(b, action, lanes, number if tries else -1)
        verdict = f.load("i32", W, WARP["verdict"])
        answered, waits = f.name("answered"), f.name("waits")
        if tries:
            f.branch_if(f.compare("eq", verdict, ANSWERED), answered, waits)
            f.label(answered)
            self._count_block(number, b.mask)
        count_separately(b, action, lanes, lanes)
        b.put(action, results)
        undefined.after(b, action)
        b.finish()
        if not tries:
            f.branch_if(f.compare("eq", verdict, ANSWERED), answered, waits)
            f.label(answered)
        self._go(number, number + 1)
        f.label(waits)
        if tries:
            held = f.name("held")
            f.branch_if(f.compare("eq", verdict, HELD), held, "resume")
            f.label(held)
        f.ret(literal("i32", AT_PHASE if tries else POLLED))

    def wait_for_products(self, b: BlockWriter, action: Action, number: int) -> None:
        """`wgmma.wait_group`: go on once all warps of the warpgroup have issued what it covers."""
        f = self._f
        waits, on = f.name("waits"), f.name("on")
        f.branch_if(warpgroup_effects.stops(b, action), waits, on)
        f.label(waits)
        self._wait(number, AT_PRODUCTS, action.number)
        f.label(on)
        self._count_block(number, b.mask)
        effects.write(b, action)
        undefined.after(b, action)
        b.finish()
        self._go(number, number + 1)

    def trap(self, b: BlockWriter, action: Action, number: int) -> None:
        """Stop the kernel if a lane does."""
        f = self._f
        lanes: Value = b.active(action.guard)
        self._count(action, lanes)
        stop, on = f.name("trap"), f.name("on")
        b.finish()
        f.branch_if(f.compare("ne", lanes, 0), stop, on)
        f.label(stop)
        self._wait(number, TRAPPED, action.number)
        f.label(on)
        self._go(number, number + 1)


_ENDINGS: Mapping[str, Callable[[BlockEndings, BlockWriter, Action, int], None]] = {
    "branch": BlockEndings.branch,
    "exit": BlockEndings.exit,
    "barrier": BlockEndings.barrier,
    "trap": BlockEndings.trap,
    "mbarrier_test": BlockEndings.wait_for_phase,
    "mbarrier_try": BlockEndings.wait_for_phase,
    "barrier_cluster_wait": BlockEndings.wait_for_phase,
    "wgmma_wait": BlockEndings.wait_for_products,
}
