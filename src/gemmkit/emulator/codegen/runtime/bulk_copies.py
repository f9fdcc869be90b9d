"""Bulk copies to shared memory without Python, as far as they are valid.

Without sanitizers, and in the warps' own order, they take effect when they are issued.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import TRANSFER, WINDOWS, WORKER
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.mbarrier_objects import (
    LANES,
    NULL,
    NUMBER,
    Names,
    Object,
    W,
    begin,
    end,
    in_range,
    lanes_from,
    leave,
)
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.counters.transfers import PIECE_BYTES
from gemmkit.emulator.isa.bulk_copies import UNIT
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    for space in ("global", "shared"):
        _define_copy(module, Names(sanitize=False), space)


def _define_copy(module: Module, names: Names, space: str) -> None:
    """mbarrier_copy_<space>(worker, warp, instruction, lanes, counts, sizes, destinations, sources,
    mbarriers): bulk copies to shared memory, which take effect at once."""
    counts, sizes, to, start, barriers = (
        Value("ptr", f"%{name}") for name in ("counts", "sizes", "to", "start", "barriers")
    )
    parameters = (C, W, NUMBER, LANES, counts, sizes, to, start, barriers)
    with module.function(names(f"copy_{space}"), "void", parameters) as f:
        begin(f, names)
        with f.each_bit(LANES) as lane:

            def left(lane: Value = lane) -> None:
                leave(f, lanes_from(f, lane))

            size = f.resize(element(f, sizes, lane, 32), 64)
            target = _in_window(f, element(f, to, lane, 64))
            source = element(f, start, lane, 64)
            if space == "shared":
                source = _in_window(f, source)
            barrier = _in_window(f, element(f, barriers, lane, 64))
            found = Object.at(f, barrier, left)
            low = f.and_(f.or_(size, f.or_(target, source)), UNIT - 1)
            transactions = f.sub(found.transactions, size)
            good = f.and_(f.compare("eq", low, 0), f.compare("ne", size, 0))
            good = f.and_(good, in_range(f, transactions))
            good = f.and_(good, _in_shared(f, target, size))
            # The copy must not change its own mbarrier.
            distance = f.sub(f.add(barrier, OBJECT_BYTES - 1), target)
            good = f.and_(good, f.compare("uge", distance, f.add(size, OBJECT_BYTES - 1)))
            if space == "shared":
                good = f.and_(good, _in_shared(f, source, size))
            with f.when(f.not_(good)):
                left()
            shared = f.load("ptr", C, WORKER["shared"])
            if space == "global":
                region = f.call("gemmkit.find", "ptr", C, source, size)
                with f.when(f.compare("eq", region, NULL)):
                    left()
            data = f.pointer(source) if space == "global" else f.offset(shared, source)
            place = f.offset(shared, target)

            def copy(place: Value = place, data: Value = data, size: Value = size) -> None:
                f.move(place, data, size)

            found.change(f, found.pending, transactions, None, left, names, copy)
            outer = source if space == "global" else target
            f.increase(counts, TRANSFER["sectors"], _sectors(f, outer, size))
        end(f)


def _sectors(f: Function, address: Value, size: Value) -> Value:
    """The sectors that the pieces of a copy touch, as `counters.transfers` has them."""
    within = f.and_(address, SECTOR_BYTES - 1)

    def touched(nbytes: int | Value) -> Value:
        last = f.add(f.add(within, nbytes), SECTOR_BYTES - 1)
        return f.lshr(last, SECTOR_BYTES.bit_length() - 1)

    rest = f.and_(size, PIECE_BYTES - 1)
    pieces = f.lshr(size, PIECE_BYTES.bit_length() - 1)
    of_rest = f.select(f.compare("eq", rest, 0), literal("i64", 0), touched(rest))
    return f.add(f.binary("mul", pieces, touched(PIECE_BYTES)), of_rest)


def _in_window(f: Function, address: Value) -> Value:
    """The address in shared memory that a generic or a shared one stands for."""
    window = WINDOWS["shared"]
    return f.select(f.compare("uge", address, window), f.sub(address, window), address)


def _in_shared(f: Function, address: Value, size: Value) -> Value:
    """Whether some bytes are in the block's shared memory."""
    start = f.sub(address, f.load("i64", C, WORKER["shared_base"]))
    extent = f.load("i64", C, WORKER["shared_bytes"])
    fits = f.compare("ule", start, f.sub(extent, size))
    return f.and_(fits, f.compare("ule", size, extent))
