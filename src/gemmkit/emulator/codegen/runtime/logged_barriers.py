"""mbarriers in the sanitizers' log: what their uses, arrivals and waits order.

This is what `sanitizer.barrier_order` does, as far as nothing is wrong. What may be wrong, and what
is rare, is left to it: then nothing is changed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.runtime.comparison import T, field, pointer
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVED,
    CAUSED,
    INITIALIZED,
    LOG_ENTRY,
    LOGGED_TIME,
    MBARRIER,
    OBSERVATION,
    OBSERVATION_BYTES,
    OBSERVED,
    ORDERED,
)

ENTRY, KIND, WARP = Value("ptr", "%logged"), Value("i64", "%kind"), Value("i64", "%warp")
NULL, NO, YES = Value("ptr", "null"), literal("i1", 0), literal("i1", 1)
COMPARE = "gemmkit.compare_mbarrier"
# Clocks are joined so many actors at a time; each row has a multiple of that.
_STRIP = 8


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_join(module)
    _define_visible(module)
    _define_overrun(module)
    _define_aware(module)
    _define_complete(module)
    _define_observe(module)
    _define_compare(module)


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock: its address, and the bytes of one of its rows."""

    f: Function
    start: Value
    row_bytes: Value

    @classmethod
    def at(cls, f: Function, start: Value) -> Clock:
        """The clock at an address."""
        return cls(f, start, field(f, "row_bytes"))

    @classmethod
    def of(cls, f: Function, warp: Value) -> Clock:
        """The clock of a warp."""
        start = f.offset(pointer(f, "clocks"), f.binary("mul", warp, field(f, "clock_bytes")))
        return cls.at(f, start)

    def row(self, number: int) -> Value:
        """Where one of the rows begins."""
        return self.f.offset(self.start, self.f.binary("mul", self.row_bytes, number))

    def place(self, row: int, actor: Value) -> Value:
        """Where the time of an actor is in one of the rows."""
        return self.f.offset(self.row(row), self.f.shl(actor, 2))

    def time(self, row: int, actor: Value) -> Value:
        """It."""
        return self.f.load("i32", self.place(row, actor))


def _define_join(module: Module) -> None:
    """join_clock(into, from, bytes): the later of both times, for each row and actor."""
    into, other, size = Value("ptr", "%into"), Value("ptr", "%from"), Value("i64", "%size")
    with module.function("gemmkit.join_clock", "void", (into, other, size), inline=False) as f:
        with f.loop(f.lshr(size, (4 * _STRIP).bit_length() - 1)) as strip:
            at = f.shl(strip, (4 * _STRIP).bit_length() - 1)
            place = f.offset(into, at)
            both = (
                f.load(f"<{_STRIP} x i32>", each, align=4) for each in (place, f.offset(other, at))
            )
            f.store(f.intrinsic("smax", *both), place, align=4)
        f.ret()


def _define_visible(module: Module) -> None:
    """visible_mbarrier(table, mbarrier, warp) -> whether its initialization is ordered before."""
    m = Value("ptr", "%m")
    with module.function("gemmkit.visible_mbarrier", "i1", (T, m, WARP), inline=False) as f:
        by, time = (f.load("i64", m, MBARRIER[name]) for name in ("warp", "time"))
        clock = Clock.of(f, WARP)
        known = f.intrinsic("smax", *(clock.time(row, by) for row in (ORDERED, INITIALIZED)))
        late = f.compare("sge", f.resize(known, 64, signed=True), time)
        f.ret(f.or_(f.compare("eq", WARP, by), late))


def _define_overrun(module: Module) -> None:
    """overruns(table, mbarrier, warp, whether the warp arrives) -> whether the phase completes
    before all who waited for the last one have observed that."""
    m, arrives = Value("ptr", "%m"), Value("i1", "%arrives")
    with module.function("gemmkit.overruns", "i1", (T, m, WARP, arrives), inline=False) as f:
        arriving = Clock.at(f, f.load("ptr", m, MBARRIER["arriving"]))
        own = Clock.of(f, WARP)
        seen = f.load("ptr", m, MBARRIER["observations"])
        with f.loop(f.load("i64", m, MBARRIER["observed"])) as each:
            one = f.offset(seen, f.binary("mul", each, OBSERVATION_BYTES))
            warp, time = (f.load("i64", one, OBSERVATION[name]) for name in ("warp", "time"))
            # An arrival of the warp itself is caused by all that it did.
            itself = f.compare("eq", warp, WARP)
            brought = f.select(itself, own.time(ORDERED, warp), own.time(CAUSED, warp))
            there = arriving.time(CAUSED, warp)
            known = f.select(arrives, f.intrinsic("smax", there, brought), there)
            with f.when(f.compare("slt", f.resize(known, 64, signed=True), time)):
                f.ret(YES)
        f.ret(NO)


def _define_aware(module: Module) -> None:
    """knows_phases(table, mbarrier, warp, phases) -> whether a warp has learned, by waits, that so
    many phases are complete. It may know it by other means, see `cluster_order.Object.knows`."""
    m, phases = Value("ptr", "%m"), Value("i64", "%phases")
    with module.function("gemmkit.knows_phases", "i1", (T, m, WARP, phases), inline=False) as f:
        with f.when(f.compare("sle", phases, 0)):
            f.ret(YES)
        # A phase was completed, so it has an actor.
        actor = f.load("i64", m, MBARRIER["actor"])
        known = f.resize(Clock.of(f, WARP).time(CAUSED, actor), 64, signed=True)
        f.ret(f.compare("sge", known, phases))


def _define_complete(module: Module) -> None:
    """complete_phase(table, mbarrier): a phase is complete."""
    m = Value("ptr", "%m")
    with module.function("gemmkit.complete_phase", "void", (T, m), inline=False) as f:
        f.store(literal("i64", 0), m, MBARRIER["observed"])
        phases = f.add(f.load("i64", m, MBARRIER["phases"]), 1)
        f.store(phases, m, MBARRIER["phases"])
        arriving, complete = (f.load("ptr", m, MBARRIER[each]) for each in ("arriving", "complete"))
        actor = f.load("i64", m, MBARRIER["actor"])
        for row in (ORDERED, CAUSED):
            f.store(f.resize(phases, 32), Clock.at(f, arriving).place(row, actor))
        before = f.load("ptr", m, MBARRIER["before"])
        f.move(before, Clock.at(f, complete).row(CAUSED), field(f, "row_bytes"))
        size = field(f, "clock_bytes")
        f.call("gemmkit.join_clock", "void", complete, arriving, size)
        f.clear(arriving, size)
        f.ret()


def _define_observe(module: Module) -> None:
    """observe(mbarrier, warp, time, who): a warp has observed that the last phase is complete."""
    m, time, who = Value("ptr", "%m"), Value("i64", "%time"), Value("i64", "%who")
    with module.function("gemmkit.observe", "void", (m, WARP, time, who), inline=False) as f:
        seen, count = (
            f.load("ptr", m, MBARRIER["observations"]),
            f.load("i64", m, MBARRIER["observed"]),
        )
        place = f.variable(count)
        with f.loop(count) as each:
            one = f.offset(seen, f.binary("mul", each, OBSERVATION_BYTES))
            with f.when(f.compare("eq", f.load("i64", one, OBSERVATION["warp"]), WARP)):
                f.set(place, each)
        one = f.offset(seen, f.binary("mul", f.get("i64", place), OBSERVATION_BYTES))
        for name, a in (("warp", WARP), ("time", time), ("who", who)):
            f.store(a, one, OBSERVATION[name])
        new = f.resize(f.compare("eq", f.get("i64", place), count), 64)
        f.store(f.add(count, new), m, MBARRIER["observed"])
        f.ret()


def _define_compare(module: Module) -> None:
    """compare_mbarrier(table, entry, kind, warp) -> whether it is done; if not, Python does it."""
    with module.function(COMPARE, "i1", (T, ENTRY, KIND, WARP), inline=False) as f:
        both, base, tag = (
            f.load("i64", ENTRY, LOG_ENTRY[each]) for each in ("pattern", "base", "tag")
        )
        address = f.and_(base, (1 << LOGGED_TIME) - 1)
        m = f.load("ptr", f.offset(pointer(f, "mbarriers"), address))
        with f.when(f.compare("eq", m, NULL)):
            f.ret(NO)
        number, lane = f.and_(both, 0xFFFFFFFF), f.lshr(both, 32)
        relaxed = f.load("i8", f.offset(pointer(f, "relaxed"), number))
        completes = f.compare("ne", f.and_(tag, 1), 0)
        arrives, observes = (f.compare("eq", KIND, each) for each in (ARRIVED, OBSERVED))
        # Copies are on their way, or Python has to find the actor that stands for them.
        early = f.or_(f.compare("ne", f.load("i64", m, MBARRIER["missing"]), 0),
                      f.compare("slt", f.load("i64", m, MBARRIER["actor"]), 0))  # fmt: skip
        odd = f.or_(f.compare("ne", relaxed, 0), f.and_(completes, early))
        visible = f.call("gemmkit.visible_mbarrier", "i1", T, m, WARP)
        with f.when(f.or_(odd, f.not_(visible))):
            f.ret(NO)
        phases = f.load("i64", m, MBARRIER["phases"])
        # An arrival must come after the last phase, and a wait after the one before that.
        with f.when(f.or_(arrives, observes)):
            needed = f.sub(phases, f.resize(observes, 64))
            with f.when(f.not_(f.call("gemmkit.knows_phases", "i1", T, m, WARP, needed))):
                f.ret(NO)
        with f.when(completes):
            overruns = f.call("gemmkit.overruns", "i1", T, m, WARP, arrives)
            with f.when(overruns):
                f.ret(NO)
        clock = Clock.of(f, WARP)
        size, own = field(f, "clock_bytes"), clock.place(ORDERED, WARP)
        now = f.load("i32", own)
        with f.when(arrives):
            # All that the warp did until then is in its own time.
            time = f.resize(f.lshr(base, LOGGED_TIME), 32)
            for row in (ORDERED, CAUSED):
                f.store(time, clock.place(row, WARP))
            into = f.load("ptr", m, MBARRIER["arriving"])
            f.call("gemmkit.join_clock", "void", into, clock.start, size)
            f.store(f.add(time, 1), own)
            copying = f.load("i8", f.offset(pointer(f, "for_copies"), number))
            with f.when(f.compare("ne", copying, 0)):
                group = f.load("i32", f.offset(pointer(f, "arrived_groups"), f.shl(WARP, 2)))
                place = Clock.at(f, into).place(ORDERED, f.add(field(f, "copies_from"), WARP))
                f.store(f.intrinsic("smax", f.load("i32", place), group), place)
        with f.when(observes):
            complete = f.load("ptr", m, MBARRIER["complete"])
            f.call("gemmkit.join_clock", "void", clock.start, complete, size)
            # An acquired clock never has a later time of the warp itself.
            thread = f.add(f.binary("mul", WARP, LANES), lane)
            who = f.or_(f.shl(number, 16), thread)
            f.call("gemmkit.observe", "void", m, WARP, f.resize(now, 64), who)
        with f.when(completes):
            f.call("gemmkit.complete_phase", "void", T, m)
        f.ret(YES)
