"""Selects the native function that executes an asynchronous instruction, if there is one."""

from __future__ import annotations

from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, T, W
from gemmkit.emulator.codegen.ir import Value, literal
from gemmkit.emulator.codegen.layout import WARP, WINDOWS
from gemmkit.emulator.codegen.lone_waits import is_for_others
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.runtime.mbarrier_objects import PREFIX
from gemmkit.emulator.isa.bulk_copies import is_reduction
from gemmkit.emulator.isa.types import TYPES

NULL = Value("ptr", "null")

_COPIES = ("bulk_copy", "bulk_store", "mbarrier_arrive_copies")

# Where an operand or a result is in scratch: offset and width.
Place = tuple[int, int]


def call(
    b: BlockWriter,
    action: Action,
    lanes: Value,
    operands: list[Place],
    results: list[Place],
    block: int,
) -> None:
    """Execute an asynchronous instruction in some lanes; `block` is the basic block in which a
    `try_wait` is, or -1."""
    f, number = b.f, literal("i32", action.number)
    places = [f.offset(T, offset) for offset, _ in operands]
    result = f.offset(T, results[0][0]) if results else NULL
    name = _function_of(action)
    # The sanitizers see each copy.
    if not name or (b.context.sanitize and action.operation in _COPIES):
        f.runtime("operate_asynchronous", "void", C, W, number, lanes)
        return
    head = (C, W, number, lanes)
    if action.operation in ("bulk_copy", "bulk_store"):
        counts = f.offset(C, b.context.areas.transfer(action.number))
        f.runtime(PREFIX + name, "void", *head, counts, *places)
        return
    given = places[0] if len(places) > 1 else NULL
    window = literal("i64", 0 if action.form["S"] else WINDOWS["shared"])
    arguments = [*head, places[-1], given, result, window]
    if not name.startswith("wait"):
        f.runtime(b.context.access(PREFIX + name), "void", *arguments)
        return
    arguments.append(literal("i32", block))
    analysis = b.context.analysis
    if not b.context.sanitize or not is_for_others(analysis.flow, analysis.actions, action.number):
        f.runtime(b.context.access(PREFIX + name), "void", *arguments)
        return
    # Python follows what the other lanes do before they are in step.
    initial, exited = (f.load("i32", W, WARP[each]) for each in ("initial", "exited"))
    whole = f.compare("eq", lanes, f.and_(initial, f.not_(exited)))
    with f.when(whole):
        f.runtime(b.context.access(PREFIX + name), "void", *arguments)
    with f.when(f.not_(whole)):
        f.runtime("operate_asynchronous", "void", C, W, number, lanes)


def _function_of(action: Action) -> str:
    """The name of the native function, or nothing."""
    form, operation = action.form, action.operation
    kind = form.modifiers.get("K", "")
    if operation == "bulk_copy":
        counted = form["C"] == "mbarrier" and not is_reduction(form)
        return f"copy_{form['F']}" if counted and len(action.sources) == 1 else ""
    if operation == "bulk_store":
        shape = f"{8 * TYPES[form['T']].bytes}x{len(action.sources)}"
        return "" if is_reduction(form) else f"send_{shape}"
    if "shared::cluster" in form.opcode:
        return ""
    if operation in ("mbarrier_test", "mbarrier_try"):
        return "wait_parity" if form["P"] == "parity" else "wait_token"
    if operation == "mbarrier_arrive" and form["D"] == "arrive":
        plain = "arrive_count" if action.sources else "arrive"
        return {"": plain, "expect_tx": "arrive_expect_tx"}.get(kind, "")
    if operation == "mbarrier_transact" and kind == "expect_tx":
        return "expect_tx"
    # Its copies have arrived: without sanitizers they take effect when they are issued.
    return "arrive" if operation == "mbarrier_arrive_copies" and kind == "noinc" else ""
