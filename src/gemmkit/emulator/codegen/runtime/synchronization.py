"""Records what orders accesses, for the sanitizers: blocks, turns, barriers, warps in step, fences.

It also checks whether threads may wait for each other where they do.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    AT_BARRIER,
    BARRIER_BYTES,
    BARRIERS,
    LANES,
    WARP,
    WORKER,
    WORKER_BARRIERS,
)
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.runtime.shadow import (
    NULL,
    common_word,
    event,
    log_entry,
    shadow,
    tell,
    tell_of_barriers,
)
from gemmkit.emulator.codegen.shadow_layout import (
    BARRIER_COUNT,
    BARRIER_DIFFERS,
    BARRIER_DIVERGENT,
    BARRIER_NUMBER,
    BARRIER_SITES,
    BEGINS,
    COMMON,
    COMMON_BYTES,
    FENCE_LANES,
    FENCES,
    IN_STEP,
    KNOWN_WARPS,
    LOG_ENTRY,
    LOG_ENTRY_BYTES,
    LOOKS,
    MEMBERS,
    OPENS,
    OWN,
    OWN_BITMAPS,
    SHADOW,
    TAG_KIND,
    TAG_WARP,
    WARP_BARRIER,
)

W = Value("ptr", "%w")
_LANES, _MEMBERS = Value("i32", "%lanes"), Value("i32", "%members")
_INSTRUCTION = Value("i64", "%instruction")


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_fresh(module)
    _define_opening(module)
    _define_check_barrier(module)
    _define_members(module)
    _define_fence(module)


def _own(f: Function, s: Value, warp: Value) -> Value:
    step = f.load("i64", s, SHADOW["warp_bytes"])
    return f.offset(f.load("ptr", s, SHADOW["warps"]), f.binary("mul", warp, step))


def _define_fresh(module: Module) -> None:
    """fresh_block(worker): nothing was accessed yet. fresh_turn(worker, warp): this warp runs."""
    with module.function("gemmkit.fresh_block", "void", (C,)) as f:
        s = shadow(f)
        f.increase(s, SHADOW["epoch"], 1)
        _move_clock_on(f, s)
        now = f.load("i64", s, SHADOW["log_count"])
        f.store(now, s, SHADOW["log_epoch"])
        words = f.load("i64", s, SHADOW["words"])
        tell_of_barriers(f, s, BEGINS)
        f.clear(f.load("ptr", s, SHADOW["common"]), f.binary("mul", words, COMMON_BYTES))
        kept = f.load("ptr", s, SHADOW["local_defined"])
        with f.when(f.compare("ne", kept, NULL)):
            threads = f.shl(f.load("i64", C, WORKER["warp_count"]), LANES.bit_length() - 1)
            f.clear(kept, f.binary("mul", threads, f.load("i64", C, WORKER["local_stride"])))
        size = f.sub(f.load("i64", s, SHADOW["warp_bytes"]), OWN["groups"])
        with f.loop(f.load("i64", C, WORKER["warp_count"])) as warp:
            own = _own(f, s, warp)
            f.clear(f.offset(own, OWN["groups"]), size)
            f.store(now, own, OWN["in_step"])
            f.store(now, own, OWN["fenced"])
            f.store(literal("i64", 0), own, OWN["copies"])
            f.store(f.load("i64", s, SHADOW["awaits"]), own, OWN["ahead"])
        with f.when(f.compare("ne", f.load("ptr", s, SHADOW["pairs"]), NULL)):
            f.call("gemmkit.fresh_pairs", "void", C)
        f.ret()
    with module.function("gemmkit.fresh_turn", "void", (C, W)) as f:
        s = shadow(f)
        index = f.resize(f.load("i32", W, WARP["index"]), 64)
        f.store(_own(f, s, index), s, SHADOW["own"])
        f.store(f.shl(index, TAG_WARP), s, SHADOW["own_tag"])
        f.clear(f.load("ptr", s, SHADOW["known"]), 16 * KNOWN_WARPS)
        f.ret()


def _move_clock_on(f: Function, s: Value) -> None:
    f.increase(s, SHADOW["time"], 1)
    f.store(f.load("i64", s, SHADOW["time"]), s, SHADOW["barrier_time"])


def _define_opening(module: Module) -> None:
    """opening(worker, barrier, everyone): a barrier opens, and a new epoch begins."""
    number, everyone = Value("i32", "%number"), Value("i32", "%everyone")
    with module.function("gemmkit.opening", "void", (C, number, everyone)) as f:
        s = shadow(f)
        tell_of_barriers(f, s, OPENS, f.resize(number, 64))
        with f.when(f.compare("ne", everyone, 0)):
            _compare_sites(f, number)
        f.increase(s, SHADOW["epoch"], 1)
        _move_clock_on(f, s)
        with f.when(f.compare("ne", f.load("ptr", s, SHADOW["pairs"]), NULL)):
            f.leave("gemmkit.opening_pairs", C, number, everyone)
        now = f.load("i64", s, SHADOW["log_count"])
        f.store(now, s, SHADOW["log_epoch"])
        words = f.load("i64", s, SHADOW["words"])
        with f.loop(words) as word:
            common = common_word(f, s, word)
            alarm, atomic = (f.load("i64", common, COMMON[each]) for each in ("alarm", "atomic"))
            f.store(f.and_(alarm, f.not_(atomic)), common, COMMON["alarm"])
            for name in ("written", "atomic"):
                f.store(literal("i64", 0), common, COMMON[name])
        size = f.sub(f.load("i64", s, SHADOW["warp_bytes"]), OWN_BITMAPS)
        with f.loop(f.load("i64", C, WORKER["warp_count"])) as warp:
            own = _own(f, s, warp)
            f.clear(f.offset(own, OWN_BITMAPS), size)
            f.store(now, own, OWN["in_step"])
            f.store(f.load("i64", s, SHADOW["time"]), own, OWN["step_time"])
            f.increase(own, OWN["steps"], 1)
        f.ret()


def _compare_sites(f: Function, number: Value) -> None:
    """Report a barrier of the whole block at which warps wait at different instructions."""
    first, other = f.variable(literal("i32", -1)), f.variable(literal("i32", -1))
    warps, size = f.load("ptr", C, WORKER["warps"]), f.load("i64", C, WORKER["warp_bytes"])
    with f.loop(f.load("i64", C, WORKER["warp_count"])) as each:
        warp = f.offset(warps, f.binary("mul", each, size))
        here = f.compare("eq", f.load("i32", warp, WARP["barrier"]), number)
        waits = f.compare("eq", f.load("i32", warp, WARP["status"]), AT_BARRIER)
        with f.when(f.and_(here, waits)):
            instruction = f.load("i32", warp, WARP["instruction"])
            with f.when(f.compare("eq", f.get("i32", first), -1)):
                f.set(first, instruction)
            with f.when(f.compare("ne", f.get("i32", first), instruction)):
                f.set(other, instruction)
    with f.when(f.compare("ne", f.get("i32", other), -1)):
        sites = (f.resize(f.get("i32", each), 64) for each in (first, other))
        event(f, BARRIER_SITES, *sites)


def _living(f: Function) -> Value:
    initial, exited = (f.load("i32", W, WARP[each]) for each in ("initial", "exited"))
    return f.and_(initial, f.not_(exited))


def _define_check_barrier(module: Module) -> None:
    """check_barrier(worker, warp, lanes, barrier, threads or -1, instruction): lanes arrive at a
    barrier."""
    number, threads = Value("i32", "%number"), Value("i32", "%threads")
    parameters = (C, W, _LANES, number, threads, _INSTRUCTION)
    with module.function(f"gemmkit.{PREFIX}check_barrier", "void", parameters) as f:
        f.store(_INSTRUCTION, shadow(f), SHADOW["arriving"])
        lanes, everyone = f.resize(_LANES, 64), f.compare("eq", threads, -1)
        limit = f.resize(f.shl(f.load("i64", C, WORKER["warp_count"]), 5), 32)
        odd = f.or_(f.compare("ne", f.and_(threads, LANES - 1), 0),
                    f.compare("ugt", f.sub(threads, 1), f.sub(limit, 1)))  # fmt: skip
        odd_count = f.and_(odd, f.not_(everyone))
        kept = f.resize(f.and_(number, BARRIERS - 1), 64)
        barrier = f.offset(C, f.add(f.binary("mul", kept, BARRIER_BYTES), WORKER_BARRIERS))
        begun, asked = f.load("i64", barrier), f.load("i64", barrier, 8)
        whole = f.load("i64", C, WORKER["warp_count"])
        asked = f.shl(f.select(f.compare("eq", asked, 0), whole, asked), 5)
        mine = f.select(everyone, f.shl(whole, 5), f.resize(threads, 64))
        differs = f.and_(f.compare("ne", begun, 0), f.compare("ne", mine, asked))
        for wrong, what, extra in (
            (f.and_(differs, f.not_(odd_count)), BARRIER_DIFFERS, f.or_(asked, f.shl(mine, 32))),
            (f.compare("uge", number, BARRIERS), BARRIER_NUMBER, f.resize(number, 64)),
            (odd_count, BARRIER_COUNT, f.resize(threads, 64)),
            (f.compare("ne", _LANES, _living(f)), BARRIER_DIVERGENT, lanes),
        ):
            with f.when(wrong):
                event(f, what, _INSTRUCTION, extra)
        f.ret()


def _define_members(module: Module) -> None:
    """members(worker, warp, lanes, members, instruction): lanes that name others participate with
    them; members_each is the same with a vector of masks. warp_barrier: they wait for each other.
    """
    parameters = (C, W, _LANES, _MEMBERS, _INSTRUCTION)
    for name, what in (("members", MEMBERS), ("warp_barrier", WARP_BARRIER)):
        with module.function(f"gemmkit.{PREFIX}{name}", "void", parameters) as f:
            absent = f.and_(f.and_(_MEMBERS, _living(f)), f.not_(_LANES))
            unnamed = f.and_(_LANES, f.not_(_MEMBERS))
            with f.when(f.compare("ne", f.or_(absent, unnamed), 0)):
                both = f.or_(f.resize(_LANES, 64), f.shl(f.resize(_MEMBERS, 64), 32))
                event(f, what, _INSTRUCTION, both)
            f.call("gemmkit.in_step_with", "void", C, W, _MEMBERS)
            f.ret()
        masks = Value("ptr", "%masks")
        each = (C, W, _LANES, masks, _INSTRUCTION)
        with module.function(f"gemmkit.{PREFIX}{name}_each", "void", each) as f:
            found = f.variable(literal("i32", 0))
            with f.each_bit(_LANES) as lane:
                named = element(f, masks, lane, 32)
                absent = f.and_(f.and_(named, _living(f)), f.not_(_LANES))
                own = f.and_(f.lshr(named, f.resize(lane, 32)), 1)
                wrong = f.or_(f.compare("ne", absent, 0), f.compare("eq", own, 0))
                with f.when(f.and_(wrong, f.compare("eq", f.get("i32", found), 0))):
                    both = f.or_(f.resize(_LANES, 64), f.shl(f.resize(named, 64), 32))
                    event(f, what, _INSTRUCTION, both)
                    f.set(found, literal("i32", 1))
                here = f.and_(named, _LANES)
                below = f.and_(here, f.sub(f.shl(literal("i32", 1), f.resize(lane, 32)), 1))
                with f.when(f.compare("eq", below, 0)):
                    f.call("gemmkit.in_step_with", "void", C, W, named)
            f.ret()
    with module.function("gemmkit.in_step", "void", (C,)) as f:
        s = shadow(f)
        own = f.load("ptr", s, SHADOW["own"])
        _show_step(f, s, own)
        f.store(f.load("i64", s, SHADOW["log_count"]), own, OWN["in_step"])
        f.increase(s, SHADOW["time"], 1)
        f.store(f.load("i64", s, SHADOW["time"]), own, OWN["step_time"])
        f.increase(own, OWN["steps"], 1)
        f.ret()
    # in_step_with(worker, warp, members): these lanes are in step; for part of a warp an entry of
    # the log records it.
    with module.function("gemmkit.in_step_with", "void", (C, W, _MEMBERS)) as f:
        with f.when(f.compare("eq", f.and_(_living(f), f.not_(_MEMBERS)), 0)):
            f.leave("gemmkit.in_step", C)
        s = shadow(f)
        own = f.load("ptr", s, SHADOW["own"])
        _show_step(f, s, own)
        count = f.load("i64", s, SHADOW["log_count"])
        entry = log_entry(f, s, count)
        f.clear(entry, LOG_ENTRY_BYTES)
        f.store(f.resize(_MEMBERS, 64), entry, LOG_ENTRY["base"])
        tag = f.or_(f.load("i64", s, SHADOW["own_tag"]), IN_STEP << TAG_KIND)
        f.store(tag, entry, LOG_ENTRY["tag"])
        now = f.add(count, 1)
        f.store(now, s, SHADOW["log_count"])
        f.store(now, own, OWN["in_part"])
        f.increase(s, SHADOW["time"], 1)
        f.store(f.load("i64", s, SHADOW["time"]), own, OWN["part_time"])
        f.increase(own, OWN["steps"], 1)
        f.ret()


def _show_step(f: Function, s: Value, own: Value) -> None:
    """Lanes of the running warp are about to come in step; Python looks at what they did before, if
    it has to."""
    with f.when(f.compare("ne", f.load("i64", own, OWN["steps_watched"]), 0)):
        tell(f, s, LOOKS)


def _define_fence(module: Module) -> None:
    """fence(worker): what lanes of this warp did may be handed over to others of them, in kernels
    whose threads hand data over by flags in shared memory. tell_fence(worker, kind, lanes): Python
    is told."""
    with module.function(f"gemmkit.{PREFIX}fence", "void", (C,)) as f:
        s = shadow(f)
        own = f.load("ptr", s, SHADOW["own"])
        f.store(f.load("i64", s, SHADOW["log_count"]), own, OWN["fenced"])
        f.increase(s, SHADOW["time"], 1)
        f.store(f.load("i64", s, SHADOW["time"]), own, OWN["step_time"])
        f.ret()
    kind = Value("i64", "%kind")
    with module.function(f"gemmkit.{PREFIX}tell_fence", "void", (C, kind, _LANES)) as f:
        # `kind` holds the instruction's number too.
        with f.when(f.compare("ne", _LANES, 0)):
            tell(f, shadow(f), FENCES, f.or_(kind, f.shl(f.resize(_LANES, 64), FENCE_LANES)))
        f.ret()
