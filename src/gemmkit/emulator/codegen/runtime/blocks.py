"""Runs blocks: takes them from the grid, starts their warps, and switches between these.

Warps take turns. A turn ends when the warp waits, ends, or polls an mbarrier in vain; and once it
has lasted as long as a whole share of fuel, so that a warp which polls a flag does not run for
ever. When the fuel of a share is spent, control returns to Python for a moment, and the next share
continues the turn: where shares end must not decide in which order warps run.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    AT_BARRIER,
    BARRIER_BYTES,
    BARRIER_VOTES,
    BARRIERS,
    DONE,
    FAILED_OPERATION,
    FAULTED,
    FINISHED,
    FREE,
    IN_FLIGHT,
    OUT_OF_FUEL,
    PAUSED,
    POLLED,
    PRODUCTS,
    RUNNING,
    STUCK,
    TRAP,
    TRAPPED,
    WARP,
    WARP_REGISTERS,
    WORKER,
    WORKER_BARRIERS,
)

C, W = Value("ptr", "%c"), Value("ptr", "%w")
# The fuel that a call into Python costs; and for an asynchronous instruction, which sound kernels
# execute often. A poll in vain costs `CALL_COST` more.
CALL_COST, ASYNCHRONOUS_COST = 4000, 200
# Knuth's linear congruential generator (MMIX).
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407


def define(module: Module, *, sanitize: bool = False) -> None:
    """Add the functions of this file to the runtime; those for the sanitizers have other names."""
    names = Names("gemmkit.sanitized_" if sanitize else "gemmkit.", sanitize)
    _define_barriers(module, names)
    if not sanitize:
        _define_operate(module)
        _define_shuffle(module)
        _define_stop(module)
    _define_start(module, names)
    _define_turn(module, names)
    _define_run(module, names)


@dataclass(frozen=True, slots=True)
class Names:
    """The functions' names, and whether they report to the sanitizers."""

    prefix: str
    sanitize: bool

    def __call__(self, name: str) -> str:
        """A function's full name."""
        return self.prefix + name


def _field(f: Function, name: str) -> Value:
    return f.load("i64", C, WORKER[name])


def _warp(f: Function, number: Value) -> Value:
    return f.offset(_pointer(f, "warps"), f.binary("mul", number, _field(f, "warp_bytes")))


def _pointer(f: Function, name: str) -> Value:
    return f.load("ptr", C, WORKER[name])


def _define_barriers(module: Module, names: Names) -> None:
    """arrive(worker, barrier, warps expected): one more warp; end_warp(worker): one fewer to wait
    for."""
    number, needed = Value("i32", "%number"), Value("i32", "%needed")
    with module.function(names("open"), "void", (C, number)) as f:
        pointer = _barrier(f, number)
        arrived, wanted = f.load("i64", pointer), f.load("i64", pointer, 8)
        everyone = f.compare("eq", wanted, 0)
        present = f.add(arrived, f.select(everyone, _field(f, "ended"), 0))
        goal = f.select(everyone, _field(f, "warp_count"), wanted)
        enough = f.and_(f.compare("uge", present, goal), f.compare("ne", arrived, 0))
        with f.when(f.not_(enough)):
            f.ret()
        if names.sanitize:
            f.call("gemmkit.opening", "void", C, number, f.resize(everyone, 32))
        votes = f.load("i64", pointer, BARRIER_VOTES)
        for start in (0, BARRIER_VOTES):
            f.store(literal("i64", 0), pointer, start)
        with f.loop(_field(f, "warp_count")) as each:
            warp = _warp(f, each)
            here = f.compare("eq", f.load("i32", warp, WARP["barrier"]), number)
            waiting = f.compare("eq", f.load("i32", warp, WARP["status"]), AT_BARRIER)
            with f.when(f.and_(here, waiting)):
                f.store(literal("i32", RUNNING), warp, WARP["status"])
                f.store(f.resize(votes, 32), warp, WARP["votes"])
        f.ret()
    with module.function(names("arrive"), "void", (C, number, needed)) as f:
        pointer = _barrier(f, number)
        if names.sanitize:
            f.call("gemmkit.arriving", "void", C, number)
        f.increase(pointer, 0, 1)
        f.store(f.resize(needed, 64), pointer, 8)
        f.call(names("open"), "void", C, number)
        f.ret()
    with module.function(names("end_warp"), "void", (C,)) as f:
        f.increase(C, WORKER["ended"], 1)
        with f.loop(BARRIERS) as each:
            f.call(names("open"), "void", C, f.resize(each, 32))
        f.ret()


def _barrier(f: Function, number: Value) -> Value:
    kept = f.resize(f.and_(number, BARRIERS - 1), 64)
    return f.offset(C, f.add(f.binary("mul", kept, BARRIER_BYTES), WORKER_BARRIERS))


def _define_operate(module: Module) -> None:
    """operate(worker, warp, instruction, lanes): have Python execute one instruction;
    operate_asynchronous is the same for an asynchronous one."""
    for name, cost in (("operate", CALL_COST), ("operate_asynchronous", ASYNCHRONOUS_COST)):
        _define_call(module, f"gemmkit.{name}", cost)


def _define_call(module: Module, name: str, cost: int) -> None:
    number, lanes = Value("i32", "%number"), Value("i32", "%lanes")
    with module.function(name, "void", (C, W, number, lanes)) as f:
        with f.when(f.compare("eq", lanes, 0)):
            f.ret()
        f.store(f.sub(_field(f, "fuel"), cost), C, WORKER["fuel"])
        function = _pointer(f, "operation")
        failed = f.call_pointer(function, "i32", W, number, lanes)
        with f.when(f.compare("ne", failed, 0)):
            kind, zero = literal("i64", FAILED_OPERATION), literal("i64", 0)
            f.call("gemmkit.refuse", "void", C, Value("ptr", "null"), kind, zero, zero)
        f.ret()


def _define_shuffle(module: Module) -> None:
    """shuffle(worker): shuffle the order of the warps' turns (Fisher and Yates).

    order(worker): set the order of a block's first round.
    """
    with module.function("gemmkit.shuffle", "void", (C,)) as f:
        order, count = _pointer(f, "warp_order"), _field(f, "warp_count")
        with f.loop(f.sub(count, 1)) as done:
            state = f.binary("mul", _field(f, "order_state"), _MULTIPLIER)
            state = f.add(state, _INCREMENT)
            f.store(state, C, WORKER["order_state"])
            last = f.sub(f.sub(count, 1), done)
            chosen = f.binary("urem", f.lshr(state, 33), f.add(last, 1))
            one, other = (f.offset(order, f.shl(each, 3)) for each in (last, chosen))
            first, second = f.load("i64", one), f.load("i64", other)
            f.store(second, one)
            f.store(first, other)
        f.ret()
    with module.function("gemmkit.order", "void", (C,)) as f:
        order, seed = _pointer(f, "warp_order"), _field(f, "order_seed")
        with f.loop(_field(f, "warp_count")) as warp:
            f.store(warp, f.offset(order, f.shl(warp, 3)))
        with f.when(f.compare("eq", seed, 0)):
            f.ret()
        mixed = f.binary("mul", f.xor(seed, f.shl(_field(f, "block"), 32)), _MULTIPLIER)
        f.store(mixed, C, WORKER["order_state"])
        f.call("gemmkit.shuffle", "void", C)
        f.ret()


def _define_stop(module: Module) -> None:
    """stop(worker, warp, instruction, lanes) -> whether the warp stops here, as Python says; a
    number n below 0 stands for the point after instruction −1 − n."""
    number, lanes = Value("i32", "%number"), Value("i32", "%lanes")
    with module.function("gemmkit.stop", "i32", (C, W, number, lanes)) as f:
        with f.when(f.compare("eq", _field(f, "chosen"), FREE)):
            f.ret(literal("i32", 0))
        with f.when(f.compare("eq", lanes, 0)):
            f.ret(literal("i32", 0))
        f.ret(f.call_pointer(_pointer(f, "stop_function"), "i32", W, number, lanes))


def _define_start(module: Module, names: Names) -> None:
    """start(worker, block): set up a block."""
    block = Value("i64", "%block")
    with module.function(names("start"), "void", (C, block)) as f:
        f.store(block, C, WORKER["block"])
        f.store(block, C, WORKER["cluster_start"])
        rest = block
        for axis in "xyz":
            size = _field(f, f"grid_{axis}")
            f.store(f.binary("urem", rest, size), C, WORKER[f"block_{axis}"])
            rest = f.binary("udiv", rest, size)
        own = f.offset(_pointer(f, "shared"), _field(f, "shared_base"))
        f.clear(own, _field(f, "shared_bytes"))
        warps = _field(f, "warp_count")
        threads = f.shl(warps, 5)
        f.clear(_pointer(f, "local"), f.binary("mul", threads, _field(f, "local_stride")))
        f.clear(f.offset(C, WORKER_BARRIERS), BARRIERS * BARRIER_BYTES)
        for name in ("ended", "turn", "spent_in_turn"):
            f.store(literal("i64", 0), C, WORKER[name])
        scheduled = f.compare("eq", block, _field(f, "scheduled_block"))
        f.store(f.select(scheduled, _field(f, "first_chosen"), FREE), C, WORKER["chosen"])
        cleared = _field(f, "cleared_bytes")
        with f.loop(warps) as each:
            warp = _warp(f, each)
            initial = f.load("i32", warp, WARP["initial"])
            reconvergence = f.resize(_field(f, "exit_block"), 32)
            for name, a in (("mask", initial), ("reconvergence", reconvergence)):
                f.store(a, warp, WARP[name])
            for name in ("block", "exited", "depth", "status", "waits", *PRODUCTS):
                f.store(literal("i32", 0), warp, WARP[name])
            # The instruction at which a warp last waited must be of this block.
            f.store(literal("i32", 0), warp, WARP["instruction"])
            f.clear(f.offset(warp, WARP_REGISTERS + 3 * 128), cleared)
        f.call("gemmkit.order", "void", C)
        if names.sanitize:
            f.call("gemmkit.fresh_block", "void", C)
        f.ret()


def _define_turn(module: Module, names: Names) -> None:
    """turn(worker, warp) -> the reason to return to Python, or -1 to continue."""
    with module.function(names("turn"), "i32", (C, W)) as f:
        f.store(W, C, WORKER["running"])
        if names.sanitize:
            f.call("gemmkit.fresh_turn", "void", C, W)
        before, earlier = _field(f, "fuel"), _field(f, "spent_in_turn")
        f.store(literal("i64", 0), C, WORKER["spent_in_turn"])
        f.store(f.sub(before, _field(f, "turn_cost")), C, WORKER["fuel"])
        function, scratch = _pointer(f, "warp_function"), _pointer(f, "scratch")
        status = f.call_pointer(function, "i32", C, W, scratch)
        paused, polled = (f.compare("eq", status, each) for each in (PAUSED, POLLED))
        runs = f.or_(paused, polled)
        f.store(f.select(runs, literal("i32", RUNNING), status), W, WARP["status"])
        with f.when(f.compare("eq", status, AT_BARRIER)):
            number, needed = (f.load("i32", W, WARP[each]) for each in ("barrier", "barrier_warps"))
            # Without a reduction the votes are never read.
            votes = f.resize(f.load("i32", W, WARP["votes"]), 64)
            f.increase(_barrier(f, number), BARRIER_VOTES, votes)
            f.call(names("arrive"), "void", C, number, needed)
        with f.when(f.compare("eq", status, DONE)):
            f.call(names("end_warp"), "void", C)
        with f.when(f.compare("ne", _field(f, "fault"), 0)):
            f.ret(literal("i32", FAULTED))
        with f.when(f.compare("eq", status, TRAPPED)):
            f.ret(literal("i32", TRAP))
        left = _field(f, "fuel")
        spent, lasted = f.compare("slt", left, 0), f.add(earlier, f.sub(before, left))
        goes_on = f.and_(paused, f.compare("slt", lasted, _field(f, "share")))
        with f.when(f.and_(spent, goes_on)):
            f.store(lasted, C, WORKER["spent_in_turn"])
            f.increase(C, WORKER["turn"], -1)
        f.ret(f.select(spent, literal("i32", OUT_OF_FUEL), -1))


def _define_run(module: Module, names: Names) -> None:
    """run(worker) -> why it stops: no block left, no fuel left, or a fault."""
    with module.function(names("run"), "i32", (C,)) as f:
        labels = {each: f.name(each) for each in ("next", "some", "round", "body", "over", "skip")}
        f.branch_if(f.compare("slt", _field(f, "block"), 0), labels["next"], labels["round"])
        f.label(labels["next"])
        counter = _pointer(f, "next_block")
        taken = f.atomic("add", counter, literal("i64", 1))
        f.store(literal("i64", -1), C, WORKER["block"])
        with f.when(f.compare("uge", taken, _field(f, "block_limit"))):
            f.ret(literal("i32", FINISHED))
        f.call(names("start"), "void", C, taken)
        f.branch(labels["round"])
        # One round: every warp that can run takes a turn.
        f.label(labels["round"])
        ran = f.variable(literal("i1", 0))
        f.branch(labels["body"])
        f.label(labels["body"])
        turn = _field(f, "turn")
        f.branch_if(f.compare("ult", turn, _field(f, "warp_count")), labels["some"], labels["over"])
        f.label(labels["some"])
        f.store(f.add(turn, 1), C, WORKER["turn"])
        warp = _warp(f, f.load("i64", f.offset(_pointer(f, "warp_order"), f.shl(turn, 3))))
        with f.when(f.compare("eq", f.load("i32", warp, WARP["status"]), RUNNING)):
            f.set(ran, literal("i1", 1))
            stop = f.call(names("turn"), "i32", C, warp)
            with f.when(f.compare("sge", stop, 0)):
                f.ret(stop)
        f.branch(labels["body"])
        f.label(labels["over"])
        all_ended = f.compare("eq", _field(f, "ended"), _field(f, "warp_count"))
        with f.when(all_ended):
            with f.when(f.compare("ne", _field(f, "in_flight"), 0)):
                f.ret(literal("i32", IN_FLIGHT))
            f.branch(labels["next"])
        f.store(literal("i64", 0), C, WORKER["turn"])
        with f.when(f.compare("ne", _field(f, "order_seed"), 0)):
            f.call("gemmkit.shuffle", "void", C)
        f.branch_if(f.get("i1", ran), labels["round"], labels["skip"])
        # A round that was resumed in the middle says nothing about the warps before that point.
        f.label(labels["skip"])
        f.branch_if(_some_running(f), labels["round"], f"{labels['skip']}stuck")
        f.label(f"{labels['skip']}stuck")
        f.ret(literal("i32", STUCK))


def _some_running(f: Function) -> Value:
    found = f.variable(literal("i1", 0))
    with f.loop(_field(f, "warp_count")) as each:
        status = f.load("i32", _warp(f, each), WARP["status"])
        f.set(found, f.or_(f.get("i1", found), f.compare("eq", status, RUNNING)))
    return f.get("i1", found)
