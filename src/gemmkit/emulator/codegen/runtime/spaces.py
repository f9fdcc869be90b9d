"""Loads and stores by local and generic addresses: rare, so the code is short rather than fast."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    PATTERN,
    SITE,
    STRIP_LANES,
    STRIPS,
    WARP,
    WINDOW_BYTES,
    WINDOWS,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.access import COUNTS, data_parameters, return_if_idle
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P, check
from gemmkit.emulator.codegen.runtime.patterns import BASE, element, lanes_of, lanes_where, strip_of

W = Value("ptr", "%w")


def define(module: Module, space: str, bits: int, *, prefix: str = "") -> None:
    """Add loads and stores of one width by `local` or `generic` addresses.

    `prefix` names the functions for global and shared memory that generic ones call.
    """
    for kind in ("load", "store"):
        for count in COUNTS:
            if space == "local":
                _define_local(module, kind, bits, count)
            else:
                _define_generic(module, kind, bits, count, prefix)


def _define_local(module: Module, kind: str, bits: int, count_: int) -> None:
    """Each lane has its own memory."""
    data = data_parameters(count_)
    name = f"gemmkit.{kind}_local_{bits}x{count_}"
    with module.function(name, "void", (C, W, SITE_POINTER, P, BASE, *data)) as f:
        size, width = bits // 8 * count_, max(bits, 32)
        return_if_idle(f)
        check(f, "local", size)
        sectors = f.call("gemmkit.local_sectors", "i32", P, BASE, literal("i64", size))
        f.increase(SITE_POINTER, SITE["sectors"], f.resize(sectors, 64))
        start = local_memory(f)
        each_bytes = f.load("i64", C, WORKER["local_stride"])
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            own = f.offset(start, f.binary("mul", lane, each_bytes))
            here = f.offset(f.offset(own, BASE), element(f, P, lane, 64))
            for index, register in enumerate(data):
                at = f.element(register, lane, width)
                if kind == "load":
                    f.store(f.resize(f.load(f"i{bits}", here, index * bits // 8), width), at)
                else:
                    f.store(f.resize(f.load(f"i{width}", at), bits), here, index * bits // 8)
        f.ret()


def local_memory(f: Function) -> Value:
    """The local memory of the warp's lane 0; the other lanes' memory follows."""
    index = f.resize(f.load("i32", W, WARP["index"]), 64)
    warp_bytes = f.shl(f.load("i64", C, WORKER["local_stride"]), 5)
    return f.offset(f.load("ptr", C, WORKER["local"]), f.binary("mul", index, warp_bytes))


def _define_generic(module: Module, kind: str, bits: int, count_: int, prefix: str) -> None:
    """Select by address: shared, then local, then global memory."""
    data = data_parameters(count_)
    name = f"gemmkit.{prefix}{kind}_generic_{bits}x{count_}"
    with module.function(name, "void", (C, W, SITE_POINTER, P, BASE, *data)) as f:
        return_if_idle(f)
        for_each_part(f, f"{kind}_{{}}_{bits}x{count_}", data, prefix=prefix)
        f.ret()


def for_each_part(
    f: Function,
    name: str,
    rest: Sequence[Value],
    spaces: Sequence[str] = ("shared", "local", "global"),
    prefix: str = "",
) -> None:
    """Call a function of the space for each space that active lanes address, global last."""
    lanes = f.load("i32", P, PATTERN.mask)
    addresses = f.variable(literal("<32 x i64>", 0))
    left = f.variable(lanes)
    for strip in range(STRIPS):
        offsets = f.load(vector("i64"), P, strip * STRIP_LANES * 8)
        f.store(f.add(offsets, f.splat(BASE)), addresses, strip * STRIP_LANES * 8)
    part = f.variable(literal(f"<{PATTERN.size} x i8>", 0))
    for space in spaces:
        inside = f.get("i32", left)
        if space != "global":
            inside = _lanes_within(f, addresses, lanes, WINDOWS[space])
            f.set(left, f.and_(f.get("i32", left), f.not_(inside)))
        here = [C, W] if space == "local" else [C]
        before = "gemmkit." if space == "local" else f"gemmkit.{prefix}"
        function, start = before + name.format(space), WINDOWS.get(space, 0)
        with f.when(f.compare("eq", inside, lanes)):
            _count_global_request(f, space)
            f.call(function, "void", *here, SITE_POINTER, P, f.sub(BASE, start), *rest)
            f.ret()
        with f.when(f.compare("ne", inside, 0)):
            f.call("gemmkit.pattern64", "void", part, addresses, inside)
            base = f.sub(f.load("i64", part, PATTERN.base), start)
            _count_global_request(f, space)
            f.call(function, "void", *here, SITE_POINTER, part, base, *rest)


def _count_global_request(f: Function, space: str) -> None:
    """The number of requests that go to global memory is not known for generic addresses, so the
    one tag-stage wavefront that each takes at least is counted here."""
    if space == "global":
        f.increase(SITE_POINTER, SITE["more_tags"], 1)


def _lanes_within(f: Function, addresses: Value, lanes: Value, start: int) -> Value:
    def within(strip: int) -> Value:
        offsets = f.sub(strip_of(f, addresses, strip, 64), start)
        return f.and_(f.compare("ult", offsets, WINDOW_BYTES), lanes_of(f, lanes, strip))

    return lanes_where(f, within)
