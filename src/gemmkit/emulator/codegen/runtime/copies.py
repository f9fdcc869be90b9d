"""cp.async: copies from global to shared memory, performed when they are issued."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    ALL_LANES,
    MISALIGNED,
    OUT_OF_BOUNDS,
    PATTERN,
    SITE,
    STRIP_LANES,
    STRIPS,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER as SITE_AT
from gemmkit.emulator.codegen.runtime.bounds import C, allowed, check
from gemmkit.emulator.codegen.runtime.counts import Memo
from gemmkit.emulator.codegen.runtime.patterns import element, lanes_where, strip_of

TO, TO_BASE = Value("ptr", "%to"), Value("i64", "%to_base")
FROM, FROM_BASE = Value("ptr", "%from"), Value("i64", "%from_base")
# The bytes that each lane reads, if not all; the rest of its target becomes zero.
SIZES = Value("ptr", "%sizes")
# Whether it goes through the L1 cache: .ca, not .cg.
CACHED = Value("i1", "%cached")
NULL = Value("ptr", "null")


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    with module.function("gemmkit.positive", "i32", (SIZES,)) as f:
        f.ret(lanes_of_size(f, "ne", 0))
    _define_search(module)
    for size in (4, 8, 16):
        _define_copy(module, size)


def lanes_of_size(f: Function, relation: str, number: int) -> Value:
    """The lanes whose size compares like this with a number."""

    def holds(strip: int) -> Value:
        return f.compare(relation, strip_of(f, SIZES, strip, 32), number)

    return lanes_where(f, holds)


def length(f: Function, lane: Value, size: Value) -> Value:
    """The bytes that a lane reads."""
    chosen = f.variable(size)
    with f.when(f.compare("ne", SIZES, NULL)):
        given = f.resize(element(f, SIZES, lane, 32), 64)
        f.set(chosen, f.intrinsic("umin", given, size))
    return f.get("i64", chosen)


def count_copy(f: Function, size: int) -> None:
    """Add the request's counts of shared memory to the instruction's record."""
    arguments = (SITE_AT, TO, TO_BASE, FROM, FROM_BASE, literal("i32", size))
    with f.when(CACHED):
        f.call("gemmkit.count_copy_ca", "void", *arguments)
    with f.when(f.not_(CACHED)):
        f.call("gemmkit.count_copy_cg", "void", *arguments)


def _define_search(module: Module) -> None:
    """search_copy(worker, site, from, from_base, sizes, bytes): whether the source may be read."""
    size = Value("i64", "%n")
    parameters = (C, SITE_AT, FROM, FROM_BASE, SIZES, size)
    with module.function("gemmkit.search_copy", "i1", parameters) as f:
        start = f.add(FROM_BASE, f.load("i64", FROM, PATTERN.least))
        extent = f.add(f.load("i64", FROM, PATTERN.extent), size)
        region = f.call("gemmkit.find", "ptr", C, start, extent)
        with f.when(f.compare("ne", region, NULL)):
            f.store(f.load("i64", region), SITE_AT, SITE["region"])
            f.store(f.load("i64", region, 8), SITE_AT, SITE["region_bytes"])
        with f.each_bit(f.load("i32", FROM, PATTERN.mask)) as lane:
            address = f.add(FROM_BASE, element(f, FROM, lane, 64))
            found = f.call("gemmkit.find", "ptr", C, address, length(f, lane, size))
            aligned = f.compare("eq", f.and_(address, f.sub(size, 1)), 0)
            for good, kind in (
                (aligned, MISALIGNED),
                (f.compare("ne", found, NULL), OUT_OF_BOUNDS),
            ):
                with f.when(f.not_(good)):
                    number = literal("i64", kind)
                    f.call("gemmkit.refuse", "void", C, SITE_AT, number, address, lane)
                    f.ret(literal("i1", 0))
        f.ret(literal("i1", 1))


def _define_copy(module: Module, size: int) -> None:
    """copy_async_<bytes>(worker, site, to, to_base, from, from_base, sizes, cached)."""
    parameters = (C, SITE_AT, TO, TO_BASE, FROM, FROM_BASE, SIZES, CACHED)
    whole = literal("i64", size)
    with module.function(f"gemmkit.copy_async_{size}", "void", parameters) as f:
        lanes, reading = (f.load("i32", each, PATTERN.mask) for each in (TO, FROM))
        with f.when(f.compare("eq", lanes, 0)):
            f.ret()
        check(f, "shared", size, TO, TO_BASE)
        count_copy(f, size)
        with f.when(f.compare("ne", reading, 0)):
            certain = allowed(f, "global", size, FROM, FROM_BASE)
            with f.when(f.not_(certain)):
                arguments = (C, SITE_AT, FROM, FROM_BASE, SIZES, whole)
                good = f.call("gemmkit.search_copy", "i1", *arguments)
                with f.when(f.not_(good)):
                    f.ret()
            memo = Memo(f, "global", size, store=False, p=FROM, base=FROM_BASE)
            memo.find()
            memo.add()
            memo.add_tags()
        to = f.offset(f.load("ptr", C, WORKER["shared"]), TO_BASE)
        start = f.pointer(FROM_BASE)
        with f.when(f.compare("eq", f.and_(lanes, reading), ALL_LANES)):
            full = f.variable(literal("i1", 1))
            with f.when(f.compare("ne", SIZES, NULL)):
                f.set(full, f.compare("eq", lanes_of_size(f, "uge", size), ALL_LANES))
            with f.when(f.get("i1", full)):
                with f.when(f.compare("ne", SIZES, NULL)):
                    f.increase(SITE_AT, SITE["bytes_copied"], 32 * size)
                _copy_all(f, to, start, size)
                f.ret()
        with f.each_bit(lanes) as lane:
            _copy_lane(f, lane, reading, to, start, size)
        f.ret()


def _copy_all(f: Function, to: Value, start: Value, size: int) -> None:
    with f.loop(STRIPS) as strip:
        step = f.shl(strip, 6)
        offsets = [f.load(vector("i64"), f.offset(each, step)) for each in (TO, FROM)]
        for lane in range(STRIP_LANES):
            there, here = (
                f.offset(base, f.extract(each, lane))
                for base, each in zip((to, start), offsets, strict=True)
            )
            f.store(f.load(_type(size), here, align=size), there, align=size)


def _type(size: int) -> str:
    return "<4 x i32>" if size == 16 else f"i{8 * size}"


def _copy_lane(
    f: Function, lane: Value, reading: Value, to: Value, start: Value, size: int
) -> None:
    """One lane's copy; bytes beyond its size become zero."""
    there = f.offset(to, element(f, TO, lane, 64))
    reads = f.and_(f.lshr(reading, f.resize(lane, 32)), 1)
    f.clear(there, size)
    with f.when(f.compare("ne", reads, 0)):
        here = f.offset(start, element(f, FROM, lane, 64))
        count = length(f, lane, literal("i64", size))
        with f.loop(count) as byte:
            f.store(f.load("i8", f.offset(here, byte)), f.offset(there, byte))
        with f.when(f.compare("ne", SIZES, NULL)):
            f.increase(SITE_AT, SITE["bytes_copied"], count)
