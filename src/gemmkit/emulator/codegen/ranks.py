"""Emits the conversion of addresses in shared memory from those that a program sees, which have the
rank of their block, to relative ones (see `isa.cluster`)."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.computations import Computations
from gemmkit.emulator.codegen.context import C
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import WINDOW_BYTES, WINDOWS, WORKER
from gemmkit.emulator.codegen.values import Location, Scalar
from gemmkit.emulator.isa.cluster import NO_RANK, OFFSET_MASK, RANK_MASK, RANK_SHIFT


def own_window(f: Function, bits: int) -> Value:
    """Where the running block's shared memory begins in the window of the cluster."""
    rank = f.load("i64", C, WORKER["cluster_rank"])
    return f.shl(f.resize(rank, bits), RANK_SHIFT)


def relative(b: Computations, location: Location, bits: int) -> Location:
    """The relative addresses of a vector or scalar, which may be in any block's memory. If they
    have 64 bits, shared addresses and generic ones in shared memory are converted, no others."""

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        address, own = s
        low = f.and_(address, WINDOW_BYTES - 1) if bits == 64 else address
        rank = f.lshr(low, RANK_SHIFT)
        beyond = f.compare("eq", rank, NO_RANK)
        step = f.shl(f.resize(f.not_(beyond), bits), RANK_SHIFT)
        mine = f.compare("eq", rank, own)
        moved = f.select(mine, f.and_(low, OFFSET_MASK), f.add(low, step))
        if bits == 64:
            window = f.sub(address, low)
            shared = f.or_(f.compare("eq", window, 0), f.compare("eq", window, WINDOWS["shared"]))
            moved = f.select(shared, f.add(window, moved), address)
        return (moved,)

    rank = Scalar(b.f.resize(b.f.load("i64", C, WORKER["cluster_rank"]), bits))
    sources = [(location, bits), (rank, bits)]
    if isinstance(location, Scalar):
        return b.at_once(emit, sources)[0]
    return b.node(emit, sources, [bits])[0]


def mapped(b: Computations, address: Location, rank: Location, bits: int) -> Location:
    """The addresses of the same variables in the blocks of these ranks, as `isa.cluster.mapped`."""
    f = b.f
    several = f.compare("ugt", f.load("i64", C, WORKER["cluster_blocks"]), 1)
    changed = f.select(several, literal(f"i{bits}", RANK_MASK), literal(f"i{bits}", 0))

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        place = f.shl(f.resize(s[1], bits), RANK_SHIFT)
        return (f.xor(s[0], f.and_(f.xor(s[0], place), s[2])),)

    return b.node(emit, [(address, bits), (rank, 32), (Scalar(changed), bits)], [bits])[0]


def relative_base(f: Function, base: Value, bits: int) -> Value:
    """The relative address of an access to the block's own memory; beyond it if it has another
    rank."""
    return f.sub(base, own_window(f, bits))
