"""mbarriers and bulk copies without Python, as far as sound kernels execute them often.

Each function goes through the active lanes, the lowest first, and does what `machine.phases` does.
From the first lane on that it does not handle (a misuse, a `test_wait` in vain, lanes that wait
while others of their warp can run), Python executes the instruction. A shuffled order of the warps
is Python's as well, since it delays copies. The object's layout is that of `isa.mbarriers`.

For the sanitizers there are other functions: their lanes must agree on everything, and each enters
what happened into the log, which Python reads later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    HELD,
    RUNNING,
    STACK,
    STACK_ENTRY,
    WAITS_IN_PYTHON,
    WAITS_NATIVELY,
    WARP,
    WINDOWS,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.blocks import ASYNCHRONOUS_COST
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.mbarrier_log import enter, keep_patterns
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX as SANITIZED
from gemmkit.emulator.codegen.shadow_layout import ARRIVED, OBSERVED, USED_BARRIER
from gemmkit.emulator.isa.bulk_copies import UNIT
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
ADDRESSES, OPERANDS, RESULT = (Value("ptr", f"%{name}") for name in ("at", "operands", "result"))
# Where the window of the instruction's addresses begins.
WINDOW = Value("i64", "%window")
NULL = Value("ptr", "null")
PREFIX = "mbarrier_"
# The fields that a change of state replaces.
_CHANGED = ((1 << TX_BITS) - 1 << TRANSACTIONS) | MOST


def define(module: Module, *, sanitize: bool = False) -> None:
    """Add the functions of this file to the runtime; those for the sanitizers have other names."""
    names = _Names(sanitize)
    _define_wake(module, names)
    _define_alone(module, names)
    for name, change in (
        ("arrive", _Arrival(1, 0)),
        ("arrive_count", _Arrival(None, 0)),
        ("arrive_expect_tx", _Arrival(1, None)),
        ("expect_tx", _Arrival(0, None)),
    ):
        _define_arrival(module, names, name, change)
    for kind in ("parity", "token"):
        _define_wait(module, names, kind)
    if not sanitize:
        for space in ("global", "shared"):
            _define_copy(module, names, space)


@dataclass(frozen=True, slots=True)
class _Names:
    """The functions' names, and whether they enter what happens into the sanitizers' log."""

    sanitize: bool

    def __call__(self, name: str) -> str:
        """A function's full name."""
        return f"gemmkit.{SANITIZED if self.sanitize else ''}{PREFIX}{name}"


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The arrivals and the announced bytes of an instruction; None: its operand."""

    count: int | None
    nbytes: int | None


def _begin(f: Function, names: _Names) -> None:
    """Leave it to Python if the warps' order is shuffled; do nothing without active lanes."""
    with f.when(f.compare("eq", LANES, 0)):
        f.ret()
    with f.when(f.compare("ne", f.load("i64", C, WORKER["order_seed"]), 0)):
        _leave(f, LANES)
    if names.sanitize:
        keep_patterns(f)


def _leave(f: Function, lanes: Value) -> None:
    """Python executes the instruction in these lanes."""
    f.call("gemmkit.operate_asynchronous", "void", C, W, NUMBER, lanes)
    f.ret()


def _end(f: Function) -> None:
    fuel = f.load("i64", C, WORKER["fuel"])
    f.store(f.sub(fuel, ASYNCHRONOUS_COST), C, WORKER["fuel"])
    f.ret()


@dataclass(frozen=True, slots=True)
class _Object:
    """An mbarrier: its address in shared memory, where it is, and its fields as i64."""

    address: Value
    place: Value
    word: Value
    pending: Value
    transactions: Value

    @classmethod
    def at(cls, f: Function, address: Value, left: Callable[[], None]) -> _Object:
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
        names: _Names,
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


def _in_range(f: Function, transactions: Value) -> Value:
    return f.compare("ule", f.add(transactions, MOST), 2 * MOST)


def _define_wake(module: Module, names: _Names) -> None:
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


def _define_alone(module: Module, names: _Names) -> None:
    """mbarrier_alone(warp) -> whether no other lanes of the warp can run: see `machine.paths`."""
    with module.function(names("alone"), "i1", (W,)) as f:
        above = f.variable(f.load("i32", W, WARP["mask"]))
        alive = f.not_(f.load("i32", W, WARP["exited"]))
        depth = f.resize(f.load("i32", W, WARP["depth"]), 64)
        with f.loop(depth) as done:
            place = f.sub(f.sub(depth, 1), done)
            entry = f.offset(W, f.add(f.binary("mul", place, STACK_ENTRY), STACK))
            lanes = f.and_(f.load("i32", entry, 8), alive)
            apart = f.compare("eq", f.and_(lanes, f.get("i32", above)), 0)
            with f.when(f.and_(apart, f.compare("ne", lanes, 0))):
                f.ret(literal("i1", 0))
            f.set(above, f.or_(f.get("i32", above), lanes))
        f.ret(literal("i1", 1))


def _define_arrival(module: Module, names: _Names, name: str, arrival: _Arrival) -> None:
    """mbarrier_<name>(worker, warp, instruction, lanes, addresses, operands, tokens or null,
    window)."""
    parameters = (C, W, NUMBER, LANES, ADDRESSES, OPERANDS, RESULT, WINDOW)
    with module.function(names(name), "void", parameters) as f:
        _begin(f, names)
        reads = None in (arrival.count, arrival.nbytes)
        if names.sanitize:
            _arrive_together(f, names, arrival, reads=reads)
            return
        with f.each_bit(LANES) as lane:

            def left(lane: Value = lane) -> None:
                _leave(f, _lanes_from(f, lane))

            found = _Object.at(f, f.sub(element(f, ADDRESSES, lane, 64), WINDOW), left)
            given = f.resize(element(f, OPERANDS, lane, 32), 64) if reads else literal("i64", 0)
            nbytes = literal("i64", 0) if arrival.nbytes == 0 else given
            count = given if arrival.count is None else literal("i64", arrival.count)
            transactions = f.add(found.transactions, nbytes)
            good = _in_range(f, transactions)
            if arrival.count != 0:
                # None, or more than are pending.
                most = f.sub(found.pending, 1)
                good = f.and_(good, f.compare("ule", f.sub(count, 1), most))
                good = f.and_(good, f.compare("sge", most, 0))
            with f.when(f.not_(good)):
                left()
            pending = f.sub(found.pending, count)
            found.change(f, pending, transactions, nbytes, left, names)
            with f.when(f.compare("ne", RESULT, NULL)):
                f.store(found.word, f.element(RESULT, lane, 64))
        _end(f)


def _arrive_together(f: Function, names: _Names, arrival: _Arrival, *, reads: bool) -> None:
    """All lanes arrive with the same count at the same object, and complete its phase at most with
    the last one; or a single lane announces bytes."""

    def left() -> None:
        _leave(f, LANES)

    def at(lane: Value) -> tuple[Value, Value]:
        given = f.resize(element(f, OPERANDS, lane, 32), 64) if reads else literal("i64", 0)
        return f.sub(element(f, ADDRESSES, lane, 64), WINDOW), given

    address, given = at(f.lowest_bit(LANES))
    with f.each_bit(LANES) as lane:
        own, operand = at(lane)
        differs = f.or_(f.compare("ne", own, address), f.compare("ne", operand, given))
        with f.when(differs):
            left()
    lanes = f.resize(f.intrinsic("ctpop", LANES), 64)
    found = _Object.at(f, address, left)
    nbytes = literal("i64", 0) if arrival.nbytes == 0 else given
    count = given if arrival.count is None else literal("i64", arrival.count)
    transactions = f.add(found.transactions, nbytes)
    every = f.binary("mul", count, lanes)
    good = f.and_(_in_range(f, transactions), f.compare("ule", every, found.pending))
    if arrival.nbytes is None:
        good = f.and_(good, f.compare("eq", lanes, 1))
    if arrival.count != 0:
        good = f.and_(good, f.compare("ne", count, 0))
    with f.when(f.not_(good)):
        left()
    pending = f.sub(found.pending, every)
    whole = found.change(f, pending, transactions, nbytes, left, names)
    with f.when(f.compare("ne", RESULT, NULL)):
        token = f.variable(found.word)
        with f.each_bit(LANES) as lane:
            f.store(f.get("i64", token), f.element(RESULT, lane, 64))
            f.set(token, f.sub(f.get("i64", token), count))
    last = f.sub(literal("i32", 31), f.intrinsic("ctlz", LANES, Value("i1", "true"), result="i32"))
    enter(f, USED_BARRIER if arrival.count == 0 else ARRIVED, NUMBER, last, address, whole)
    _end(f)


def _lanes_from(f: Function, lane: Value) -> Value:
    """The active lanes that are left, from this one on."""
    return f.and_(LANES, f.shl(literal("i32", -1), f.resize(lane, 32)))


def _define_wait(module: Module, names: _Names, kind: str) -> None:
    """mbarrier_wait_<kind>(worker, warp, instruction, lanes, addresses, parities or tokens, result,
    window, basic block or -1): `try_wait` or, without a block, `test_wait`.

    The result is one bit per lane. A warp whose lanes all wait for one phase, while none of its
    others can run, is stopped, and its verdict says so.
    """
    block = Value("i32", "%block")
    parameters = (C, W, NUMBER, LANES, ADDRESSES, OPERANDS, RESULT, WINDOW, block)
    with module.function(names(f"wait_{kind}"), "void", parameters) as f:
        _begin(f, names)
        with f.when(f.compare("ne", f.load("i32", W, WARP["waits"]), 0)):
            _leave(f, LANES)
        done, awaited = f.variable(literal("i32", 0)), f.variable(literal("i64", -1))
        mixed = f.variable(literal("i1", 0))
        with f.each_bit(LANES) as lane:
            address = f.sub(element(f, ADDRESSES, lane, 64), WINDOW)
            found = _Object.at(f, address, lambda: _leave(f, LANES))
            if kind == "parity":
                phase = f.resize(element(f, OPERANDS, lane, 32), 64)
                good = f.compare("ule", phase, 1)
            else:
                token = element(f, OPERANDS, lane, 64)
                phase = f.and_(f.lshr(token, PHASE), 1)
                good = f.compare("eq", f.lshr(token, MARK), INITIALIZED)
            with f.when(f.not_(good)):
                _leave(f, LANES)
            now = f.and_(f.lshr(found.word, PHASE), 1)
            complete = f.resize(f.compare("ne", now, phase), 32)
            bits = f.shl(complete, f.resize(lane, 32))
            f.set(done, f.or_(f.get("i32", done), bits))
            key, known = f.or_(address, phase), f.get("i64", awaited)
            other = f.and_(f.compare("ne", known, key), f.compare("ne", known, -1))
            f.set(mixed, f.or_(f.get("i1", mixed), other))
            f.set(awaited, key)
        if names.sanitize:
            with f.when(f.get("i1", mixed)):
                _leave(f, LANES)
        with f.when(f.compare("eq", f.get("i32", done), LANES)):
            f.store(LANES, RESULT)
            if names.sanitize:
                _enter_wait(f, OBSERVED, f.get("i64", awaited))
            _end(f)
        alike = f.and_(f.compare("eq", f.get("i32", done), 0), f.not_(f.get("i1", mixed)))
        whole = f.compare("eq", LANES, f.load("i32", W, WARP["mask"]))
        simple = f.and_(f.and_(alike, whole), f.compare("sge", block, 0))
        simple = f.and_(simple, f.call(names("alone"), "i1", W))
        with f.when(f.not_(simple)):
            _leave(f, LANES)
        for name, a in (
            ("block", block),
            ("instruction", NUMBER),
            ("awaited", f.resize(f.get("i64", awaited), 32)),
            ("waits", literal("i32", WAITS_NATIVELY)),
            ("verdict", literal("i32", HELD)),
        ):
            f.store(a, W, WARP[name])
        if names.sanitize:
            _enter_wait(f, USED_BARRIER, f.get("i64", awaited))
        _end(f)


def _enter_wait(f: Function, kind: int, key: Value) -> None:
    first = f.lowest_bit(LANES)
    enter(f, kind, NUMBER, first, f.and_(key, ~1), literal("i1", 0))


def _define_copy(module: Module, names: _Names, space: str) -> None:
    """mbarrier_copy_<space>(worker, warp, instruction, lanes, sizes, destinations, sources,
    mbarriers): bulk copies to shared memory, which take effect at once."""
    sizes, to, start = (Value("ptr", f"%{name}") for name in ("sizes", "to", "start"))
    parameters = (C, W, NUMBER, LANES, sizes, to, start, ADDRESSES)
    with module.function(names(f"copy_{space}"), "void", parameters) as f:
        _begin(f, names)
        with f.each_bit(LANES) as lane:

            def left(lane: Value = lane) -> None:
                _leave(f, _lanes_from(f, lane))

            size = f.resize(element(f, sizes, lane, 32), 64)
            target = _in_window(f, element(f, to, lane, 64))
            source = element(f, start, lane, 64)
            if space == "shared":
                source = _in_window(f, source)
            barrier = _in_window(f, element(f, ADDRESSES, lane, 64))
            found = _Object.at(f, barrier, left)
            low = f.and_(f.or_(size, f.or_(target, source)), UNIT - 1)
            transactions = f.sub(found.transactions, size)
            good = f.and_(f.compare("eq", low, 0), f.compare("ne", size, 0))
            good = f.and_(good, _in_range(f, transactions))
            good = f.and_(good, _in_shared(f, target, size))
            # The copy must not change its own mbarrier.
            distance = f.sub(f.add(barrier, OBJECT_BYTES - 1), target)
            good = f.and_(good, f.compare("uge", distance, f.add(size, OBJECT_BYTES - 1)))
            if space == "shared":
                good = f.and_(good, _in_shared(f, source, size))
            with f.when(f.not_(good)):
                left()
            shared = f.load("ptr", C, WORKER["shared"])
            if space == "global":
                region = f.call("gemmkit.find", "ptr", C, source, size)
                with f.when(f.compare("eq", region, NULL)):
                    left()
            data = f.pointer(source) if space == "global" else f.offset(shared, source)
            place = f.offset(shared, target)

            def copy(place: Value = place, data: Value = data, size: Value = size) -> None:
                f.move(place, data, size)

            found.change(f, found.pending, transactions, None, left, names, copy)
        _end(f)


def _in_window(f: Function, address: Value) -> Value:
    """The address in shared memory that a generic or a shared one stands for."""
    window = WINDOWS["shared"]
    return f.select(f.compare("uge", address, window), f.sub(address, window), address)


def _in_shared(f: Function, address: Value, size: Value) -> Value:
    """Whether some bytes are in the block's shared memory."""
    start = f.sub(address, f.load("i64", C, WORKER["shared_base"]))
    extent = f.load("i64", C, WORKER["shared_bytes"])
    fits = f.compare("ule", start, f.sub(extent, size))
    return f.and_(fits, f.compare("ule", size, extent))
