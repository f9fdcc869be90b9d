"""The mbarriers that native code changes, and what all of its functions for them have in common.

Each goes through the active lanes, the lowest first, and does what `machine.phases` does. From the
first lane on that it does not handle, Python executes the instruction. The object's layout is that
of `isa.mbarriers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    RUNNING,
    WAITS_IN_PYTHON,
    WAITS_NATIVELY,
    WARP,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.blocks import ASYNCHRONOUS_COST
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.mbarrier_log import keep_patterns
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX as SANITIZED
from gemmkit.emulator.isa.mbarriers import (
    EXPECTED,
    INITIALIZED,
    MARK,
    MOST,
    OBJECT_BYTES,
    PHASE,
    TRANSACTIONS,
    TX_BITS,
)

W = Value("ptr", "%w")
NUMBER, LANES = Value("i32", "%number"), Value("i32", "%lanes")
NULL = Value("ptr", "null")
PREFIX = "mbarrier_"
# The fields that a change of state replaces.
_CHANGED = ((1 << TX_BITS) - 1 << TRANSACTIONS) | MOST


@dataclass(frozen=True, slots=True)
class Names:
    """The functions' names, and whether they enter what happens into the sanitizers' log."""

    sanitize: bool

    def __call__(self, name: str) -> str:
        """A function's full name."""
        return f"gemmkit.{SANITIZED if self.sanitize else ''}{PREFIX}{name}"


def begin(f: Function, names: Names) -> None:
    """Leave it to Python if the warps' order is shuffled or a schedule's; do nothing without active
    lanes."""
    with f.when(f.compare("eq", LANES, 0)):
        f.ret()
    with f.when(f.compare("ne", f.load("i64", C, WORKER["through_python"]), 0)):
        leave(f, LANES)
    if names.sanitize:
        keep_patterns(f)


def leave(f: Function, lanes: Value) -> None:
    """Python executes the instruction in these lanes."""
    f.call("gemmkit.operate_asynchronous", "void", C, W, NUMBER, lanes)
    f.ret()


def end(f: Function) -> None:
    """The instruction is complete; it costs as much as in Python, so that warps take the same
    turns."""
    fuel = f.load("i64", C, WORKER["fuel"])
    f.store(f.sub(fuel, ASYNCHRONOUS_COST), C, WORKER["fuel"])
    f.ret()


def lanes_from(f: Function, lane: Value) -> Value:
    """The active lanes that are left, from this one on."""
    return f.and_(LANES, f.shl(literal("i32", -1), f.resize(lane, 32)))


@dataclass(frozen=True, slots=True)
class Object:
    """An mbarrier: its address in shared memory, where it is, and its fields as i64."""

    address: Value
    place: Value
    word: Value
    pending: Value
    transactions: Value

    @classmethod
    def at(cls, f: Function, address: Value, left: Callable[[], None]) -> Object:
        """The object at an address; `left` leaves the function if there is none."""
        start = f.sub(address, f.load("i64", C, WORKER["shared_base"]))
        room = f.sub(f.load("i64", C, WORKER["shared_bytes"]), OBJECT_BYTES)
        within = f.and_(f.compare("ule", start, room), f.compare("sge", room, 0))
        aligned = f.compare("eq", f.and_(address, OBJECT_BYTES - 1), 0)
        with f.when(f.not_(f.and_(within, aligned))):
            left()
        place = f.offset(f.load("ptr", C, WORKER["shared"]), address)
        word = f.load("i64", place)
        with f.when(f.compare("ne", f.lshr(word, MARK), INITIALIZED)):
            left()
        unused = 64 - TRANSACTIONS - TX_BITS
        transactions = f.binary("ashr", f.shl(word, unused), unused + TRANSACTIONS)
        return cls(address, place, word, f.and_(word, MOST), transactions)

    def change(
        self,
        f: Function,
        pending: Value,
        transactions: Value,
        announced: Value | None,
        left: Callable[[], None],
        names: Names,
        before_store: Callable[[], None] | None = None,
    ) -> Value:
        """Store the state with these fields, or the next phase if nothing is pending, which wakes
        those who wait; returns whether it was. `left` leaves the function if Python has to."""
        whole = f.compare("eq", f.or_(pending, transactions), 0)
        parity = f.and_(f.lshr(self.word, PHASE), 1)
        with f.when(whole):
            woken = f.call(names("wake"), "i1", C, f.or_(self.address, parity))
            with f.when(f.not_(woken)):
                left()
        if before_store is not None:
            before_store()
        rest = f.and_(self.word, ~_CHANGED)
        in_place = f.shl(f.and_(transactions, (1 << TX_BITS) - 1), TRANSACTIONS)
        same = f.or_(f.or_(rest, pending), in_place)
        expected = f.and_(f.lshr(self.word, EXPECTED), MOST)
        following = f.or_(f.xor(rest, 1 << PHASE), expected)
        f.store(f.select(whole, following, same), self.place)
        table = f.load("ptr", C, WORKER["announced"])
        count = f.load("i64", f.offset(table, self.address))
        total = count if announced is None else f.add(count, announced)
        f.store(f.select(whole, literal("i64", 0), total), f.offset(table, self.address))
        return whole


def in_range(f: Function, transactions: Value) -> Value:
    """Whether a tx-count may have this value."""
    return f.compare("ule", f.add(transactions, MOST), 2 * MOST)


def define_wake(module: Module, names: Names) -> None:
    """mbarrier_wake(worker, address | parity) -> whether the warps that wait for that phase run
    again; if Python knows what some warp waits for, Python has to wake it."""
    key = Value("i64", "%key")
    with module.function(names("wake"), "i1", (C, key)) as f:
        warps, step = f.load("ptr", C, WORKER["warps"]), f.load("i64", C, WORKER["warp_bytes"])
        count = f.load("i64", C, WORKER["warp_count"])
        with f.loop(count) as each:
            waits = f.load("i32", f.offset(warps, f.binary("mul", each, step)), WARP["waits"])
            with f.when(f.compare("eq", waits, WAITS_IN_PYTHON)):
                f.ret(literal("i1", 0))
        with f.loop(count) as each:
            warp = f.offset(warps, f.binary("mul", each, step))
            waits = f.compare("eq", f.load("i32", warp, WARP["waits"]), WAITS_NATIVELY)
            this = f.compare("eq", f.resize(f.load("i32", warp, WARP["awaited"]), 64), key)
            with f.when(f.and_(waits, this)):
                f.store(literal("i32", 0), warp, WARP["waits"])
                f.store(literal("i32", RUNNING), warp, WARP["status"])
        f.ret(literal("i1", 1))
