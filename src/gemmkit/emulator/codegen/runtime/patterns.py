"""Patterns: the lanes' addresses relative to each other, looked up in a cache, computed if new.

Code that walks through memory has few patterns: the same distances between lanes, moved as a whole.
What follows from a pattern alone (bounds, the way to load, sectors, bank conflicts) is kept with
it, so that an access costs a comparison and a table look-up.
"""

from __future__ import annotations

from collections.abc import Callable

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    ALL_LANES,
    LANES,
    LINEAR,
    NO_PATTERN,
    PATTERN,
    PATTERN_WAYS,
    RISING,
    STRIP_LANES,
    STRIPS,
    WINDOWS_FIT,
    WORKER,
)

WORKER_POINTER = Value("ptr", "%c")
PATTERN_POINTER = Value("ptr", "%p")
ADDRESSES = Value("ptr", "%a")
LANE_SET = Value("i32", "%m")
NO_LANES = literal("i32", 0)
BASE = Value("i64", "%base")
# The cost of computing a pattern, in units of fuel.
MISS_COST = 16

_MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)
_HASH_SHIFT = 32 - PATTERN_WAYS.bit_length() + 1
_WINDOW = 28
_FAR = 1 << 62


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    for bits in (32, 64):
        _define_build(module, bits)
        _define_match(module, bits)


def lanes_of(f: Function, lanes: Value, strip: int | Value) -> Value:
    """A strip of a set of lanes, as a vector of i1."""
    shift = literal("i32", strip * STRIP_LANES) if isinstance(strip, int) else strip
    byte = f.resize(f.lshr(lanes, shift), 8)
    return f.unpacked(byte)


def lanes_where(f: Function, holds: Callable[[int], Value], found: Value = NO_LANES) -> Value:
    """`found` and the lanes in which `holds(strip)`, a strip of i1, is true."""
    for strip in range(STRIPS):
        bits = f.resize(f.packed(holds(strip)), 32)
        found = f.or_(found, f.shl(bits, strip * STRIP_LANES))
    return found


def any_set(f: Function, a: Value) -> Value:
    """Whether any bit of a vector is set."""
    set_ = f.packed(f.compare("ne", a, 0))
    return f.compare("ne", set_, 0)


def element(f: Function, array: Value, index: Value, bits: int) -> Value:
    """One element of an array of integers."""
    pointer = f.element(array, f.resize(index, 64), bits)
    return f.load(f"i{bits}", pointer)


def strip_of(f: Function, array: Value, strip: int, bits: int) -> Value:
    """Eight elements of an array of integers."""
    return f.load(vector(f"i{bits}"), array, strip * STRIP_LANES * bits // 8)


def _distances(f: Function, strip: int, bits: int, base: Value, masked: bool) -> Value:
    distance = f.sub(strip_of(f, ADDRESSES, strip, bits), base)
    return f.select(lanes_of(f, LANE_SET, strip), distance, 0) if masked else distance


def _define_match(module: Module, bits: int) -> None:
    """match(worker, cache, addresses, lanes) -> the pattern, with its base set."""
    cache = Value("ptr", "%cache")
    parameters = (WORKER_POINTER, cache, ADDRESSES, LANE_SET)
    with module.function(f"gemmkit.match{bits}", "ptr", parameters) as f:
        with f.when(f.compare("eq", LANE_SET, 0)):
            f.ret(f.offset(WORKER_POINTER, NO_PATTERN))
        first = f.lowest_bit(LANE_SET)
        base = element(f, ADDRESSES, first, bits)
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
        f.increase(WORKER_POINTER, WORKER["patterns"], 1)
        f.store(f.load("i64", WORKER_POINTER, WORKER["patterns"]), victim, PATTERN.serial)
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
        distance = f.resize(f.sub(element(f, ADDRESSES, lane, bits), base), 32)
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
        differs = f.xor(distance, strip_of(f, stored, strip, bits))
        different = differs if different is None else f.or_(different, differs)
    assert different is not None
    with f.when(f.not_(any_set(f, different))):
        f.store(f.resize(base, 64), entry, PATTERN.base)
        f.ret(entry)


def _define_build(module: Module, bits: int) -> None:
    """pattern(entry, addresses, lanes): compute a pattern."""
    with module.function(
        f"gemmkit.pattern{bits}", "void", (PATTERN_POINTER, ADDRESSES, LANE_SET)
    ) as f:
        p = PATTERN_POINTER
        base = element(f, ADDRESSES, f.lowest_bit(LANE_SET), bits)
        splat = f.splat(base)
        f.store(f.resize(base, 64), p, PATTERN.base)
        f.store(LANE_SET, p, PATTERN.mask)
        most, least = literal("i64", -(1 << 63)), literal("i64", (1 << 63) - 1)
        bits_set = literal("i64", 0)
        fits, linear = literal("i1", 1), f.compare("eq", LANE_SET, ALL_LANES)
        for strip in range(STRIPS):
            active = lanes_of(f, LANE_SET, strip)
            some = f.packed(active)
            narrow = _distances(f, strip, bits, splat, masked=True)
            offsets = f.resize(narrow, 64, signed=True)
            f.store(offsets, p, PATTERN.offsets + strip * STRIP_LANES * 8)
            f.store(f.resize(narrow, 32), p, PATTERN.narrow + strip * STRIP_LANES * 4)
            low = f.select(active, offsets, (1 << 63) - 1)
            high = f.select(active, offsets, -(1 << 63))
            lowest = f.intrinsic("vector.reduce.smin", low, result="i64")
            highest = f.intrinsic("vector.reduce.smax", high, result="i64")
            least = f.intrinsic("smin", least, lowest)
            most = f.intrinsic("smax", most, highest)
            bits_set = f.or_(bits_set, f.intrinsic("vector.reduce.or", offsets, result="i64"))
            start = f.select(f.compare("eq", some, 0), literal("i64", 0), lowest)
            f.store(start, p, PATTERN.strip_least + strip * 8)
            within = f.sub(f.select(active, offsets, f.splat(start)), f.splat(start))
            outside = f.or_(f.compare("ugt", within, _WINDOW),
                            f.compare("ne", f.and_(within, 3), 0))  # fmt: skip
            fits = f.and_(fits, f.compare("eq", f.packed(outside), 0))
            order = f.resize(f.lshr(within, 2), 32)
            f.store(order, p, PATTERN.order + strip * STRIP_LANES * 4)
            row = ", ".join(f"i64 {4 * (strip * STRIP_LANES + lane)}" for lane in range(8))
            expected = Value(vector("i64"), f"<{row}>")
            linear = f.and_(linear, f.not_(any_set(f, f.xor(offsets, expected))))
        f.store(least, p, PATTERN.least)
        # Distances may exceed the signed range; no memory is that large.
        extent = f.intrinsic("umin", f.sub(most, least), literal("i64", _FAR))
        f.store(extent, p, PATTERN.extent)
        f.store(bits_set, p, PATTERN.bits)
        flags = f.or_(f.select(fits, literal("i32", WINDOWS_FIT), 0),
                      f.select(linear, literal("i32", LINEAR), 0))  # fmt: skip
        rising = f.variable(f.compare("eq", LANE_SET, ALL_LANES))
        with f.loop(literal("i64", LANES), start=1) as lane:
            here, before = (element(f, p, each, 64) for each in (lane, f.sub(lane, 1)))
            f.set(rising, f.and_(f.get("i1", rising), f.compare("sge", here, before)))
        flags = f.or_(flags, f.select(f.get("i1", rising), literal("i32", RISING), 0))
        f.store(flags, p, PATTERN.flags)
        f.clear(f.offset(p, PATTERN.sectors), PATTERN.serial - PATTERN.sectors)
        f.store(literal("i64", 0), p, PATTERN.start_pairs)
        f.ret()
