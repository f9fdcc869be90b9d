"""How the addresses of a warp lie to one another: looked up in a cache, worked out if new.

Code that walks through memory meets few patterns: the same distances between lanes, moved as a
whole. What follows from a pattern alone (bounds, the way to load, sectors, bank conflicts) is kept
with it, so that an access costs a comparison and a table look-up.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    ALL_LANES,
    LANES,
    LINEAR,
    NO_PATTERN,
    PATTERN,
    PATTERN_WAYS,
    STRIP_LANES,
    STRIPS,
    WINDOWS_FIT,
    WORKER,
)

WORKER_POINTER = Value("ptr", "%c")
PATTERN_POINTER = Value("ptr", "%p")
ADDRESSES = Value("ptr", "%a")
LANE_SET = Value("i32", "%m")
BASE = Value("i64", "%base")
# Cost of a pattern worked out anew, in units of fuel.
MISS_COST = 16

_MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)
_HASH_SHIFT = 32 - PATTERN_WAYS.bit_length() + 1
_WINDOW = 28


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    for bits in (32, 64):
        _define_build(module, bits)
        _define_match(module, bits)
    _define_sectors(module)
    _define_wavefronts(module)


def lanes_of(f: Function, lanes: Value, strip: int | Value) -> Value:
    """A strip of a set of lanes, as a vector of i1."""
    shift = literal("i32", strip * STRIP_LANES) if isinstance(strip, int) else strip
    byte = f.resize(f.lshr(lanes, shift), 8)
    return f.value(vector("i1"), f"bitcast {byte} to {vector('i1')}")


def any_set(f: Function, a: Value) -> Value:
    """Whether any bit of a vector is set."""
    set_ = f.value("i8", f"bitcast {f.compare('ne', a, 0)} to i8")
    return f.compare("ne", set_, 0)


def _element(f: Function, array: Value, lane: Value, bits: int) -> Value:
    index = f.resize(lane, 64)
    place = f.value("ptr", f"getelementptr i{bits}, {array}, {index}")
    return f.load(f"i{bits}", place)


def _strip(f: Function, array: Value, strip: int, bits: int) -> Value:
    return f.load(vector(f"i{bits}"), array, strip * STRIP_LANES * bits // 8)


def _distances(f: Function, strip: int, bits: int, base: Value, masked: bool) -> Value:
    distance = f.sub(_strip(f, ADDRESSES, strip, bits), base)
    return f.select(lanes_of(f, LANE_SET, strip), distance, 0) if masked else distance


def _define_match(module: Module, bits: int) -> None:
    """match(worker, cache, addresses, lanes) -> the pattern, its base set."""
    cache = Value("ptr", "%cache")
    parameters = (WORKER_POINTER, cache, ADDRESSES, LANE_SET)
    with module.function(f"gemmkit.match{bits}", "ptr", parameters) as f:
        with f.when(f.compare("eq", LANE_SET, 0)):
            f.ret(f.offset(WORKER_POINTER, NO_PATTERN))
        first = f.lowest_bit(LANE_SET)
        base = _element(f, ADDRESSES, first, bits)
        way = _hash(f, bits, first, base)
        splat = f.splat(base)
        entries = [
            f.offset(cache, f.binary("mul", f.resize(f.xor(way, flip), 64), PATTERN.size))
            for flip in (0, 1)
        ]
        full = f.compare("eq", LANE_SET, ALL_LANES)
        for entry in entries:
            same = f.compare("eq", f.load("i32", entry, PATTERN.mask), LANE_SET)
            with f.when(same):
                for masked in (False, True):
                    with f.when(f.not_(full) if masked else full):
                        _return_if_equal(f, entry, bits, splat, base, masked)
        used, other = (f.load("i32", entry, PATTERN.mask) for entry in entries)
        spare = f.and_(f.compare("ne", used, 0), f.compare("eq", other, 0))
        victim = f.select(spare, entries[1], entries[0])
        f.call(f"gemmkit.pattern{bits}", "void", victim, ADDRESSES, LANE_SET)
        f.store(f.sub(f.load("i64", WORKER_POINTER, WORKER["fuel"]), MISS_COST),
                WORKER_POINTER, WORKER["fuel"])  # fmt: skip
        f.ret(victim)


def _hash(f: Function, bits: int, first: Value, base: Value) -> Value:
    """A way of the cache, from the lanes and two of their distances."""
    rest = f.and_(LANE_SET, f.sub(LANE_SET, 1))
    second = f.select(f.compare("eq", rest, 0), first, f.lowest_bit(f.or_(rest, 1 << 31)))
    leading = f.intrinsic("ctlz", LANE_SET, Value("i1", "true"), result="i32")
    last = f.sub(literal("i32", LANES - 1), leading)
    mixed = f.binary("mul", LANE_SET, _MULTIPLIERS[0])
    for lane, multiplier in zip((second, last), _MULTIPLIERS[1:], strict=True):
        distance = f.resize(f.sub(_element(f, ADDRESSES, lane, bits), base), 32)
        mixed = f.add(f.binary("mul", f.xor(mixed, f.lshr(mixed, 15)), multiplier),
                      f.binary("mul", distance, _MULTIPLIERS[0]))  # fmt: skip
    return f.lshr(mixed, _HASH_SHIFT)


def _return_if_equal(
    f: Function, entry: Value, bits: int, splat: Value, base: Value, masked: bool
) -> None:
    stored = f.offset(entry, PATTERN.offsets if bits == 64 else PATTERN.narrow)
    different: Value | None = None
    for strip in range(STRIPS):
        distance = _distances(f, strip, bits, splat, masked)
        differs = f.xor(distance, _strip(f, stored, strip, bits))
        different = differs if different is None else f.or_(different, differs)
    assert different is not None
    with f.when(f.not_(any_set(f, different))):
        f.store(f.resize(base, 64), entry, PATTERN.base)
        f.ret(entry)


def _define_build(module: Module, bits: int) -> None:
    """pattern(entry, addresses, lanes): work a pattern out."""
    with module.function(
        f"gemmkit.pattern{bits}", "void", (PATTERN_POINTER, ADDRESSES, LANE_SET)
    ) as f:
        p = PATTERN_POINTER
        base = _element(f, ADDRESSES, f.lowest_bit(LANE_SET), bits)
        splat = f.splat(base)
        f.store(f.resize(base, 64), p, PATTERN.base)
        f.store(LANE_SET, p, PATTERN.mask)
        most, least = literal("i64", -(1 << 63)), literal("i64", (1 << 63) - 1)
        bits_set = literal("i64", 0)
        fits, linear = literal("i1", 1), f.compare("eq", LANE_SET, ALL_LANES)
        for strip in range(STRIPS):
            active = lanes_of(f, LANE_SET, strip)
            some = f.value("i8", f"bitcast {active} to i8")
            narrow = _distances(f, strip, bits, splat, masked=True)
            offsets = f.resize(narrow, 64, signed=True)
            f.store(offsets, p, PATTERN.offsets + strip * STRIP_LANES * 8)
            f.store(f.resize(narrow, 32), p, PATTERN.narrow + strip * STRIP_LANES * 4)
            lowest = f.intrinsic("vector.reduce.smin",
                                 f.select(active, offsets, (1 << 63) - 1), result="i64")  # fmt: skip
            highest = f.intrinsic("vector.reduce.smax",
                                  f.select(active, offsets, -(1 << 63)), result="i64")  # fmt: skip
            least = f.intrinsic("smin", least, lowest)
            most = f.intrinsic("smax", most, highest)
            bits_set = f.or_(bits_set, f.intrinsic("vector.reduce.or", offsets, result="i64"))
            start = f.select(f.compare("eq", some, 0), literal("i64", 0), lowest)
            f.store(start, p, PATTERN.strip_least + strip * 8)
            within = f.sub(f.select(active, offsets, f.splat(start)), f.splat(start))
            outside = f.or_(f.compare("ugt", within, _WINDOW),
                            f.compare("ne", f.and_(within, 3), 0))  # fmt: skip
            fits = f.and_(fits, f.compare("eq", f.value("i8", f"bitcast {outside} to i8"), 0))
            order = f.resize(f.lshr(within, 2), 32)
            f.store(order, p, PATTERN.order + strip * STRIP_LANES * 4)
            row = ", ".join(f"i64 {4 * (strip * STRIP_LANES + lane)}" for lane in range(8))
            expected = Value(vector("i64"), f"<{row}>")
            linear = f.and_(linear, f.not_(any_set(f, f.xor(offsets, expected))))
        f.store(least, p, PATTERN.least)
        f.store(f.sub(most, least), p, PATTERN.extent)
        f.store(bits_set, p, PATTERN.bits)
        flags = f.or_(f.select(fits, literal("i32", WINDOWS_FIT), 0),
                      f.select(linear, literal("i32", LINEAR), 0))  # fmt: skip
        f.store(flags, p, PATTERN.flags)
        f.clear(f.offset(p, PATTERN.sectors), PATTERN.size - PATTERN.sectors)
        f.ret()


def _define_sectors(module: Module) -> None:
    """sectors(pattern, base, memo): distinct 32-byte sectors of accesses within one each."""
    p, base = PATTERN_POINTER, BASE
    with module.function("gemmkit.sectors", "void", (p, base, Value("ptr", "%memo"))) as f:
        numbers = f.variable(literal(f"<{LANES} x i64>", 0))
        low = f.splat(f.and_(base, 31))
        for strip in range(STRIPS):
            offsets = _strip(f, f.offset(p, PATTERN.offsets), strip, 64)
            f.store(f.binary("ashr", f.add(offsets, low), 5), numbers, strip * 64)
        count = f.variable(literal("i32", 0))
        lanes = f.load("i32", p, PATTERN.mask)
        with f.each_bit(lanes) as lane:
            mine = f.splat(_element(f, numbers, lane, 64))
            below = f.and_(lanes, f.sub(f.shl(literal("i32", 1), f.resize(lane, 32)), 1))
            same = literal("i32", 0)
            for strip in range(STRIPS):
                equal = f.compare("eq", _strip(f, numbers, strip, 64), mine)
                byte = f.resize(f.value("i8", f"bitcast {equal} to i8"), 32)
                same = f.or_(same, f.shl(byte, strip * STRIP_LANES))
            new = f.compare("eq", f.and_(same, below), 0)
            f.set(count, f.add(f.get("i32", count), f.resize(new, 32)))
        f.store(f.resize(f.get("i32", count), 16), Value("ptr", "%memo"))
        f.ret()


def _define_wavefronts(module: Module) -> None:
    """wavefronts(pattern, base, bytes, store, memo): wavefronts, and those by conflicts.

    The rules are those of `counters.rules`.
    """
    p, base = PATTERN_POINTER, BASE
    size, store, memo = Value("i32", "%n"), Value("i1", "%store"), Value("ptr", "%memo")
    with module.function("gemmkit.wavefronts", "void", (p, base, size, store, memo)) as f:
        lanes = f.load("i32", p, PATTERN.mask)
        offsets = f.offset(p, PATTERN.offsets)
        words_each = f.intrinsic("umax", f.lshr(size, 2), literal("i32", 1))
        merged = literal("i1", 0)
        for bit in (1, 2):
            agree = f.variable(literal("i1", 1))
            with f.each_bit(lanes) as lane:
                other = f.xor(lane, bit)
                there = f.compare("ne", f.and_(f.lshr(lanes, f.resize(other, 32)), 1), 0)
                mine, its = (_element(f, offsets, each, 64) for each in (lane, other))
                equal = f.or_(f.not_(there), f.compare("eq", mine, its))
                f.set(agree, f.and_(f.get("i1", agree), equal))
            merged = f.or_(merged, f.get("i1", agree))
        merges = f.and_(f.and_(merged, f.not_(store)), f.compare("ugt", words_each, 1))
        phases = f.lshr(words_each, f.resize(merges, 32))
        width = f.binary("udiv", literal("i32", LANES), phases)
        total, used = f.variable(literal("i32", 0)), f.variable(literal("i32", 0))
        words = f.variable(literal(f"<{LANES} x i64>", 0))
        depth = f.variable(literal(f"<{LANES} x i8>", 0))
        ones = f.lshr(literal("i32", -1), f.sub(literal("i32", LANES), width))
        with f.loop(f.resize(phases, 64)) as phase:
            shift = f.binary("mul", f.resize(phase, 32), width)
            mine = f.and_(lanes, f.shl(ones, shift))
            deepest = _deepest_bank(f, mine, base, words_each, words, depth, offsets)
            f.set(total, f.add(f.get("i32", total), deepest))
            some = f.resize(f.compare("ne", mine, 0), 32)
            f.set(used, f.add(f.get("i32", used), some))
        wavefronts = f.get("i32", total)
        conflicts = f.sub(wavefronts, f.get("i32", used))
        f.store(wavefronts, memo)
        f.store(conflicts, memo, 4)
        f.ret()


def _deepest_bank(
    f: Function,
    lanes: Value,
    base: Value,
    words_each: Value,
    words: Value,
    depth: Value,
    offsets: Value,
) -> Value:
    """The most distinct words of these lanes in one bank."""
    f.store(literal(f"<{LANES} x i8>", 0), depth)
    deepest, seen = f.variable(literal("i32", 0)), f.variable(literal("i64", 0))
    with f.each_bit(lanes) as lane:
        word = f.binary("ashr", f.add(_element(f, offsets, lane, 64), base), 2)
        count = f.get("i64", seen)
        new = f.variable(literal("i1", 1))
        with f.loop(count) as earlier:
            differs = f.compare("ne", _element(f, words, earlier, 64), word)
            f.set(new, f.and_(f.get("i1", new), differs))
        with f.when(f.get("i1", new)):
            f.store(word, f.value("ptr", f"getelementptr i64, {words}, {count}"))
            f.set(seen, f.add(count, 1))
            with f.loop(f.resize(words_each, 64)) as further:
                bank = f.and_(f.add(word, further), LANES - 1)
                place = f.offset(depth, bank)
                now = f.add(f.load("i8", place), 1)
                f.store(now, place)
                f.set(deepest, f.intrinsic("umax", f.get("i32", deepest), f.resize(now, 32)))
    return f.get("i32", deepest)
