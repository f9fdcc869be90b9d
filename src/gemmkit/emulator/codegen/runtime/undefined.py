"""Tracks which bits of memory are defined, and reports uses of undefined ones.

For shared memory the bitmap `initialized` says it, for global memory the bytes recorded as written,
for local memory a copy of it with a 1 for each defined bit.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    LANES,
    PATTERN,
    SITE,
    STRIP_LANES,
    STRIPS,
    WARP,
    WINDOW_BYTES,
    WINDOWS,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.lanes import source_lane
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.runtime.shadow import (
    BYTES,
    NULL,
    common_word,
    each_word,
    event,
    report,
    shadow,
    site_shadow,
)
from gemmkit.emulator.codegen.runtime.shadow import ROW_BYTES as ROW_WIDTH
from gemmkit.emulator.codegen.shadow_layout import (
    ABSENT,
    COMMON,
    KEPT,
    ROW,
    ROW_BYTES,
    SHADOW,
    SHADOW_SITE,
    UNINITIALIZED,
    USED,
)

W = Value("ptr", "%w")
_SPACES = ("shared", "local", "global", "generic")
_LANE, _ADDRESS = Value("i64", "%lane"), Value("i64", "%address")
_BITS, _NUMBER = Value("i64", "%bits"), Value("i64", "%number")
_ALL = literal("i64", -1)


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_used(module)
    _define_whole(module)
    _define_bits_shared(module)
    _define_bits_local(module)
    _define_bits_global(module)
    _define_keep_shared(module)
    _define_keep_local(module)
    _define_generic(module)
    for mode in ("up", "down", "bfly", "idx"):
        _define_absent(module, mode)
    for space in _SPACES:
        _define_defined(module, space)
        _define_keep(module, space)


def _define_used(module: Module) -> None:
    """used(worker, lanes, instruction and operand): these lanes use undefined bits."""
    lanes = Value("i32", "%lanes")
    with module.function(f"gemmkit.{PREFIX}used", "void", (C, lanes, _NUMBER)) as f:
        event(f, USED, _NUMBER, f.resize(lanes, 64))
        f.ret()


def _define_absent(module: Module, mode: str) -> None:
    """absent_<mode>(worker, lanes, b, c, masks, instruction) -> lanes of a shuffle that read from a
    lane that does not participate or is not in their mask; reports the first."""
    lanes = Value("i32", "%lanes")
    b, c, masks = (Value("ptr", f"%{name}") for name in ("choice", "limits", "masks"))
    parameters = (C, lanes, b, c, masks, _NUMBER)
    name = f"gemmkit.{PREFIX}absent_{mode}"
    with module.function(name, "i32", parameters, inline=False) as f:
        found, first = f.variable(literal("i32", 0)), f.variable(literal("i64", 0))
        with f.each_bit(lanes) as lane:
            own = f.resize(lane, 32)
            other, inside = source_lane(f, mode, lane, b, c)
            chosen = f.select(inside, other, own)
            there = f.lshr(f.and_(lanes, element(f, masks, lane, 32)), f.and_(chosen, 31))
            absent = f.and_(f.xor(there, 1), 1)
            none = f.compare("eq", f.get("i32", found), 0)
            with f.when(f.and_(none, f.compare("ne", absent, 0))):
                f.set(first, f.shl(f.resize(chosen, 64), 32))
            f.set(found, f.or_(f.get("i32", found), f.shl(absent, own)))
        with f.when(f.compare("ne", f.get("i32", found), 0)):
            more = f.or_(f.resize(f.get("i32", found), 64), f.get("i64", first))
            event(f, ABSENT, _NUMBER, more)
        f.ret(f.get("i32", found))


def _shared_end(f: Function) -> Value:
    """The first address past the block's shared memory."""
    return f.add(*(f.load("i64", C, WORKER[each]) for each in ("shared_base", "shared_bytes")))


def _define_bits_shared(module: Module) -> None:
    """bits_<space>(worker, warp, lane, address, bytes) -> the defined bits of a number in memory,
    and all bits beyond it; all bits if the access was refused."""
    parameters = (C, W, _LANE, _ADDRESS, BYTES)
    with module.function("gemmkit.bits_shared", "i64", parameters) as f:
        room = f.sub(_shared_end(f), BYTES)
        with f.when(f.or_(f.compare("ugt", _ADDRESS, room), f.compare("slt", room, 0))):
            f.ret(_ALL)
        s = shadow(f)
        shift = f.load("i64", s, SHADOW["granule_shift"])
        found = f.variable(_ALL)
        with f.loop(BYTES) as further:
            granule = f.lshr(f.add(_ADDRESS, further), shift)
            common = common_word(f, s, f.lshr(granule, 6))
            ready, alarm = (
                f.load("i64", common, COMMON[each]) for each in ("initialized", "alarm")
            )
            bit = f.and_(f.lshr(f.or_(ready, alarm), f.and_(granule, 63)), 1)
            with f.when(f.compare("eq", bit, 0)):
                _take_byte(f, found, further, literal("i64", 0))
        f.ret(f.get("i64", found))


def _define_whole(module: Module) -> None:
    """whole_<space>(worker, site, pattern, base, bytes, bytes) -> whether all that a load reads is
    certainly defined."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES, ROW_WIDTH)
    with module.function("gemmkit.whole_shared", "i1", parameters) as f:
        least, extent = (f.load("i64", P, getattr(PATTERN, each)) for each in ("least", "extent"))
        start, room = f.add(BASE, least), f.sub(_shared_end(f), BYTES)
        room = f.sub(room, extent)
        with f.when(f.or_(f.compare("ugt", start, room), f.compare("slt", room, 0))):
            f.ret(literal("i1", 0))
        s, missing = shadow(f), f.variable(literal("i64", 0))
        granule = f.shl(literal("i64", 1), f.load("i64", s, SHADOW["granule_shift"]))
        with f.when(f.compare("ult", BYTES, granule)):
            f.ret(literal("i1", 0))

        def look(word: Value, touched: Value) -> None:
            common = common_word(f, s, word)
            ready, alarm = (
                f.load("i64", common, COMMON[each]) for each in ("initialized", "alarm")
            )
            lacks = f.and_(touched, f.not_(f.or_(ready, alarm)))
            f.set(missing, f.or_(f.get("i64", missing), lacks))

        each_word(f, s, look)
        f.ret(f.compare("eq", f.get("i64", missing), 0))
    with module.function("gemmkit.whole_global", "i1", parameters) as f:
        ours = site_shadow(f, shadow(f))
        region = f.load("i64", SITE_POINTER, SITE["region"])
        with f.when(f.compare("ne", f.load("i64", ours, SHADOW_SITE["region"]), region)):
            f.ret(literal("i1", 0))
        row = f.load("ptr", ours, SHADOW_SITE["row"])
        with f.when(f.compare("eq", row, NULL)):
            f.ret(literal("i1", 0))
        limit = f.sub(f.load("i64", SITE_POINTER, SITE["region_bytes"]), BYTES)
        least, extent = (f.load("i64", P, getattr(PATTERN, each)) for each in ("least", "extent"))
        start, room = f.sub(f.add(BASE, least), region), f.sub(limit, extent)
        inside = f.and_(f.compare("ule", start, room), f.compare("sge", room, 0))
        known = f.compare("eq", f.load("ptr", row, ROW["written"]), NULL)
        f.ret(f.and_(inside, known))


def _take_byte(f: Function, variable: Value, index: Value, byte: Value) -> None:
    """Store a byte into a 64-bit number whose bits there are all set."""
    shift = f.shl(index, 3)
    kept = f.not_(f.shl(f.xor(byte, 255), shift))
    f.set(variable, f.and_(f.get("i64", variable), kept))


def _local_bits(f: Function) -> Value:
    """Where the defined bits of the lane's local memory are kept."""
    warp = f.resize(f.load("i32", W, WARP["index"]), 64)
    thread = f.add(f.shl(warp, LANES.bit_length() - 1), _LANE)
    distance = f.binary("mul", thread, f.load("i64", C, WORKER["local_stride"]))
    return f.offset(f.load("ptr", shadow(f), SHADOW["local_defined"]), f.add(distance, _ADDRESS))


def _return_if_outside_local(f: Function, value: Value | None) -> None:
    room = f.sub(f.load("i64", C, WORKER["local_bytes"]), BYTES)
    with f.when(f.or_(f.compare("ugt", _ADDRESS, room), f.compare("slt", room, 0))):
        f.ret(value)


def _define_bits_local(module: Module) -> None:
    parameters = (C, W, _LANE, _ADDRESS, BYTES)
    with module.function("gemmkit.bits_local", "i64", parameters) as f:
        _return_if_outside_local(f, _ALL)
        start, found = _local_bits(f), f.variable(_ALL)
        with f.loop(BYTES) as further:
            byte = f.resize(f.load("i8", f.offset(start, further)), 64)
            _take_byte(f, found, further, byte)
        f.ret(f.get("i64", found))


def _define_bits_global(module: Module) -> None:
    parameters = (C, W, _LANE, _ADDRESS, BYTES)
    with module.function("gemmkit.bits_global", "i64", parameters) as f:
        region = f.call("gemmkit.find", "ptr", C, _ADDRESS, BYTES)
        with f.when(f.compare("eq", region, NULL)):
            f.ret(_ALL)
        at, first = (f.integer(each) for each in (region, f.load("ptr", C, WORKER["regions"])))
        index = f.lshr(f.sub(at, first), 4)
        row = f.offset(f.load("ptr", shadow(f), SHADOW["rows"]), f.binary("mul", index, ROW_BYTES))
        written = f.load("ptr", row, ROW["written"])
        with f.when(f.compare("eq", written, NULL)):
            f.ret(_ALL)
        start = f.offset(written, f.sub(_ADDRESS, f.load("i64", region)))
        found = f.variable(_ALL)
        with f.loop(BYTES) as further:
            never = f.compare("eq", f.load("i8", f.offset(start, further)), 0)
            with f.when(never):
                _take_byte(f, found, further, literal("i64", 0))
        f.ret(f.get("i64", found))


def _define_keep_shared(module: Module) -> None:
    """keep_bits_<space>(worker, warp, lane, address, bytes, bits): a number with these defined bits
    was stored."""
    parameters = (C, W, _LANE, _ADDRESS, BYTES, _BITS)
    with module.function("gemmkit.keep_bits_shared", "void", parameters) as f:
        room = f.sub(_shared_end(f), BYTES)
        with f.when(f.or_(f.compare("ugt", _ADDRESS, room), f.compare("slt", room, 0))):
            f.ret()
        s = shadow(f)
        shift = f.load("i64", s, SHADOW["granule_shift"])
        with f.loop(BYTES) as further:
            byte = f.and_(f.lshr(_BITS, f.shl(further, 3)), 255)
            with f.when(f.compare("ne", byte, 255)):
                granule = f.lshr(f.add(_ADDRESS, further), shift)
                common = common_word(f, s, f.lshr(granule, 6))
                own = f.shl(literal("i64", 1), f.and_(granule, 63))
                left = f.and_(f.load("i64", common, COMMON["initialized"]), f.not_(own))
                f.store(left, common, COMMON["initialized"])
        f.ret()


def _define_keep_local(module: Module) -> None:
    parameters = (C, W, _LANE, _ADDRESS, BYTES, _BITS)
    with module.function("gemmkit.keep_bits_local", "void", parameters) as f:
        _return_if_outside_local(f, None)
        start = _local_bits(f)
        with f.loop(BYTES) as further:
            byte = f.resize(f.lshr(_BITS, f.shl(further, 3)), 8)
            f.store(byte, f.offset(start, further))
        f.ret()


def _define_generic(module: Module) -> None:
    """The same by generic addresses."""
    parameters = (C, W, _LANE, _ADDRESS, BYTES)
    with module.function("gemmkit.bits_generic", "i64", parameters) as f:
        for space, start in WINDOWS.items():
            with f.when(_within(f, space)):
                here = (C, W, _LANE, f.sub(_ADDRESS, start), BYTES)
                f.ret(f.call(f"gemmkit.bits_{space}", "i64", *here))
        f.ret(f.call("gemmkit.bits_global", "i64", *parameters))


def _within(f: Function, space: str, address: Value = _ADDRESS) -> Value:
    return f.compare("ult", f.sub(address, WINDOWS[space]), WINDOW_BYTES)


def _define_defined(module: Module, space: str) -> None:
    """defined_<space>(worker, warp, site, pattern, base, bytes, shadow): the defined bits of what a
    load reads, into a shadow; for narrow numbers all or none, since they are extended."""
    data = Value("ptr", "%data")
    parameters = (C, W, SITE_POINTER, P, BASE, BYTES, data)
    name = f"gemmkit.{PREFIX}defined_{space}"
    with module.function(name, "void", parameters, inline=False) as f:
        wide = f.compare("eq", BYTES, 8)
        if space in ("shared", "global"):
            call = f"gemmkit.whole_{space}"
            with f.when(f.call(call, "i1", C, SITE_POINTER, P, BASE, BYTES, BYTES)):
                with f.loop(STRIPS) as strip:
                    offset = f.shl(f.binary("mul", strip, STRIP_LANES * 4), f.resize(wide, 64))
                    f.store(literal(vector("i32"), -1), data, offset, 4)
                    with f.when(wide):
                        f.store(literal(vector("i32"), -1), data, f.add(offset, 32), 4)
                f.ret()
        missing = f.variable(literal("i1", 0))
        narrow = f.compare("ult", BYTES, 4)
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            address = f.add(BASE, element(f, P, lane, 64))
            found = f.call(f"gemmkit.bits_{space}", "i64", C, W, lane, address, BYTES)
            lacks = f.compare("ne", found, -1)
            local = literal("i1", 1) if space == "local" else literal("i1", 0)
            if space == "generic":
                local = _within(f, "local", address)
            f.set(missing, f.or_(f.get("i1", missing), f.and_(lacks, local)))
            kept = f.select(f.and_(narrow, lacks), literal("i64", 0), found)
            with f.when(wide):
                f.store(kept, f.element(data, lane, 64))
            with f.when(f.not_(wide)):
                offset = f.element(data, lane, 32)
                f.store(f.resize(kept, 32), offset)
        if space in ("local", "generic"):
            with f.when(f.get("i1", missing)):
                report(f, UNINITIALIZED, extra=BYTES)
        f.ret()


def _define_keep(module: Module, space: str) -> None:
    """keep_<space>(worker, warp, site, pattern, base, bytes, shadow or null, instruction and
    operand): the defined bits of what was stored; a store to global memory is a use."""
    data = Value("ptr", "%data")
    parameters = (C, W, SITE_POINTER, P, BASE, BYTES, data, _NUMBER)
    name = f"gemmkit.{PREFIX}keep_{space}"
    with module.function(name, "void", parameters, inline=False) as f:
        shown, kept = (f.variable(literal("i32", 0)) for _ in range(2))
        wide = f.compare("eq", BYTES, 8)
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            address = f.add(BASE, element(f, P, lane, 64))
            bits = f.variable(_ALL)
            with f.when(f.compare("ne", data, NULL)):
                with f.when(wide):
                    f.set(bits, element(f, data, lane, 64))
                with f.when(f.not_(wide)):
                    above = f.shl(_ALL, f.shl(BYTES, 3))
                    low = f.resize(element(f, data, lane, 32), 64)
                    f.set(bits, f.or_(low, above))
            here = (C, W, lane)
            in_global = literal("i1", 1 if space in ("global", "generic") else 0)
            for each in ("shared", "local"):
                start = WINDOWS[each]
                if space == each:
                    rest = (address, BYTES, f.get("i64", bits))
                    f.call(f"gemmkit.keep_bits_{each}", "void", *here, *rest)
                elif space == "generic":
                    inside = _within(f, each, address)
                    in_global = f.and_(in_global, f.not_(inside))
                    with f.when(inside):
                        rest = (f.sub(address, start), BYTES, f.get("i64", bits))
                        f.call(f"gemmkit.keep_bits_{each}", "void", *here, *rest)
            lacks = f.compare("ne", f.get("i64", bits), -1)
            for variable, bad in (
                (shown, f.and_(in_global, lacks)),
                (kept, f.and_(f.not_(in_global), lacks)),
            ):
                own = f.shl(f.resize(bad, 32), f.resize(lane, 32))
                f.set(variable, f.or_(f.get("i32", variable), own))
        with f.when(f.compare("ne", f.get("i32", shown), 0)):
            f.call(f"gemmkit.{PREFIX}used", "void", C, f.get("i32", shown), _NUMBER)
        with f.when(f.compare("ne", f.get("i32", kept), 0)):
            event(f, KEPT, _NUMBER, f.resize(f.get("i32", kept), 64))
        f.ret()
