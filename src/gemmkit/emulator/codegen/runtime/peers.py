"""Accesses to the shared memory of other blocks of a cluster.

They take the slow path of an access to shared memory: as a whole if all lanes may access the memory
of one other block, else lane by lane. Their requests and sectors are counted; the rules of
wavefronts are those of a block's own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    LANES,
    MISALIGNED,
    OUT_OF_BOUNDS,
    PATTERN,
    REACHES_PEERS,
    SITE,
    WINDOW_BYTES,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.counts import first_lanes
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.isa.cluster import OFFSET_MASK, RANK_SHIFT

NULL = Value("ptr", "null")
_SIZE, _ADDRESS, _LANE = Value("i64", "%n"), Value("i64", "%address"), Value("i64", "%lane")
_SOME = Value("i32", "%lanes")
_SECTOR_BITS = SECTOR_BYTES.bit_length() - 1


def define(module: Module) -> None:
    """Add peer_lanes(worker, site, pattern, base): the lanes whose addresses are in the window of
    the cluster, with the rank of a block; peer_pointer(worker, site, address, bytes, lane): where
    such an address is on the host, or null if it is refused; count_peers(worker, site, pattern,
    base, lanes): count the request that these lanes make."""
    with module.function("gemmkit.peer_lanes", "i32", (C, SITE_POINTER, P, BASE)) as f:
        may = f.and_(f.load("i64", SITE_POINTER, SITE["counts_as"]), REACHES_PEERS)
        several = f.compare("ugt", f.load("i64", C, WORKER["cluster_blocks"]), 1)
        with f.when(f.not_(f.and_(f.compare("ne", may, 0), several))):
            f.ret(literal("i32", 0))
        found = f.variable(literal("i32", 0))
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            rank = f.lshr(_address_of(f, lane), RANK_SHIFT)
            bit = f.shl(literal("i32", 1), f.resize(lane, 32))
            own = f.compare("eq", rank, 0)
            f.set(found, f.or_(f.get("i32", found), f.select(own, literal("i32", 0), bit)))
        f.ret(f.get("i32", found))
    _define_common_peer(module)
    parameters = (C, SITE_POINTER, _ADDRESS, _SIZE, _LANE)
    with module.function("gemmkit.peer_pointer", "ptr", parameters) as f:
        rank = f.sub(f.lshr(_ADDRESS, RANK_SHIFT), 1)
        low = f.and_(_ADDRESS, OFFSET_MASK)
        inside = f.sub(low, f.load("i64", C, WORKER["shared_base"]))
        room = f.sub(f.load("i64", C, WORKER["shared_bytes"]), _SIZE)
        beyond = f.compare("uge", rank, f.load("i64", C, WORKER["cluster_blocks"]))
        outside = f.or_(f.compare("slt", inside, 0), f.compare("sgt", inside, room))
        for wrong, kind in (
            (f.compare("ne", f.and_(_ADDRESS, f.sub(_SIZE, 1)), 0), MISALIGNED),
            (f.or_(beyond, outside), OUT_OF_BOUNDS),
        ):
            with f.when(wrong):
                # The sanitizers report it themselves.
                with f.when(f.compare("eq", f.load("ptr", C, WORKER["shadow"]), NULL)):
                    what = literal("i64", kind)
                    f.call("gemmkit.refuse", "void", C, SITE_POINTER, what, _ADDRESS, _LANE)
                f.ret(NULL)
        peers = f.load("ptr", C, WORKER["peers"])
        memory = f.load("ptr", f.offset(peers, f.shl(rank, 3)))
        f.ret(f.offset(memory, low))
    parameters = (C, SITE_POINTER, P, BASE, _SOME)
    with module.function("gemmkit.count_peers", "void", parameters, inline=False) as f:
        numbers = f.variable(literal(f"<{LANES} x i64>", 0))
        # An access is aligned to its size, and thus within one sector.
        with f.each_bit(_SOME) as lane:
            f.store(f.lshr(_address_of(f, lane), _SECTOR_BITS), f.element(numbers, lane, 64))
        sectors = f.intrinsic("ctpop", first_lanes(f, _SOME, numbers), result="i32")
        f.increase(SITE_POINTER, SITE["peer_requests"], literal("i64", 1))
        f.increase(SITE_POINTER, SITE["peer_sectors"], f.resize(sectors, 64))
        f.ret()


def _define_common_peer(module: Module) -> None:
    """common_peer(worker, site, pattern, base, bytes): where the base address is on the host, if
    all lanes certainly may access the memory of one other block; else null."""
    with module.function("gemmkit.common_peer", "ptr", (C, SITE_POINTER, P, BASE, _SIZE)) as f:
        may = f.and_(f.load("i64", SITE_POINTER, SITE["counts_as"]), REACHES_PEERS)
        start = f.add(BASE, f.load("i64", P, PATTERN.least))
        rank = f.lshr(start, RANK_SHIFT)
        # An address beyond the window, or before it, has a higher rank.
        exists = f.compare("ult", f.sub(rank, 1), f.load("i64", C, WORKER["cluster_blocks"]))
        several = f.compare("ugt", f.load("i64", C, WORKER["cluster_blocks"]), 1)
        within = f.sub(f.and_(start, OFFSET_MASK), f.load("i64", C, WORKER["shared_base"]))
        extent = f.load("i64", P, PATTERN.extent)
        room = f.sub(f.sub(f.load("i64", C, WORKER["shared_bytes"]), _SIZE), extent)
        fits = f.and_(f.compare("ule", within, room), f.compare("sge", room, 0))
        low = f.and_(f.or_(BASE, f.load("i64", P, PATTERN.bits)), f.sub(_SIZE, 1))
        good = f.and_(f.and_(exists, several), f.and_(fits, f.compare("eq", low, 0)))
        with f.when(f.not_(f.and_(good, f.compare("ne", may, 0)))):
            f.ret(NULL)
        place = f.shl(f.sub(rank, 1), 3)
        memory = f.load("ptr", f.offset(f.load("ptr", C, WORKER["peers"]), place))
        f.ret(f.offset(memory, f.sub(BASE, f.shl(rank, RANK_SHIFT))))


def _address_of(f: Function, lane: Value) -> Value:
    return f.and_(f.add(BASE, element(f, P, lane, 64)), WINDOW_BYTES - 1)


def visit_peers(
    f: Function,
    size: int,
    whole: Callable[[Value], None],
    act: Callable[[Value, Value], None],
    again: Callable[[Value, Value], None],
    before: Callable[[Value], None] | None = None,
) -> None:
    """Perform an access to shared memory in the lanes that address other blocks, and return.

    `whole` performs it in all lanes, given where the base address is on the host, `act` in one
    lane, at a host address, and `again` in the lanes that are left, given their pattern and base
    address. `before` is called with the mask of the lanes first.
    """
    arguments = (C, SITE_POINTER, P, BASE, literal("i64", size))
    common = f.call("gemmkit.common_peer", "ptr", *arguments)
    with f.when(f.compare("ne", common, NULL)):
        lanes = f.load("i32", P, PATTERN.mask)
        if before is not None:
            before(lanes)
        f.call("gemmkit.count_peers", "void", C, SITE_POINTER, P, BASE, lanes)
        whole(common)
        f.ret()
    lanes = f.call("gemmkit.peer_lanes", "i32", C, SITE_POINTER, P, BASE)
    with f.when(f.compare("ne", lanes, 0)):
        if before is not None:
            before(lanes)
        f.call("gemmkit.count_peers", "void", C, SITE_POINTER, P, BASE, lanes)
        with f.each_bit(lanes) as lane:
            arguments = (C, SITE_POINTER, _address_of(f, lane), literal("i64", size), lane)
            at = f.call("gemmkit.peer_pointer", "ptr", *arguments)
            with f.when(f.compare("ne", at, NULL)):
                act(lane, at)
        left = f.and_(f.load("i32", P, PATTERN.mask), f.not_(lanes))
        with f.when(f.compare("ne", left, 0)):
            part = f.variable(literal(f"<{PATTERN.size} x i8>", 0))
            addresses = f.variable(literal(f"<{LANES} x i64>", 0))
            with f.each_bit(left) as lane:
                f.store(_address_of(f, lane), f.element(addresses, lane, 64))
            f.call("gemmkit.pattern64", "void", part, addresses, left)
            again(part, f.load("i64", part, PATTERN.base))
        f.ret()


def move_lane(
    f: Function, kind: str, data: Sequence[Value], bits: int
) -> Callable[[Value, Value], None]:
    """A load or store in one lane."""
    width = max(bits, 32)

    def act(lane: Value, at: Value) -> None:
        for index, register in enumerate(data):
            own, offset = f.element(register, lane, width), index * bits // 8
            if kind == "load":
                f.store(f.resize(f.load(f"i{bits}", at, offset), width), own)
            else:
                f.store(f.resize(f.load(f"i{width}", own), bits), at, offset)

    return act


def update_lane(
    f: Function, function: Value, registers: Sequence[Value]
) -> Callable[[Value, Value], None]:
    """An atomic in one lane, by a function that takes a pattern."""
    part = f.variable(literal(f"<{PATTERN.size} x i8>", 0))
    addresses = f.variable(literal(f"<{LANES} x i64>", 0))

    def act(lane: Value, at: Value) -> None:
        own = f.shl(literal("i32", 1), f.resize(lane, 32))
        f.call("gemmkit.pattern64", "void", part, addresses, own)
        f.call_pointer(function, "void", part, at, *registers)

    return act
