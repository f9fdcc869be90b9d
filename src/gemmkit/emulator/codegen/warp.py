"""Emits the function that runs one warp: all basic blocks, and the control flow between them.

The function is a coroutine: at a barrier, or when its fuel is spent, it stores in the warp where to
continue, and returns. Lanes that diverge at a branch wait on the warp's stack for their turn: the
taken side runs first, and all reconverge at the branch's post-dominator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gemmkit.emulator.codegen import (
    arithmetic,
    effects,
    lanewise,
    sanitizer_calls,
    stops,
    undefined,
    warpgroup_effects,
)
from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.areas import Areas, counted_separately
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.compiled import WARP_FUNCTION
from gemmkit.emulator.codegen.context import C, CodegenContext, Outside, T, W
from gemmkit.emulator.codegen.counting import count_block, count_lanes
from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    ANSWERED,
    AT_BARRIER,
    AT_PHASE,
    AT_PRODUCTS,
    DONE,
    HELD,
    PAUSED,
    TRAPPED,
    WARP,
    WORKER,
)
from gemmkit.emulator.codegen.operands import Action, unsupported
from gemmkit.emulator.codegen.registers import RegisterMap
from gemmkit.emulator.codegen.values import Scalar, Scratch
from gemmkit.emulator.isa.cluster import shows_ranks
from gemmkit.emulator.ptx.cfg import RETRIED


@dataclass(frozen=True, slots=True)
class WarpCode:
    """A kernel's IR, the runtime functions that it calls, and what is needed to run it.

    Sizes are in bytes. `clears_registers`: a register may be read before it is written.
    """

    text: str
    calls: tuple[str, ...]
    areas: Areas
    warp_bytes: int
    scratch_bytes: int
    outside: Outside
    clears_registers: bool


def write_warp(
    analysis: Analysis,
    actions: Sequence[Action],
    symbols: Callable[[Function, str], Value | None],
    areas: Areas,
    *,
    sanitize: bool = False,
    compact: bool = False,
) -> WarpCode:
    """Emit the warp function of a kernel; `sanitize` and `compact` are as in `CodegenContext`.

    `areas`, which it adds pattern caches to, are those of its actions.
    """
    module = Module()
    registers = RegisterMap(analysis)
    scratch = Scratch()
    outside: Outside = {}
    with module.function(WARP_FUNCTION, "i32", (C, W, T)) as f:
        context = CodegenContext(
            f,
            analysis,
            registers,
            areas,
            lambda name: symbols(f, name),
            outside,
            sanitize,
            compact,
            shows_ranks(analysis.flow.kernel, analysis.flow.forms),
        )
        _WarpWriter(context, actions, scratch).write()
    return WarpCode(
        str(module),
        tuple(module.outside),
        areas,
        registers.warp_bytes,
        scratch.size,
        outside,
        bool(analysis.live_in and analysis.live_in[0]),
    )


class _WarpWriter:
    def __init__(
        self, context: CodegenContext, actions: Sequence[Action], scratch: Scratch
    ) -> None:
        self._context = context
        self._f = context.f
        self._analysis = context.analysis
        self._blocks = context.analysis.flow.blocks
        self._actions = actions
        self._scratch = scratch
        self._exit = len(self._blocks)
        self._stops = context.analysis.flow.stops

    def write(self) -> None:
        f = self._f
        resumed = sorted(self._entries())
        if self._stops:
            stops.write_parking(f)
        f.branch("resume")
        f.label("resume")
        start = f.load("i32", W, WARP["block"])
        cases = f"{self._cases(resumed)} {self._cases(self._reductions())}"
        f.emit(f"switch {start}, label %ended [{cases}]")
        f.label("next")
        following = f.runtime("next_path", "i32", W)
        f.emit(f"switch {following}, label %ended [{self._cases(resumed)}]")
        f.label("ended")
        f.ret(literal("i32", DONE))
        for number in range(len(self._blocks)):
            self._write_block(number)
        for number in self._reductions():
            self._write_reduced(number)

    def _reductions(self) -> list[int]:
        """The blocks where warps continue after reductions at barriers, numbered past the exit."""
        ends = (self._actions[block.end - 1] for block in self._blocks)
        return [
            self._exit + 1 + number
            for number, action in enumerate(ends)
            if action.operation == "barrier" and action.dests
        ]

    def _write_reduced(self, reduced: int) -> None:
        """Take over the result of a reduction at a barrier, and continue at the next block."""
        f, number = self._f, reduced - self._exit - 1
        f.label(f"b{reduced}")
        b = BlockWriter(self._context, number, f.load("i32", W, WARP["mask"]), self._scratch)
        b.at = self._blocks[number].end - 1
        action = self._actions[b.at]
        votes = f.load("i32", W, WARP["votes"])
        kind = action.form["R"]
        if kind != "popc":
            votes = f.compare("ne" if kind == "or" else "eq", votes, 0)
        b.put(action, [Scalar(votes)])
        undefined.after(b, action)
        b.finish()
        self._go(number, number + 1)

    def _cases(self, blocks: Sequence[int]) -> str:
        return " ".join(f"i32 {number}, label %b{number}" for number in blocks)

    def _entries(self) -> set[int]:
        """Blocks where a warp may continue when it is called, or that lanes wait for."""
        entries = {0} | set(self._analysis.reconvergence_points)
        for number, block in enumerate(self._blocks):
            operation = self._actions[block.end - 1].operation
            if operation in ("barrier", "mbarrier_test"):
                entries.add(number + 1)
            if operation in RETRIED:
                entries.add(number)
            if self._analysis.divergent(number):
                entries.add(block.successors[1])
            entries |= {each for each in block.successors if each <= number}
        begins = {each for stop in self._stops for each in (stop, stop + 1)}
        entries |= {number for number, each in enumerate(self._blocks) if each.start in begins}
        return {each for each in entries if each < self._exit}

    def _write_block(self, number: int) -> None:
        f, block = self._f, self._blocks[number]
        f.label(f"b{number}")
        if number in self._analysis.reconvergence_points:
            waiting = f.load("i32", W, WARP["reconvergence"])
            f.branch_if(f.compare("eq", waiting, number), "next", f"b{number}go")
            f.label(f"b{number}go")
        mask = f.load("i32", W, WARP["mask"])
        b = BlockWriter(self._context, number, mask, self._scratch)
        self._write_stops(b, number)
        if self._actions[block.start].operation not in RETRIED:
            self._count_block(number, mask)
        for action in self._actions[block.start : block.end]:
            b.at = action.number
            undefined.before(b, action)
            if action.operation in _ENDINGS:
                _ENDINGS[action.operation](self, b, action, number)
                return
            self._write_action(b, action)
            undefined.after(b, action)
        b.finish()
        self._go(number, number + 1)

    def _write_stops(self, b: BlockWriter, number: int) -> None:
        """Where a schedule may stop the warp; not again once it has waited for its warpgroup."""
        f, start = self._f, self._blocks[number].start
        waits = bool(self._stops) and self._actions[start].operation == "wgmma_wait"
        again = f.name("again")
        if waits:
            # Both ways use what it emits.
            b.active(self._actions[start].guard)
            waited = f.load("i32", W, WARP["products_awaited"])
            f.branch_if(f.compare("ne", waited, 0), again, f"{again}first")
            f.label(f"{again}first")
        stops.write_stops(b, start, self._stops, self._actions, partial(self._wait, number))
        if waits:
            f.branch(again)
            f.label(again)

    def _count_block(self, number: int, mask: Value) -> None:
        count_block(self._context, self._context.areas.block(number), mask)

    def _write_action(self, b: BlockWriter, action: Action) -> None:
        if not action.pure:
            effects.write(b, action)
            return
        if not arithmetic.native(action.form):
            effects.through_python(b, action)
            return
        if action.guard is not None:
            lanes = b.active(action.guard)
            effects.count_separately(b, action, lanes, lanes)
        lanewise.compute(b, action)

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
        results = effects.executed_by_python(b, action, lanes, number if tries else -1)
        verdict = f.load("i32", W, WARP["verdict"])
        answered, waits = f.name("answered"), f.name("waits")
        if tries:
            f.branch_if(f.compare("eq", verdict, ANSWERED), answered, waits)
            f.label(answered)
            self._count_block(number, b.mask)
        effects.count_separately(b, action, lanes, lanes)
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
        f.ret(literal("i32", AT_PHASE if tries else PAUSED))

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


_ENDINGS: Mapping[str, Callable[[_WarpWriter, BlockWriter, Action, int], None]] = {
    "branch": _WarpWriter.branch,
    "exit": _WarpWriter.exit,
    "barrier": _WarpWriter.barrier,
    "trap": _WarpWriter.trap,
    "mbarrier_test": _WarpWriter.wait_for_phase,
    "mbarrier_try": _WarpWriter.wait_for_phase,
    "barrier_cluster_wait": _WarpWriter.wait_for_phase,
    "wgmma_wait": _WarpWriter.wait_for_products,
}
