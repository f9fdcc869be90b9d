"""Records accesses to global memory to find races between threads of one block.

For each granule they keep the last write, the last read, and the last read by another warp, each
with its thread, instruction and time. Barriers and `__syncwarp` are checked here; if these do not
order two accesses, Python looks for fences and atomics that do.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN, WORKER
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.fenced_blocks import Known
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.codegen.runtime.shadow import BYTES, NULL, event, shadow, site_shadow
from gemmkit.emulator.codegen.runtime.warp_pairs import clock
from gemmkit.emulator.codegen.shadow_layout import (
    ACTOR_BLOCK,
    ACTOR_COPY,
    ACTOR_RANK,
    ACTOR_RANKS,
    ACTOR_SITE,
    ACTOR_WARP,
    AGAINST_READER,
    CONFLICT_THREAD,
    DATA,
    GLOBAL_RACE,
    IN_ORDER,
    OWN,
    REPORT_BYTES,
    REPORTED,
    REPORTS_PER_BLOCK,
    ROW,
    SHADOW,
    SHADOW_SITE,
)

_ROW, _ACTING, _OTHER = Value("ptr", "%row"), Value("i64", "%acting"), Value("i64", "%other")
_LANE, _OFFSET, _START = (Value("i64", f"%{name}") for name in ("lane", "offset", "start"))
_ADDRESS, _TIME, _EXTRA = (Value("i64", f"%{name}") for name in ("address", "time", "extra"))
_ACCESS = (C, SITE_POINTER, P, _LANE, _OFFSET, BYTES, _ROW, _ACTING)
_THREAD = (1 << ACTOR_SITE) - 1
_SITE = (1 << ACTOR_RANK) - 1 - _THREAD


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_ordered(module)
    _define_same_value(module)
    _define_conflict(module)
    _define_reader(module)
    _define_writer(module)


def _define_ordered(module: Module) -> None:
    """ordered_in_block(shadow, worker, acting, other, time): whether a barrier, of the block or the
    warp, separates another thread's access from now."""
    s = Value("ptr", "%s")
    parameters = (s, C, _ACTING, _OTHER, _TIME)
    with module.function("gemmkit.ordered_in_block", "i1", parameters) as f:
        # What orders blocks of a cluster is known to Python only.
        ranks = f.and_(f.xor(_ACTING, _OTHER), ACTOR_RANKS)
        with f.when(f.compare("ne", ranks, 0)):
            f.ret(literal("i1", 0))
        me, other = (f.lshr(f.and_(each, ACTOR_WARP), LANES.bit_length() - 1)
                     for each in (_ACTING, _OTHER))  # fmt: skip
        with f.when(f.compare("eq", me, other)):
            step = f.load("i64", f.load("ptr", s, SHADOW["own"]), OWN["step_time"])
            f.ret(f.compare("ult", _TIME, step))
        with f.when(f.compare("ne", f.load("ptr", s, SHADOW["clocks"]), NULL)):
            f.ret(f.compare("ult", _TIME, f.load("i64", clock(f, s, me, other))))
        f.ret(f.compare("ult", _TIME, f.load("i64", s, SHADOW["barrier_time"])))


def _define_same_value(module: Module) -> None:
    """same_value(worker, site, pattern, lane, address, start, acting, other): whether a lane is
    about to store the value that is already at an address, or that the other lane stores there in
    the same instruction; the granule begins `start` bytes into the lane's access."""
    parameters = (C, SITE_POINTER, P, _LANE, _ADDRESS, _START, _ACTING, _OTHER)
    with module.function("gemmkit.same_value", "i1", parameters, inline=False) as f:
        s = shadow(f)
        size = f.lshr(f.load("i64", s, SHADOW["data_bits"]), 3)
        stride = f.intrinsic("umax", size, literal("i64", 4))
        mate = f.and_(_OTHER, LANES - 1)
        active = f.and_(f.lshr(f.load("i32", P, PATTERN.mask), f.resize(mate, 32)), 1)
        # The same instruction of the same warp at the same address is one store.
        apart = f.and_(f.xor(_ACTING, _OTHER), ~(LANES - 1))
        together = f.and_(f.compare("ne", active, 0), f.compare("eq", apart, 0))
        offsets = (element(f, P, each, 64) for each in (_LANE, mate))
        together = f.and_(together, f.compare("eq", *offsets))
        granule = f.shl(literal("i64", 1), f.load("i64", s, SHADOW["global_shift"]))
        memory = f.pointer(_ADDRESS)
        data = f.offset(s, SHADOW[DATA[0]])
        with f.loop(granule) as byte:
            at = f.add(_START, byte)
            register = f.load("ptr", data, f.shl(f.binary("udiv", at, size), 3))
            within = f.binary("urem", at, size)
            mine, its = (
                f.offset(register, f.add(f.binary("mul", each, stride), within))
                for each in (_LANE, mate)
            )
            there = f.select(together, its, f.offset(memory, byte))
            with f.when(f.compare("ne", f.load("i8", mine), f.load("i8", there))):
                f.ret(literal("i1", 0))
        f.ret(literal("i1", 1))


def _define_conflict(module: Module) -> None:
    """conflict_in_block(worker, site, address, acting, other, its time, extra): two threads of a
    block access a granule with no barrier between. It is reported to Python unless a fence orders
    the two; few races per instruction and block are reported, and the others are counted."""
    parameters = (C, SITE_POINTER, _ADDRESS, _ACTING, _OTHER, _TIME, _EXTRA)
    with module.function("gemmkit.conflict_in_block", "void", parameters, inline=False) as f:
        s = shadow(f)
        known = Known(f, s, _OTHER)
        with f.when(known.covers(_TIME)):
            f.ret()
        reported = f.offset(site_shadow(f, s), GLOBAL_RACE * REPORT_BYTES)
        block = f.load("i64", C, WORKER["block"])
        with f.when(f.compare("ne", f.load("i64", reported, REPORTED["block"]), block)):
            f.store(block, reported, REPORTED["block"])
            f.store(literal("i64", 0), reported, REPORTED["times"])
        with f.when(
            f.compare("uge", f.load("i64", reported, REPORTED["times"]), REPORTS_PER_BLOCK)
        ):
            f.increase(reported, REPORTED["unreported"], 1)
            f.ret()
        for name, value in (("conflict", _OTHER), ("conflict_time", _TIME)):
            f.store(value, s, SHADOW[name])
        answer = event(f, GLOBAL_RACE, _ADDRESS, _EXTRA, site=SITE_POINTER)
        with f.when(f.compare("eq", answer, IN_ORDER)):
            known.learn(_TIME)
        with f.when(f.compare("eq", answer, 1)):
            f.increase(reported, REPORTED["times"], 1)
        f.ret()


def _suspect(f: Function, s: Value, strong: Value, other: Value, stamp: Value) -> Value:
    """Whether a recorded access is one of another thread of this block that may race."""
    apart = f.xor(_ACTING, other)
    here = f.compare("eq", f.lshr(apart, ACTOR_BLOCK), 0)
    another = f.compare("ne", f.and_(apart, _THREAD | ACTOR_RANKS | ACTOR_COPY), 0)
    both = f.compare("ne", f.and_(f.and_(stamp, strong), 1), 0)
    time = f.lshr(stamp, 1)
    ordered = f.call("gemmkit.ordered_in_block", "i1", s, C, _ACTING, other, time)
    return f.and_(f.and_(here, another), f.not_(f.or_(both, ordered)))


def _each_granule(f: Function, s: Value) -> tuple[Value, Value, Value]:
    """log2 of a granule's bytes, the first granule accessed and their number."""
    shift = f.load("i64", s, SHADOW["global_shift"])
    return shift, f.lshr(_OFFSET, shift), f.lshr(BYTES, shift)


def _cell(f: Function, name: str, at: Value) -> tuple[Value, Value]:
    """Where an actor of a granule and its time are kept."""
    acting, when = (f.load("ptr", _ROW, ROW[each]) for each in (name, f"{name}_at"))
    return f.offset(acting, at), f.offset(when, at)


def _strong(f: Function, s: Value) -> Value:
    return f.load("i64", site_shadow(f, s), SHADOW_SITE["strong_in_block"])


def _conflict(f: Function, address: Value, other: Value, stamp: Value, extra: int) -> None:
    more = f.or_(f.shl(f.and_(_ACTING, _THREAD), CONFLICT_THREAD), extra)
    time = f.lshr(stamp, 1)
    here = (C, SITE_POINTER, address, _ACTING)
    f.call("gemmkit.conflict_in_block", "void", *here, other, time, more)


def _define_reader(module: Module) -> None:
    """reader_in_block(worker, site, pattern, lane, offset, bytes, row, acting): a lane reads."""
    with module.function("gemmkit.reader_in_block", "void", _ACCESS) as f:
        s = shadow(f)
        strong = _strong(f, s)
        now = f.or_(f.shl(f.load("i64", s, SHADOW["time"]), 1), strong)
        shift, first, count = _each_granule(f, s)
        with f.loop(count) as further:
            granule = f.add(first, further)
            at = f.shl(granule, 3)
            writer, stamp = (f.load("i64", cell) for cell in _cell(f, "writer", at))
            with f.when(_suspect(f, s, strong, writer, stamp)):
                start = f.load("i64", _ROW, ROW["start"])
                _conflict(f, f.add(start, f.shl(granule, shift)), writer, stamp, 0)
            cell, cell_at = _cell(f, "reader", at)
            before, before_at = f.load("i64", cell), f.load("i64", cell_at)
            with f.when(f.compare("ne", before, _ACTING)):
                others, others_at = _cell(f, "other_reader", at)
                apart = f.xor(before, _ACTING)
                warps = f.compare("ne", f.and_(apart, ACTOR_WARP | ACTOR_RANKS), 0)
                # A read of another lane of the same warp is kept only if it replaces no read that
                # matters.
                barrier = f.load("i64", s, SHADOW["barrier_time"])
                old = f.compare("ult", f.lshr(f.load("i64", others_at), 1), barrier)
                block = f.xor(f.load("i64", others), _ACTING)
                old = f.or_(old, f.compare("ne", f.lshr(block, ACTOR_BLOCK), 0))
                with f.when(f.or_(warps, old)):
                    f.store(before, others)
                    f.store(before_at, others_at)
                f.store(_ACTING, cell)
            f.store(now, cell_at)
        f.ret()


def _define_writer(module: Module) -> None:
    """writer_in_block(worker, site, pattern, lane, offset, bytes, row, acting): a lane writes."""
    with module.function("gemmkit.writer_in_block", "void", _ACCESS) as f:
        s = shadow(f)
        strong = _strong(f, s)
        now = f.or_(f.shl(f.load("i64", s, SHADOW["time"]), 1), strong)
        shift, first, count = _each_granule(f, s)
        start = f.load("i64", _ROW, ROW["start"])
        with f.loop(count) as further:
            granule = f.add(first, further)
            at = f.shl(granule, 3)
            address = f.add(start, f.shl(granule, shift))
            cell, cell_at = _cell(f, "writer", at)
            writer, stamp = f.load("i64", cell), f.load("i64", cell_at)

            def against(other: Value, then: Value, extra: int) -> None:
                with f.when(_suspect(f, s, strong, other, then)):
                    # Storing the value that is already there is harmless. An atomic's operand is
                    # not that value.
                    same = f.variable(literal("i1", 0))
                    with f.when(f.compare("eq", f.or_(f.and_(then, 1), strong), 0)):
                        here = (C, SITE_POINTER, P, _LANE, address, f.shl(further, shift))
                        f.set(same, f.call("gemmkit.same_value", "i1", *here, _ACTING, other))
                    with f.when(f.not_(f.get("i1", same))):
                        _conflict(f, address, other, then, extra)

            against(writer, stamp, 0)
            with f.when(f.compare("ne", f.load("ptr", _ROW, ROW["reader"]), NULL)):
                for name in ("reader", "other_reader"):
                    reader, read_at = (f.load("i64", each) for each in _cell(f, name, at))
                    against(reader, read_at, AGAINST_READER)
            # A thread's atomic does not replace its own plain store right before it.
            own = f.compare("eq", f.and_(f.xor(_ACTING, writer), ~_SITE), 0)
            hides = f.compare("eq", f.or_(stamp, 1), now)
            weak = f.compare("eq", f.and_(stamp, 1), 0)
            with f.when(f.not_(f.and_(f.and_(own, hides), weak))):
                f.store(_ACTING, cell)
                f.store(now, cell_at)
        f.ret()
