"""Records accesses to global memory for the sanitizers: bytes never written, cross-block races."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN, SITE, SITE_BYTES, WORKER
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.launch_waits import tell_if_ahead
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.codegen.runtime.shadow import BYTES, event, report, shadow, site_shadow
from gemmkit.emulator.codegen.shadow_layout import (
    ACTOR_BLOCK,
    ACTOR_RANK,
    ACTOR_SITE,
    LOADS_WANTED,
    ROW,
    ROW_BYTES,
    SHADOW,
    SHADOW_SITE,
    TAG_WARP,
    UNINITIALIZED,
)

NULL = Value("ptr", "null")
_ROW = Value("ptr", "%row")
_ADDRESS = Value("i64", "%address")
# What each kind of access does to a region.
_ACTORS = {"load": "reader", "store": "writer", "update": "writer"}
_EFFECTS = {"load": ("loaded",), "store": ("stored",), "update": ("stored",)}


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_admit(module)
    _define_settle(module)
    for kind in _EFFECTS:
        _define_find_row(module, kind)
        _define_note(module, kind)
        _define_lanes(module, kind)
    for kind in ("reader", "writer"):
        _define_act(module, kind)
    _define_act_nc(module)


def _define_admit(module: Module) -> None:
    """admit_<space>(worker, site, address, bytes): whether one lane's access is allowed."""
    parameters = (C, SITE_POINTER, _ADDRESS, BYTES)
    aligned = "eq", lambda f: f.and_(_ADDRESS, f.sub(BYTES, 1))
    with module.function("gemmkit.admit_shared", "i1", parameters) as f:
        start, limit = (
            f.load("i64", SITE_POINTER, SITE[each]) for each in ("shared_start", "shared_size")
        )
        room, within = f.sub(limit, BYTES), f.sub(_ADDRESS, start)
        inside = f.and_(f.compare("ule", within, room), f.compare("sge", room, 0))
        f.ret(f.and_(inside, f.compare(aligned[0], aligned[1](f), 0)))
    with module.function("gemmkit.admit_global", "i1", parameters) as f:
        with f.when(f.compare("ne", aligned[1](f), 0)):
            f.ret(literal("i1", 0))
        region = f.call("gemmkit.find", "ptr", C, _ADDRESS, BYTES)
        with f.when(f.compare("eq", region, NULL)):
            f.ret(literal("i1", 0))
        _take(f, region)
        f.ret(literal("i1", 1))


def _define_settle(module: Module) -> None:
    """settle(worker, site, start, bytes): the site now accesses the region with these bytes, if one
    has them."""
    start = Value("i64", "%start")
    with module.function("gemmkit.settle", "void", (C, SITE_POINTER, start, BYTES)) as f:
        region = f.call("gemmkit.find", "ptr", C, start, BYTES)
        with f.when(f.compare("ne", region, NULL)):
            _take(f, region)
        f.ret()


def _take(f: Function, region: Value) -> None:
    f.store(f.load("i64", region), SITE_POINTER, SITE["region"])
    f.store(f.load("i64", region, 8), SITE_POINTER, SITE["region_bytes"])


def _define_find_row(module: Module, kind: str) -> None:
    """row_<kind>(worker, site): look up the row of the region that the site now accesses."""
    with module.function(f"gemmkit.row_{kind}", "void", (C, SITE_POINTER)) as f:
        s = shadow(f)
        ours = site_shadow(f, s)
        start = f.load("i64", SITE_POINTER, SITE["region"])
        found = f.call("gemmkit.find", "ptr", C, start, literal("i64", 1))
        at, first = (f.integer(each) for each in (found, f.load("ptr", C, WORKER["regions"])))
        index = f.lshr(f.sub(at, first), 4)
        row = f.offset(f.load("ptr", s, SHADOW["rows"]), f.binary("mul", index, ROW_BYTES))
        f.store(row, ours, SHADOW_SITE["row"])
        f.store(start, ours, SHADOW_SITE["region"])
        for effect in _EFFECTS[kind]:
            f.store(literal("i64", 1), row, ROW[effect])
        # A region that is both loaded and stored may have cross-block races; so far, loads were not
        # recorded.
        both = f.and_(f.load("i64", row, ROW["loaded"]), f.load("i64", row, ROW["stored"]))
        unnoted = f.and_(f.compare("eq", f.load("ptr", row, ROW["last_reader"]), NULL),
                         f.compare("ne", f.load("ptr", row, ROW["last_writer"]), NULL))  # fmt: skip
        with f.when(f.and_(f.compare("ne", both, 0), unnoted)):
            event(f, LOADS_WANTED, start, site=SITE_POINTER)
        f.ret()


def _define_note(module: Module, kind: str) -> None:
    """note_<kind>_global(worker, site, pattern, base, bytes): an access within one region."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES)
    with module.function(f"gemmkit.note_{kind}_global", "void", parameters) as f:
        s = shadow(f)
        tell_if_ahead(f, s)
        ours = site_shadow(f, s)
        region = f.load("i64", SITE_POINTER, SITE["region"])
        with f.when(f.compare("ne", f.load("i64", ours, SHADOW_SITE["region"]), region)):
            f.call(f"gemmkit.row_{kind}", "void", C, SITE_POINTER)
        row = f.load("ptr", ours, SHADOW_SITE["row"])
        wanted = f.load("i64", row, ROW["written"])
        wanted = f.or_(wanted, f.load("i64", row, ROW[_ACTORS[kind]]))
        with f.when(f.compare("ne", wanted, 0)):
            f.leave(f"gemmkit.lanes_{kind}_global", *parameters, row)
        f.ret()


def _define_lanes(module: Module, kind: str) -> None:
    """lanes_<kind>_global(worker, site, pattern, base, bytes, row): record it lane by lane."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES, _ROW)
    with module.function(f"gemmkit.lanes_{kind}_global", "void", parameters, inline=False) as f:
        s, written = shadow(f), f.load("ptr", _ROW, ROW["written"])
        known = f.compare("ne", written, NULL)
        start = f.load("i64", _ROW, ROW["start"])
        missing = f.variable(literal("i1", 0))
        ours = site_shadow(f, s)
        weak = f.compare("eq", f.load("i64", ours, SHADOW_SITE["strong"]), 0)
        read_only = f.compare("ne", f.load("i64", ours, SHADOW_SITE["nc"]), 0)
        reads = f.compare("eq", f.load("i64", ours, SHADOW_SITE["overwrites"]), 0)
        me, actor = _running(f, s), _ACTORS[kind]
        watched = f.compare("ne", f.load("ptr", _ROW, ROW[actor]), NULL)
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            offset = f.sub(f.add(BASE, element(f, P, lane, 64)), start)
            with f.when(known), f.loop(BYTES) as further:
                byte = f.offset(written, f.add(offset, further))
                if kind != "store":
                    never = f.compare("eq", f.load("i8", byte), 0)
                    f.set(missing, f.or_(f.get("i1", missing), f.and_(never, reads)))
                else:
                    f.store(literal("i8", 1), byte)
            acting = f.add(me, lane)
            # To other blocks an atomic of block scope is a plain store.
            noted = f.compare("ne", f.load("ptr", _ROW, ROW[f"last_{actor}"]), NULL)
            with f.when(f.and_(noted, weak)):
                f.call(f"gemmkit.act_{actor}", "void", C, SITE_POINTER, offset, BYTES, _ROW, acting)
            noted = f.compare("ne", f.load("ptr", _ROW, ROW["seen_strong"]), NULL)
            with f.when(f.and_(noted, f.not_(weak))):
                writes = literal("i64", int(kind != "load"))
                f.call("gemmkit.act_strong", "void", C, SITE_POINTER, offset, BYTES, _ROW, acting,
                       writes)  # fmt: skip
            with f.when(watched):
                f.call(f"gemmkit.{actor}_in_block", "void", C, SITE_POINTER, P, lane, offset, BYTES,
                       _ROW, acting)  # fmt: skip
            if kind == "load":
                noted = f.compare("ne", f.load("ptr", _ROW, ROW["nc_reader"]), NULL)
                with f.when(f.and_(noted, read_only)):
                    f.call("gemmkit.act_nc", "void", C, SITE_POINTER, offset, BYTES, _ROW, acting)
        with f.when(f.get("i1", missing)):
            report(f, UNINITIALIZED, extra=BYTES)
        if kind == "update":
            with f.when(known), f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
                offset = f.sub(f.add(BASE, element(f, P, lane, 64)), start)
                with f.loop(BYTES) as further:
                    f.store(literal("i8", 1), f.offset(written, f.add(offset, further)))
        f.ret()


def _running(f: Function, s: Value) -> Value:
    """The running warp's lane 0 at the instruction, as an actor."""
    warp = f.and_(f.lshr(f.load("i64", s, SHADOW["own_tag"]), TAG_WARP), 255)
    site, worker = (f.integer(each) for each in (SITE_POINTER, C))
    record = f.lshr(f.sub(site, worker), SITE_BYTES.bit_length() - 1)
    block = f.shl(f.add(f.load("i64", C, WORKER["cluster_start"]), 1), ACTOR_BLOCK)
    block = f.or_(block, f.shl(f.load("i64", C, WORKER["cluster_rank"]), ACTOR_RANK))
    return f.add(f.or_(block, f.shl(record, ACTOR_SITE)), f.binary("mul", warp, LANES))


def _define_act(module: Module, actor: str) -> None:
    """act_<actor>(worker, site, offset, bytes, row, acting): record which blocks access these
    granules."""
    offset, acting = Value("i64", "%offset"), Value("i64", "%acting")
    parameters = (C, SITE_POINTER, offset, BYTES, _ROW, acting)
    with module.function(f"gemmkit.act_{actor}", "void", parameters) as f:
        s = shadow(f)
        shift = f.load("i64", s, SHADOW["global_shift"])
        maps = [f.load("ptr", _ROW, ROW[f"{which}_{actor}"]) for which in ("last", "first")]
        with f.when(f.compare("eq", maps[1], NULL)):
            f.leave(f"gemmkit.act_{actor}_in_order", C, SITE_POINTER, offset, BYTES, _ROW, acting)
        first = f.lshr(offset, shift)
        with f.loop(f.lshr(BYTES, shift)) as further:
            at = f.shl(f.add(first, further), 3)
            for map_, number in zip(maps, (acting, f.not_(acting)), strict=True):
                cell = f.offset(map_, at)
                now = f.value("i64", f"load atomic i64, {cell} monotonic, align 8")
                with f.when(f.compare("ult", now, number)):
                    f.atomic("umax", cell, number)
        f.ret()


def _define_act_nc(module: Module) -> None:
    """act_nc(worker, site, offset, bytes, row, acting): these granules are read by a read-only
    load."""
    offset, acting = Value("i64", "%offset"), Value("i64", "%acting")
    parameters = (C, SITE_POINTER, offset, BYTES, _ROW, acting)
    with module.function("gemmkit.act_nc", "void", parameters) as f:
        s = shadow(f)
        shift = f.load("i64", s, SHADOW["global_shift"])
        map_, first = f.load("ptr", _ROW, ROW["nc_reader"]), f.lshr(offset, shift)
        with f.loop(f.lshr(BYTES, shift)) as further:
            cell = f.offset(map_, f.shl(f.add(first, further), 3))
            f.atomic("umax", cell, acting)
        f.ret()
