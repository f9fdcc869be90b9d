"""Emits the function that runs one warp: all its basic blocks, and where it is resumed.

The function is a coroutine: at a barrier, or when its fuel is spent, it stores in the warp where to
continue, and returns. Lanes that diverge at a branch wait on the warp's stack for their turn: the
taken side runs first, and all reconverge at the branch's post-dominator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gemmkit.emulator.codegen import (
    arithmetic,
    effects,
    lanewise,
    stops,
    undefined,
)
from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.areas import Areas
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.block_endings import BlockEndings
from gemmkit.emulator.codegen.compiled import WARP_FUNCTION
from gemmkit.emulator.codegen.context import C, CodegenContext, Outside, T, W
from gemmkit.emulator.codegen.counting import count_separately
from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    DONE,
    WARP,
)
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.python_calls import through_python
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


class _WarpWriter(BlockEndings):
    def __init__(
        self, context: CodegenContext, actions: Sequence[Action], scratch: Scratch
    ) -> None:
        super().__init__(context)
        self._actions, self._scratch = actions, scratch
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
            if self.ends_block(b, action, number):
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

    def _write_action(self, b: BlockWriter, action: Action) -> None:
        if not action.pure:
            effects.write(b, action)
            return
        if not arithmetic.native(action.form):
            through_python(b, action)
            return
        if action.guard is not None:
            lanes = b.active(action.guard)
            count_separately(b, action, lanes, lanes)
        lanewise.compute(b, action)
