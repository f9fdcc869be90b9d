"""What the sanitizers record for a kernel whose blocks synchronize with each other by fences.

The blocks of such a kernel run one at a time. For each granule of global memory the last write and
read are kept, with the time on a clock that barriers and fences advance. If an access conflicts
with another block's, Python decides whether anything orders the two.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.patterns import BASE
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.runtime.shadow import BYTES, NULL, event, shadow, site_shadow
from gemmkit.emulator.codegen.shadow_layout import (
    ACTOR_BLOCK,
    ACTOR_RANK,
    ACTOR_RANKS,
    ACTOR_SITE,
    ACTOR_WARP,
    AGAINST_READER,
    AGAINST_STRONG,
    CONFLICT,
    CONFLICT_THREAD,
    FENCE,
    IN_ORDER,
    KNOWN_WARPS,
    ROW,
    SHADOW,
    SHADOW_SITE,
    SYNCHRONIZES,
)

_ROW, _ACTING = Value("ptr", "%row"), Value("i64", "%acting")
_OFFSET = Value("i64", "%offset")


class Known:
    """The known order of the running warp and an actor's warp."""

    def __init__(self, f: Function, s: Value, actor: Value) -> None:
        self._f = f
        self._warp = f.and_(actor, literal("i64", ~((1 << ACTOR_RANK) - 1) | ACTOR_WARP))
        number = f.add(f.lshr(actor, ACTOR_BLOCK), f.lshr(actor, LANES.bit_length() - 1))
        offset = f.shl(f.and_(number, KNOWN_WARPS - 1), 4)
        self._entry = f.offset(f.load("ptr", s, SHADOW["known"]), offset)

    def covers(self, time: Value) -> Value:
        """Whether everything that the actor's warp did until `time` comes before what this warp
        does."""
        f = self._f
        same = f.compare("eq", f.load("i64", self._entry), self._warp)
        return f.and_(same, f.compare("ule", time, f.load("i64", self._entry, 8)))

    def learn(self, time: Value) -> None:
        """Record that everything the actor's warp did until `time` comes before."""
        self._f.store(self._warp, self._entry)
        self._f.store(time, self._entry, 8)


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_fence(module)
    _define_synchronize(module)
    _define_conflict(module)
    _define_read_strong(module)
    for kind in ("reader", "writer"):
        _define_act(module, kind)
    _define_act_strong(module)


def _define_fence(module: Module) -> None:
    """device_fence(worker, scope): the running warp fences its accesses; see `SCOPES`.
    ordering_access(worker): it is about to release or acquire by a strong access."""
    scope = Value("i64", "%scope")
    with module.function(f"gemmkit.{PREFIX}device_fence", "void", (C, scope)) as f:
        s = shadow(f)
        event(f, FENCE, f.load("i64", s, SHADOW["time"]), scope)
        for name in ("time", "fences"):
            f.increase(s, SHADOW[name], 1)
        f.ret()
    with module.function(f"gemmkit.{PREFIX}ordering_access", "void", (C,)) as f:
        s = shadow(f)
        for name in ("time", "fences"):
            f.increase(s, SHADOW[name], 1)
        f.ret()


def _define_synchronize(module: Module) -> None:
    """synchronize(worker, pattern, base, instruction, operands): a strong access to memory that
    threads share. It orders nothing until a fence was executed. `operands`: with which the lanes
    compare what they load, if they wait; else null."""
    number, operands = Value("i64", "%number"), Value("ptr", "%operands")
    parameters = (C, P, BASE, number, operands)
    with module.function(f"gemmkit.{PREFIX}synchronize", "void", parameters) as f:
        s = shadow(f)
        with f.when(f.compare("ne", f.load("i64", s, SHADOW["fences"]), 0)):
            event(f, SYNCHRONIZES, BASE, number, site=operands, p=P)
        f.ret()


def _report_unless_known(
    f: Function, s: Value, address: Value, other: Value, time: Value, extra: Value
) -> None:
    """Reports a conflict to Python, and keeps its answer where that is that the other came before;
    ends the function if an earlier answer says so."""
    known = Known(f, s, other)
    with f.when(known.covers(time)):
        f.ret()
    answer = event(f, CONFLICT, address, extra, site=SITE_POINTER)
    with f.when(f.compare("eq", answer, IN_ORDER)):
        known.learn(time)


def _define_conflict(module: Module) -> None:
    """conflict_with_block(worker, site, address, acting, other, its time, extra): a granule that
    another access touched before. It is reported to Python unless the answer for a later access of
    that warp was that it came before."""
    address, other = Value("i64", "%address"), Value("i64", "%other")
    time, extra = Value("i64", "%time"), Value("i64", "%extra")
    parameters = (C, SITE_POINTER, address, _ACTING, other, time, extra)
    with module.function("gemmkit.conflict_with_block", "void", parameters) as f:
        with f.when(f.compare("eq", other, 0)):
            f.ret()
        blocks = (f.lshr(each, ACTOR_BLOCK) for each in (_ACTING, other))
        with f.when(f.compare("eq", *blocks)):
            f.ret()
        s = shadow(f)
        _report_unless_known(f, s, address, other, time, extra)
        f.ret()


def _define_read_strong(module: Module) -> None:
    """read_strong(worker, site, address, acting, other, its time, extra): data that another warp
    has written by a strong access are read by one. If no barrier orders the two, Python looks for
    a flag that has announced the data without a fence."""
    address, other = Value("i64", "%address"), Value("i64", "%other")
    time, extra = Value("i64", "%time"), Value("i64", "%extra")
    parameters = (C, SITE_POINTER, address, _ACTING, other, time, extra)
    with module.function("gemmkit.read_strong", "void", parameters, inline=False) as f:
        with f.when(f.compare("eq", other, 0)):
            f.ret()
        s, apart = shadow(f), f.xor(_ACTING, other)
        with f.when(f.compare("eq", f.lshr(apart, ACTOR_BLOCK), 0)):
            warps = f.and_(apart, ACTOR_WARP | ACTOR_RANKS)
            with f.when(f.compare("eq", warps, 0)):
                f.ret()
            ordered = f.call("gemmkit.ordered_in_block", "i1", s, C, _ACTING, other, time)
            with f.when(ordered):
                f.ret()
        _report_unless_known(f, s, address, other, time, extra)
        f.ret()


def _define_act(module: Module, actor: str) -> None:
    """act_<actor>_in_order(worker, site, offset, bytes, row, acting): a lane accesses these
    granules, after others."""
    parameters = (C, SITE_POINTER, _OFFSET, BYTES, _ROW, _ACTING)
    with module.function(f"gemmkit.act_{actor}_in_order", "void", parameters) as f:
        s = shadow(f)
        shift = f.load("i64", s, SHADOW["global_shift"])
        now = f.load("i64", s, SHADOW["time"])
        others = [("writer", 0)] + [("reader", AGAINST_READER)] * (actor == "writer")
        with f.loop(f.lshr(BYTES, shift)) as further:
            granule = f.add(f.lshr(_OFFSET, shift), further)
            at = f.shl(granule, 3)
            for other, extra in others:
                _conflict_with_last(f, granule, shift, other, extra)
            seen = f.load("ptr", _ROW, ROW["seen_strong"])
            with f.when(f.compare("ne", seen, NULL)):
                # A warp that accessed the address by an atomic itself is ordered after all before
                # that.
                blocks = (
                    f.lshr(each, ACTOR_BLOCK)
                    for each in (_ACTING, f.load("i64", f.offset(seen, at)))
                )
                with f.when(f.compare("ne", *blocks)):
                    _conflict_with_last(f, granule, shift, "strong", AGAINST_STRONG)
            for name, value in ((f"last_{actor}", _ACTING), (f"{actor}_time", now)):
                f.store(value, f.offset(f.load("ptr", _ROW, ROW[name]), at))
        f.ret()


def _conflict_with_last(
    f: Function,
    granule: Value,
    shift: Value,
    other: str,
    extra: int,
    then: str = "conflict_with_block",
) -> None:
    """The access conflicts with the last one of a kind to the granule, if such accesses are
    recorded; `then` is the function that is called."""
    thread = f.shl(f.and_(_ACTING, (1 << ACTOR_SITE) - 1), CONFLICT_THREAD)
    address = f.add(f.load("i64", _ROW, ROW["start"]), f.shl(granule, shift))
    cells = f.load("ptr", _ROW, ROW[f"last_{other}"])
    with f.when(f.compare("ne", cells, NULL)):
        times = f.load("ptr", _ROW, ROW[f"{other}_time"])
        at = f.shl(granule, 3)
        acting, time = (f.load("i64", f.offset(each, at)) for each in (cells, times))
        here = (C, SITE_POINTER, address, _ACTING)
        f.call(f"gemmkit.{then}", "void", *here, acting, time, f.or_(thread, extra))


def _define_act_strong(module: Module) -> None:
    """act_strong(worker, site, offset, bytes, row, acting, writes): a lane accesses these granules
    by an atomic or another strong access, which conflicts only with plain ones; a load of data may
    also come too early for a strong write."""
    writes = Value("i64", "%writes")
    parameters = (C, SITE_POINTER, _OFFSET, BYTES, _ROW, _ACTING, writes)
    with module.function("gemmkit.act_strong", "void", parameters) as f:
        s = shadow(f)
        shift = f.load("i64", s, SHADOW["global_shift"])
        now = f.load("i64", s, SHADOW["time"])
        data = f.load("i64", site_shadow(f, s), SHADOW_SITE["data"])
        with f.loop(f.lshr(BYTES, shift)) as further:
            granule = f.add(f.lshr(_OFFSET, shift), further)
            at = f.shl(granule, 3)
            f.store(_ACTING, f.offset(f.load("ptr", _ROW, ROW["seen_strong"]), at))
            with f.when(f.compare("ne", data, 0)):
                _conflict_with_last(f, granule, shift, "strong", AGAINST_STRONG, "read_strong")
            with f.when(f.compare("ne", writes, 0)):
                _conflict_with_last(f, granule, shift, "writer", 0)
                _conflict_with_last(f, granule, shift, "reader", AGAINST_READER)
                for name, value in (("last_strong", _ACTING), ("strong_time", now)):
                    f.store(value, f.offset(f.load("ptr", _ROW, ROW[name]), at))
        f.ret()
