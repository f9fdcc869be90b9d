"""Emits the points at which a schedule can stop a warp, in code that is compiled for schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import PARKED, PAUSED, WARP, WORKER
from gemmkit.emulator.codegen.operands import Action


def write_parking(f: Function) -> None:
    """Return at once if a schedule has chosen another warp."""
    chosen = f.load("i64", C, WORKER["chosen"])
    other = f.compare("ne", chosen, f.cast("zext", f.load("i32", W, WARP["index"]), "i64"))
    with f.when(f.and_(f.compare("sge", chosen, 0), other)):
        f.ret(literal("i32", PARKED))


def write_stops(
    b: BlockWriter,
    start: int,
    stops: frozenset[int],
    actions: Sequence[Action],
    wait: Callable[[int, int], None],
) -> None:
    """At the start of a basic block, the point after one instruction and that before the next;
    `wait` lets the warp return with a status at an instruction."""
    b.at = start
    if start - 1 in stops:
        _write_stop(b, -start, b.mask, wait)
    if start in stops:
        _write_stop(b, start, b.active(actions[start].guard), wait)


def _write_stop(b: BlockWriter, told: int, lanes: Value, wait: Callable[[int, int], None]) -> None:
    """Let Python decide whether the warp stops."""
    f = b.f
    asked = f.runtime("stop", "i32", C, W, literal("i32", told), lanes)
    held, on = f.name("stops"), f.name("on")
    f.branch_if(f.compare("ne", asked, 0), held, on)
    f.label(held)
    wait(PAUSED, b.at)
    f.label(on)
