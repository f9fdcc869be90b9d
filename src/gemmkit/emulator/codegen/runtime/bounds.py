"""Checks whether a warp's access is allowed.

Every access is checked against the memory that it may touch: the region that its instruction
accessed last, or else all regions. A refused access records the fault, does nothing, and lets the
warp run on to the next point where it can be stopped.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    MISALIGNED,
    OUT_OF_BOUNDS,
    PATTERN,
    SITE,
    WINDOW_BYTES,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.patterns import (
    BASE,
    PATTERN_POINTER,
    WORKER_POINTER,
    element,
)

C, P, SITE_POINTER = WORKER_POINTER, PATTERN_POINTER, Value("ptr", "%site")


def define(module: Module) -> None:
    """Add the functions that look up regions and refuse accesses."""
    _define_refuse(module)
    _define_find(module)
    _define_search(module)
    for space in ("shared", "local"):
        _define_check(module, space)


def _define_refuse(module: Module) -> None:
    """refuse(worker, site, kind, address, lane): record the first fault, and stop soon."""
    kind, address, lane = Value("i64", "%kind"), Value("i64", "%address"), Value("i64", "%lane")
    with module.function("gemmkit.refuse", "void", (C, SITE_POINTER, kind, address, lane)) as f:
        f.store(literal("i64", -1), C, WORKER["fuel"])
        with f.when(f.compare("eq", f.load("i64", C, WORKER["fault"]), 0)):
            f.store(SITE_POINTER, C, WORKER["fault_site"])
            for field, a in (("fault", kind), ("fault_address", address), ("fault_lane", lane)):
                f.store(a, C, WORKER[field])
        f.ret()


def _define_find(module: Module) -> None:
    """find(worker, address, bytes) -> (first byte, size) of the region that holds them, or null."""
    address, size = Value("i64", "%address"), Value("i64", "%n")
    with module.function("gemmkit.find", "ptr", (C, address, size)) as f:
        regions = f.load("ptr", C, WORKER["regions"])
        low = f.variable(literal("i64", 0))
        high = f.variable(f.load("i64", C, WORKER["region_count"]))
        head, body, done = f.name("head"), f.name("body"), f.name("done")
        f.branch(head)
        f.label(head)
        least, most = f.get("i64", low), f.get("i64", high)
        f.branch_if(f.compare("ult", least, most), body, done)
        f.label(body)
        middle = f.lshr(f.add(least, most), 1)
        region = f.offset(regions, f.shl(middle, 4))
        start, extent = f.load("i64", region), f.load("i64", region, 8)
        before = f.compare("ult", address, start)
        within = f.sub(address, start)
        fits = f.and_(f.compare("ule", size, extent),
                      f.compare("ule", within, f.sub(extent, size)))  # fmt: skip
        with f.when(f.and_(f.not_(before), fits)):
            f.ret(region)
        f.set(high, f.select(before, middle, most))
        f.set(low, f.select(before, least, f.add(middle, 1)))
        f.branch(head)
        f.label(done)
        f.ret(Value("ptr", "null"))


def _define_search(module: Module) -> None:
    """search(worker, site, pattern, base, bytes): whether an access to global memory is allowed."""
    size = Value("i64", "%n")
    with module.function("gemmkit.search", "i1", (C, SITE_POINTER, P, BASE, size)) as f:
        lanes = f.load("i32", P, PATTERN.mask)
        extent = f.load("i64", P, PATTERN.extent)
        _refuse_misaligned(f, lanes, size)
        start = f.add(BASE, f.load("i64", P, PATTERN.least))
        region = f.call("gemmkit.find", "ptr", C, start, f.add(extent, size))
        with f.when(f.compare("ne", region, Value("ptr", "null"))):
            f.store(f.load("i64", region), SITE_POINTER, SITE["region"])
            f.store(f.load("i64", region, 8), SITE_POINTER, SITE["region_bytes"])
            f.ret(literal("i1", 1))
        with f.each_bit(lanes) as lane:
            address = f.add(BASE, element(f, P, lane, 64))
            found = f.call("gemmkit.find", "ptr", C, address, size)
            with f.when(f.compare("eq", found, Value("ptr", "null"))):
                _refuse(f, OUT_OF_BOUNDS, address, lane)
        f.ret(literal("i1", 1))


def _refuse(f: Function, kind: int, address: Value, lane: Value) -> None:
    f.call("gemmkit.refuse", "void", C, SITE_POINTER, literal("i64", kind), address, lane)
    f.ret(literal("i1", 0))


def _refuse_misaligned(f: Function, lanes: Value, size: Value) -> None:
    with f.each_bit(lanes) as lane:
        address = f.add(BASE, element(f, P, lane, 64))
        with f.when(f.compare("ne", f.and_(address, f.sub(size, 1)), 0)):
            _refuse(f, MISALIGNED, address, lane)


def _define_check(module: Module, space: str) -> None:
    """check_<space>(worker, site, pattern, base, bytes): the same for the 32-bit spaces."""
    size = Value("i64", "%n")
    with module.function(f"gemmkit.check_{space}", "i1", (C, SITE_POINTER, P, BASE, size)) as f:
        lanes = f.load("i32", P, PATTERN.mask)
        limit = f.load("i64", C, WORKER[f"{space}_bytes"])
        _refuse_misaligned(f, lanes, size)
        with f.each_bit(lanes) as lane:
            address = f.and_(f.add(BASE, element(f, P, lane, 64)), WINDOW_BYTES - 1)
            offset = f.sub(address, _first_address(f, space))
            beyond = f.compare("ugt", f.add(offset, size), limit)
            with f.when(f.or_(beyond, f.compare("slt", offset, 0))):
                _refuse(f, OUT_OF_BOUNDS, address, lane)
        f.ret(literal("i1", 1))


def _first_address(f: Function, space: str) -> Value:
    """The first address of a block's shared memory, or of a thread's local memory."""
    if space == "shared":
        return f.load("i64", C, WORKER["shared_base"])
    return literal("i64", 0)


def allowed(
    f: Function,
    space: str,
    size: int,
    p: Value = P,
    base: Value = BASE,
    align: int = 0,
    *,
    by_array: bool = False,
) -> Value:
    """Whether an access of `size` bytes per lane is certainly allowed, aligned to its own size or
    else to `align`. In shared memory it may touch all of it or, with `by_array`, the range of its
    site."""
    align = align or size
    least, extent, bits = (
        f.load("i64", p, getattr(PATTERN, each)) for each in ("least", "extent", "bits")
    )
    start = f.add(base, least)
    if space == "global":
        start = f.sub(start, f.load("i64", SITE_POINTER, SITE["region"]))
        limit = f.load("i64", SITE_POINTER, SITE["region_bytes"])
    elif by_array and space == "shared":
        start = f.sub(start, f.load("i64", SITE_POINTER, SITE["shared_start"]))
        limit = f.load("i64", SITE_POINTER, SITE["shared_size"])
    else:
        start = f.sub(start, _first_address(f, space))
        limit = f.load("i64", C, WORKER[f"{space}_bytes"])
    room = f.sub(f.sub(limit, size), extent)
    good = f.and_(f.compare("ule", start, room), f.compare("sge", room, 0))
    if align > 1:
        low = f.and_(f.or_(base, bits), align - 1)
        good = f.and_(good, f.compare("eq", low, 0))
    return good


def check(f: Function, space: str, size: int, p: Value = P, base: Value = BASE) -> None:
    """Return unless an access of `size` bytes per lane is allowed."""
    with f.when(f.not_(allowed(f, space, size, p, base))):
        slow = "search" if space == "global" else f"check_{space}"
        good = f.call(f"gemmkit.{slow}", "i1", C, SITE_POINTER, p, base, literal("i64", size))
        with f.when(f.not_(good)):
            f.ret()
