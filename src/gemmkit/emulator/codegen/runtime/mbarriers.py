"""mbarriers without Python, as far as sound kernels execute them often.

A misuse is left to Python, as are a `test_wait` in vain and lanes that wait while others of their
warp can run; and all of it if the order of the warps is shuffled, which also delays copies.

For the sanitizers there are other functions: their lanes must agree on everything, and each enters
what happened into the log, which Python reads later.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    HELD,
    STACK,
    STACK_ENTRY,
    WAITS_NATIVELY,
    WARP,
)
from gemmkit.emulator.codegen.runtime import bulk_copies, peer_stores
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.mbarrier_log import enter
from gemmkit.emulator.codegen.runtime.mbarrier_objects import (
    LANES,
    NULL,
    NUMBER,
    Names,
    Object,
    W,
    begin,
    define_wake,
    end,
    in_range,
    lanes_from,
    leave,
)
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.codegen.runtime.shadow import shadow
from gemmkit.emulator.codegen.shadow_layout import ARRIVED, OBSERVED, OWN, SHADOW, USED_BARRIER
from gemmkit.emulator.isa.mbarriers import (
    INITIALIZED,
    MARK,
    PHASE,
)

ADDRESSES, OPERANDS, RESULT = (Value("ptr", f"%{name}") for name in ("at", "operands", "result"))
# Where the window of the instruction's addresses begins.
WINDOW = Value("i64", "%window")


def define(module: Module, *, sanitize: bool = False) -> None:
    """Add the functions of this file to the runtime; those for the sanitizers have other names."""
    names = Names(sanitize)
    define_wake(module, names)
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
        bulk_copies.define(module)
        peer_stores.define(module)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The arrivals and the announced bytes of an instruction; None: its operand."""

    count: int | None
    nbytes: int | None


def _define_alone(module: Module, names: Names) -> None:
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


def _define_arrival(module: Module, names: Names, name: str, arrival: _Arrival) -> None:
    """mbarrier_<name>(worker, warp, instruction, lanes, addresses, operands, tokens or null,
    window)."""
    parameters = (C, W, NUMBER, LANES, ADDRESSES, OPERANDS, RESULT, WINDOW)
    with module.function(names(name), "void", parameters) as f:
        begin(f, names)
        reads = None in (arrival.count, arrival.nbytes)
        if names.sanitize:
            _arrive_together(f, names, arrival, reads=reads)
            return
        with f.each_bit(LANES) as lane:

            def left(lane: Value = lane) -> None:
                leave(f, lanes_from(f, lane))

            found = Object.at(f, f.sub(element(f, ADDRESSES, lane, 64), WINDOW), left)
            given = f.resize(element(f, OPERANDS, lane, 32), 64) if reads else literal("i64", 0)
            nbytes = literal("i64", 0) if arrival.nbytes == 0 else given
            count = given if arrival.count is None else literal("i64", arrival.count)
            transactions = f.add(found.transactions, nbytes)
            good = in_range(f, transactions)
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
        end(f)


def _arrive_together(f: Function, names: Names, arrival: _Arrival, *, reads: bool) -> None:
    """All lanes arrive with the same count at the same object, and complete its phase at most with
    the last one; or a single lane announces bytes."""

    def left() -> None:
        leave(f, LANES)

    if arrival.count != 0:
        with f.when(_apart(f)):
            left()

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
    found = Object.at(f, address, left)
    nbytes = literal("i64", 0) if arrival.nbytes == 0 else given
    count = given if arrival.count is None else literal("i64", arrival.count)
    transactions = f.add(found.transactions, nbytes)
    every = f.binary("mul", count, lanes)
    good = f.and_(in_range(f, transactions), f.compare("ule", every, found.pending))
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
    end(f)


def _apart(f: Function) -> Value:
    """Whether only some lanes of a warp arrive, and others may have accessed shared memory since
    they were in step; or Python has to see all arrivals of the warp."""
    own = f.load("ptr", shadow(f), SHADOW["own"])
    initial, exited = (f.load("i32", W, WARP[each]) for each in ("initial", "exited"))
    partial = f.compare("ne", LANES, f.and_(initial, f.not_(exited)))
    last, step = (f.load("i64", own, OWN[each]) for each in ("last_access", "in_step"))
    apart = f.and_(partial, f.compare("ugt", last, step))
    watched = f.compare("ne", f.load("i64", own, OWN["arrives_in_python"]), 0)
    # Lanes that all arrive have released what they did.
    f.store(f.select(partial, last, literal("i64", 0)), own, OWN["last_access"])
    return f.or_(apart, watched)


def _define_wait(module: Module, names: Names, kind: str) -> None:
    """mbarrier_wait_<kind>(worker, warp, instruction, lanes, addresses, parities or tokens, result,
    window, basic block or -1): `try_wait` or, without a block, `test_wait`.

    The result is one bit per lane. A warp whose lanes all wait for one phase, while none of its
    others can run, is stopped, and its verdict says so.
    """
    block = Value("i32", "%block")
    parameters = (C, W, NUMBER, LANES, ADDRESSES, OPERANDS, RESULT, WINDOW, block)
    with module.function(names(f"wait_{kind}"), "void", parameters) as f:
        begin(f, names)
        with f.when(f.compare("ne", f.load("i32", W, WARP["waits"]), 0)):
            leave(f, LANES)
        done, awaited = f.variable(literal("i32", 0)), f.variable(literal("i64", -1))
        mixed = f.variable(literal("i1", 0))
        with f.each_bit(LANES) as lane:
            address = f.sub(element(f, ADDRESSES, lane, 64), WINDOW)
            found = Object.at(f, address, lambda: leave(f, LANES))
            if kind == "parity":
                phase = f.resize(f.and_(element(f, OPERANDS, lane, 32), 1), 64)
            else:
                token = element(f, OPERANDS, lane, 64)
                phase = f.and_(f.lshr(token, PHASE), 1)
                with f.when(f.compare("ne", f.lshr(token, MARK), INITIALIZED)):
                    leave(f, LANES)
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
                leave(f, LANES)
        with f.when(f.compare("eq", f.get("i32", done), LANES)):
            f.store(LANES, RESULT)
            if names.sanitize:
                _enter_wait(f, OBSERVED, f.get("i64", awaited))
            end(f)
        alike = f.and_(f.compare("eq", f.get("i32", done), 0), f.not_(f.get("i1", mixed)))
        whole = f.compare("eq", LANES, f.load("i32", W, WARP["mask"]))
        simple = f.and_(f.and_(alike, whole), f.compare("sge", block, 0))
        simple = f.and_(simple, f.call(names("alone"), "i1", W))
        with f.when(f.not_(simple)):
            leave(f, LANES)
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
        end(f)


def _enter_wait(f: Function, kind: int, key: Value) -> None:
    first = f.lowest_bit(LANES)
    enter(f, kind, NUMBER, first, f.and_(key, ~1), literal("i1", 0))
