"""Emits the counters of executed instructions: how often, and in how many lanes."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.areas import counted_separately
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, CodegenContext
from gemmkit.emulator.codegen.ir import Function, Value
from gemmkit.emulator.codegen.operands import Action


def count_block(context: CodegenContext, counter: int, mask: Value) -> None:
    """Count a basic block that lanes execute; `counter` is an offset in the worker's buffer."""
    context.often("count_block", "void", _block, context.f.offset(C, counter), mask)


def count_lanes(context: CodegenContext, counter: int, lanes: Value) -> None:
    """Count lanes of an instruction that is counted with its block."""
    context.often("count_lanes", "void", _lanes, context.f.offset(C, counter + 8), lanes)


def count_instruction(context: CodegenContext, counter: int, acting: Value, lanes: Value) -> None:
    """Count an instruction of `lanes`, unless no lane is acting."""
    at = context.f.offset(C, counter)
    context.often("count_instruction", "void", _instruction, at, acting, lanes)


def _block(f: Function, s: Sequence[Value]) -> None:
    f.increase(s[0], 0, 1)
    _add_lanes(f, s[0], 8, s[1])


def _lanes(f: Function, s: Sequence[Value]) -> None:
    _add_lanes(f, s[0], 0, s[1])


def _instruction(f: Function, s: Sequence[Value]) -> None:
    f.increase(s[0], 0, f.cast("zext", f.compare("ne", s[1], 0), "i64"))
    _add_lanes(f, s[0], 8, s[2])


def _add_lanes(f: Function, counter: Value, distance: int, lanes: Value) -> None:
    f.increase(counter, distance, f.cast("zext", f.intrinsic("ctpop", lanes), "i64"))


def active_lanes(b: BlockWriter, action: Action) -> Value:
    """The lanes in which an instruction acts; it is counted there if need be."""
    lanes = b.active(action.guard)
    if action.operation != "copy_async":
        count_separately(b, action, lanes, lanes)
    return lanes


def count_separately(b: BlockWriter, action: Action, acting: Value, lanes: Value) -> None:
    """Count an instruction that may act in fewer lanes than its block."""
    if not counted_separately(action):
        return
    count_instruction(b.context, b.context.areas.counter(action.number), acting, lanes)
