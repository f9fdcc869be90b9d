"""`st.async` without Python: all lanes of a warp store in one block of the cluster, and count at
one mbarrier there, whose phase this does not complete.

All else is left to Python, as is the instruction with sanitizers.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES as MOST_LANES
from gemmkit.emulator.codegen.layout import TRANSFER, WORKER
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.counts import first_lanes
from gemmkit.emulator.codegen.runtime.mbarrier_objects import (
    LANES,
    NUMBER,
    Names,
    W,
    begin,
    end,
    in_range,
    leave,
)
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.isa.cluster import OFFSET_MASK, RANK_SHIFT, WINDOW_BYTES
from gemmkit.emulator.isa.mbarriers import (
    INITIALIZED,
    MARK,
    MOST,
    OBJECT_BYTES,
    TRANSACTIONS,
    TX_BITS,
)

# The bits of a value, and how many each lane stores.
SHAPES = ((32, 1), (32, 2), (32, 4), (64, 1), (64, 2))
_COUNTS, _TO, _BARRIERS = (Value("ptr", f"%{name}") for name in ("counts", "to", "barriers"))


def define(module: Module) -> None:
    """Add mbarrier_send_<bits>x<values>(worker, warp, instruction, lanes, counts, values…,
    destinations, mbarriers); addresses are relative, see `isa.cluster`."""
    names = Names(sanitize=False)
    for bits, count in SHAPES:
        data = tuple(Value("ptr", f"%d{index}") for index in range(count))
        parameters = (C, W, NUMBER, LANES, _COUNTS, *data, _TO, _BARRIERS)
        with module.function(names(f"send_{bits}x{count}"), "void", parameters, inline=False) as f:
            begin(f, names)
            _send(f, data, bits)


def _leave_unless(f: Function, good: Value) -> None:
    with f.when(f.not_(good)):
        leave(f, LANES)


def _send(f: Function, data: tuple[Value, ...], bits: int) -> None:
    nbytes = bits // 8 * len(data)
    lowest = f.resize(f.lowest_bit(LANES), 64)
    first, barrier = (element(f, each, lowest, 64) for each in (_TO, _BARRIERS))
    rank = f.lshr(first, RANK_SHIFT)
    good = f.compare("ult", f.or_(first, barrier), WINDOW_BYTES)
    good = f.and_(good, f.compare("eq", f.lshr(barrier, RANK_SHIFT), rank))
    good = f.and_(good, f.compare("ule", rank, f.load("i64", C, WORKER["cluster_blocks"])))
    place = f.and_(barrier, OFFSET_MASK)
    good = f.and_(good, _inside(f, place, OBJECT_BYTES))
    _leave_unless(f, f.and_(good, f.compare("eq", f.and_(place, OBJECT_BYTES - 1), 0)))
    sectors = f.variable(literal(f"<{MOST_LANES} x i64>", 0))
    with f.each_bit(LANES) as lane:
        address = element(f, _TO, lane, 64)
        start = f.and_(address, OFFSET_MASK)
        alike = f.and_(
            f.compare("eq", f.lshr(address, RANK_SHIFT), rank),
            f.compare("eq", element(f, _BARRIERS, lane, 64), barrier),
        )
        aligned = f.compare("eq", f.and_(start, nbytes - 1), 0)
        # The mbarrier itself must not change.
        distance = f.sub(f.add(place, OBJECT_BYTES - 1), start)
        clear = f.compare("uge", distance, nbytes + OBJECT_BYTES - 1)
        good = f.and_(f.and_(alike, aligned), f.and_(clear, _inside(f, start, nbytes)))
        _leave_unless(f, good)
        f.store(f.lshr(start, SECTOR_BYTES.bit_length() - 1), f.element(sectors, lane, 64))
    memory = f.variable(f.load("ptr", C, WORKER["shared"]))
    with f.when(f.compare("ne", rank, 0)):
        peers = f.load("ptr", C, WORKER["peers"])
        f.set(memory, f.load("ptr", f.offset(peers, f.shl(f.sub(rank, 1), 3))))
    at = f.offset(f.get("ptr", memory), place)
    word = f.load("i64", at)
    lanes = f.resize(f.intrinsic("ctpop", LANES), 64)
    unused = 64 - TRANSACTIONS - TX_BITS
    before = f.binary("ashr", f.shl(word, unused), unused + TRANSACTIONS)
    after = f.sub(before, f.binary("mul", lanes, literal("i64", nbytes)))
    # With nothing pending, the phase completes once all bytes have arrived.
    going = f.or_(f.compare("ne", f.and_(word, MOST), 0), f.compare("sgt", after, 0))
    valid = f.compare("eq", f.lshr(word, MARK), INITIALIZED)
    _leave_unless(f, f.and_(f.and_(valid, going), in_range(f, after)))
    with f.each_bit(LANES) as lane:
        start = f.and_(element(f, _TO, lane, 64), OFFSET_MASK)
        target = f.offset(f.get("ptr", memory), start)
        for index, each in enumerate(data):
            f.store(element(f, each, lane, bits), target, index * bits // 8)
    count = (1 << TX_BITS) - 1
    kept = f.and_(word, ~(count << TRANSACTIONS))
    f.store(f.or_(kept, f.shl(f.and_(after, count), TRANSACTIONS)), at)
    f.increase(_COUNTS, TRANSFER["requests"], literal("i64", 1))
    touched = f.intrinsic("ctpop", first_lanes(f, LANES, sectors), result="i32")
    f.increase(_COUNTS, TRANSFER["sectors"], f.resize(touched, 64))
    end(f)


def _inside(f: Function, start: Value, nbytes: int) -> Value:
    """Whether so many bytes are in a block's shared memory."""
    within = f.sub(start, f.load("i64", C, WORKER["shared_base"]))
    room = f.sub(f.load("i64", C, WORKER["shared_bytes"]), nbytes)
    return f.and_(f.compare("ule", within, room), f.compare("sge", room, 0))
