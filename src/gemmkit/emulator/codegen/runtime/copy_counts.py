"""The counts of a cp.async request beyond those of a load: wavefronts and conflicts in shared
memory, sectors fetched twice, and the wavefronts of the tag stage for these.

The rules are those of `counters.rules`.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN, SITE, STRIPS
from gemmkit.emulator.codegen.runtime.counts import deepest_tag_bank, first_lanes
from gemmkit.emulator.codegen.runtime.patterns import element, strip_of
from gemmkit.emulator.counters.rules import LINE_BYTES, SECTOR_BYTES

_SITE = Value("ptr", "%site")
_TO, _TO_BASE = Value("ptr", "%to"), Value("i64", "%to_base")
_FROM, _FROM_BASE = Value("ptr", "%from"), Value("i64", "%from_base")
_SIZE = Value("i32", "%n")
_BOTH = (_SITE, _TO, _TO_BASE, _FROM, _FROM_BASE)
_LINE_BITS, _SECTOR_BITS = (each.bit_length() - 1 for each in (LINE_BYTES, SECTOR_BYTES))
# .cg copies 16 bytes per lane, so that a base has one of eight positions in a line.
_POSITION_BITS = 3
# The number of a line of shared memory fits this many bits.
_TARGET_BITS = 16


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_queues(module)
    _define_pairs(module)
    _define_tags(module)
    for name, cached in (("ca", True), ("cg", False)):
        with module.function(f"gemmkit.count_copy_{name}", "void", (*_BOTH, _SIZE)) as f:
            _define_count(f, cached=cached)


def _define_count(f: Function, *, cached: bool) -> None:
    """count_copy_<caching>(site, to, to_base, from, from_base, bytes)."""
    to, start = (f.load("i64", each, PATTERN.serial) for each in (_TO, _FROM))
    # Serial numbers start at 1; a new record holds 0.
    to = f.add(to, 1)
    if not cached:
        # The position of a base in its line matters; rotating all banks by the same number of words
        # does not.
        there, here = (f.and_(f.lshr(each, 4), 7) for each in (_TO_BASE, _FROM_BASE))
        to = f.or_(f.shl(to, 2 * _POSITION_BITS), f.or_(f.shl(there, _POSITION_BITS), here))
    same = f.and_(
        f.compare("eq", f.load("i64", _SITE, SITE["copied_to"]), to),
        f.compare("eq", f.load("i64", _SITE, SITE["copied_from"]), start),
    )
    with f.when(f.not_(same)):
        f.store(to, _SITE, SITE["copied_to"])
        f.store(start, _SITE, SITE["copied_from"])
        if cached:
            f.call("gemmkit.copy_queues", "void", *_BOTH, _SIZE)
        else:
            f.call("gemmkit.copy_pairs", "void", *_BOTH)
    own, all_ = SITE["copy_wavefronts"], SITE["wavefronts"]
    counts = f.load("<2 x i64>", _SITE, own, align=16)
    f.store(f.add(f.load("<2 x i64>", _SITE, all_, align=16), counts), _SITE, all_, align=16)
    if not cached:
        again = f.load("i64", _SITE, SITE["copied_again"])
        with f.when(f.compare("ne", again, 0)):
            f.increase(_SITE, SITE["sectors"], f.and_(again, 0xFFFFFFFF))
            f.call("gemmkit.copy_tags", "void", *_BOTH)
    f.ret()


def _remember(f: Function, wavefronts: Value, phases: Value, again: Value) -> None:
    """Store the counts; `again` holds sectors fetched again and, from bit 32, the excess pairs."""
    f.store(f.resize(wavefronts, 64), _SITE, SITE["copy_wavefronts"])
    f.store(f.resize(f.sub(wavefronts, phases), 64), _SITE, SITE["copy_conflicts"])
    f.store(again, _SITE, SITE["copied_again"])


def _define_queues(module: Module) -> None:
    """copy_queues(site, to, to_base, from, from_base, bytes): the counts of .ca.

    `last` holds the wavefront in which each bank was used last, the source's banks after the
    target's.
    """
    with module.function("gemmkit.copy_queues", "void", (*_BOTH, _SIZE), inline=False) as f:
        lanes, reading = (f.load("i32", each, PATTERN.mask) for each in (_TO, _FROM))
        words = f.lshr(_SIZE, 2)
        width = f.binary("udiv", literal("i32", LANES), words)
        ones = f.lshr(literal("i32", -1), f.sub(literal("i32", LANES), width))
        total, used = f.variable(literal("i32", 0)), f.variable(literal("i32", 0))
        last = f.variable(literal(f"<{2 * LANES} x i8>", 0))
        with f.loop(f.resize(words, 64)) as phase:
            mine = f.and_(lanes, f.shl(ones, f.binary("mul", f.resize(phase, 32), width)))
            f.store(literal(f"<{2 * LANES} x i8>", 0), last)
            deepest = f.variable(literal("i32", 0))
            with f.each_bit(mine) as lane:
                reads = f.and_(f.lshr(reading, f.resize(lane, 32)), 1)
                sides = f.add(f.resize(reads, 64), 1)
                first = f.variable(literal("i32", 0))
                with f.loop(sides) as side, f.loop(f.resize(words, 64)) as word:
                    before = f.load("i8", f.offset(last, _bank(f, lane, side, word)))
                    f.set(first, f.intrinsic("umax", f.get("i32", first), f.resize(before, 32)))
                wavefront = f.add(f.get("i32", first), 1)
                with f.loop(sides) as side, f.loop(f.resize(words, 64)) as word:
                    pointer = f.offset(last, _bank(f, lane, side, word))
                    f.store(f.resize(wavefront, 8), pointer)
                f.set(deepest, f.intrinsic("umax", f.get("i32", deepest), wavefront))
            f.set(total, f.add(f.get("i32", total), f.get("i32", deepest)))
            some = f.resize(f.compare("ne", mine, 0), 32)
            f.set(used, f.add(f.get("i32", used), some))
        _remember(f, f.get("i32", total), f.get("i32", used), literal("i64", 0))
        f.ret()


def _bank(f: Function, lane: Value, side: Value, word: Value) -> Value:
    """The entry of `last` for the bank of a lane's word, of its target (side 0) or its source."""
    is_source = f.compare("ne", side, 0)
    pattern, base = f.select(is_source, _FROM, _TO), f.select(is_source, _FROM_BASE, _TO_BASE)
    address = f.add(base, element(f, pattern, lane, 64))
    bank = f.and_(f.add(f.lshr(address, 2), word), LANES - 1)
    return f.add(f.shl(side, 5), bank)


def _define_pairs(module: Module) -> None:
    """copy_pairs(site, to, to_base, from, from_base): the counts of .cg, 16 bytes per lane."""
    with module.function("gemmkit.copy_pairs", "void", _BOTH, inline=False) as f:
        lanes, reading = (f.load("i32", each, PATTERN.mask) for each in (_TO, _FROM))
        line_pairs = _pairs(f, _LINE_BITS)
        total = used = literal("i32", 0)
        for phase in range(4):
            mine = f.and_(lanes, 0xFF << (8 * phase))
            some = f.resize(f.compare("ne", mine, 0), 32)
            total = f.add(
                total, f.intrinsic("umax", _distinct(f, f.and_(mine, reading), line_pairs), some)
            )
            used = f.add(used, some)
        fetched, sectors, pairs, lines = (
            f.resize(_distinct(f, reading, numbers), 64)
            for numbers in (
                _pairs(f, _SECTOR_BITS),
                _units(f, _FROM, _FROM_BASE, _SECTOR_BITS),
                line_pairs,
                _units(f, _FROM, _FROM_BASE, _LINE_BITS),
            )
        )
        apart = f.shl(f.sub(pairs, lines), 32)
        _remember(f, total, used, f.or_(apart, f.sub(fetched, sectors)))
        f.ret()


def _define_tags(module: Module) -> None:
    """copy_tags(site, to, to_base, from, from_base): the most pairs, instead of lines, in a tag
    bank."""
    with module.function("gemmkit.copy_tags", "void", _BOTH, inline=False) as f:
        first = first_lanes(f, f.load("i32", _FROM, PATTERN.mask), _pairs(f, _LINE_BITS))
        pairs = deepest_tag_bank(f, first, _units(f, _FROM, _FROM_BASE, _LINE_BITS))
        lines = f.call("gemmkit.tags", "i64", _FROM, _FROM_BASE)
        f.increase(_SITE, SITE["more_tags"], f.sub(f.resize(pairs, 64), lines))
        f.ret()


def _distinct(f: Function, lanes: Value, numbers: Value) -> Value:
    return f.intrinsic("ctpop", first_lanes(f, lanes, numbers), result="i32")


def _units(f: Function, pattern: Value, base: Value, bits: int) -> Value:
    """For each lane, the number of the aligned unit of 2**bits bytes that its address is in."""
    numbers = f.variable(literal(f"<{LANES} x i64>", 0))
    for strip in range(STRIPS):
        address = f.add(strip_of(f, pattern, strip, 64), f.splat(base))
        f.store(f.lshr(address, bits), numbers, strip * 64)
    return numbers


def _pairs(f: Function, bits: int) -> Value:
    """For each lane, a number that identifies the unit it reads from and the line it writes to."""
    pieces = _units(f, _FROM, _FROM_BASE, bits)
    lines = _units(f, _TO, _TO_BASE, _LINE_BITS)
    for strip in range(STRIPS):
        piece, line = (strip_of(f, each, strip, 64) for each in (pieces, lines))
        f.store(f.or_(f.shl(piece, _TARGET_BITS), line), pieces, strip * 64)
    return pieces
