"""What a request of cp.async counts beyond a load: wavefronts and conflicts in shared memory,
sectors fetched twice, and passes through the tag stage for that.

The rules are those of `counters.rules`.
"""

from __future__ import annotations

from collections.abc import Callable

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN, SITE
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.counters.rules import LINE_BYTES, SECTOR_BYTES, TAG_BANK_MASKS

_SITE = Value("ptr", "%site")
_TO, _TO_BASE = Value("ptr", "%to"), Value("i64", "%to_base")
_FROM, _FROM_BASE = Value("ptr", "%from"), Value("i64", "%from_base")
_SIZE = Value("i32", "%n")
_BOTH = (_SITE, _TO, _TO_BASE, _FROM, _FROM_BASE)
_LINE_BITS, _SECTOR_BITS = (each.bit_length() - 1 for each in (LINE_BYTES, SECTOR_BYTES))
# .cg copies 16 bytes a lane, so that bases lie at one of eight places in a line.
_PLACE_BITS = 3


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
    # No serial number is 0 after this, which is what a record begins with.
    to = f.add(to, 1)
    if not cached:
        # Where bases lie in a line matters; banks may be turned by any number of words alike.
        there, here = (f.and_(f.lshr(each, 4), 7) for each in (_TO_BASE, _FROM_BASE))
        to = f.or_(f.shl(to, 2 * _PLACE_BITS), f.or_(f.shl(there, _PLACE_BITS), here))
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
    """Note the counts; `again` are sectors fetched again and, above 32 bits, pairs beyond lines."""
    f.store(f.resize(wavefronts, 64), _SITE, SITE["copy_wavefronts"])
    f.store(f.resize(f.sub(wavefronts, phases), 64), _SITE, SITE["copy_conflicts"])
    f.store(again, _SITE, SITE["copied_again"])


def _define_queues(module: Module) -> None:
    """copy_queues(site, to, to_base, from, from_base, bytes): of .ca.

    In `last` is the wavefront in which each bank was used last, those of the source after those of
    the target.
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
                    place = f.offset(last, _bank(f, lane, side, word))
                    f.store(f.resize(wavefront, 8), place)
                f.set(deepest, f.intrinsic("umax", f.get("i32", deepest), wavefront))
            f.set(total, f.add(f.get("i32", total), f.get("i32", deepest)))
            some = f.resize(f.compare("ne", mine, 0), 32)
            f.set(used, f.add(f.get("i32", used), some))
        _remember(f, f.get("i32", total), f.get("i32", used), literal("i64", 0))
        f.ret()


def _bank(f: Function, lane: Value, side: Value, word: Value) -> Value:
    """Where `last` holds the bank of a lane's word, of its target (side 0) or its source."""
    is_source = f.compare("ne", side, 0)
    pattern, base = f.select(is_source, _FROM, _TO), f.select(is_source, _FROM_BASE, _TO_BASE)
    address = f.add(base, element(f, pattern, lane, 64))
    bank = f.and_(f.add(f.lshr(address, 2), word), LANES - 1)
    return f.add(f.shl(side, 5), bank)


def _define_pairs(module: Module) -> None:
    """copy_pairs(site, to, to_base, from, from_base): of .cg, 16 bytes a lane."""
    with module.function("gemmkit.copy_pairs", "void", _BOTH, inline=False) as f:
        lanes, reading = (f.load("i32", each, PATTERN.mask) for each in (_TO, _FROM))
        total, used = f.variable(literal("i32", 0)), f.variable(literal("i32", 0))
        for phase in range(4):
            mine = f.and_(lanes, 0xFF << (8 * phase))
            pairs = _distinct(f, f.and_(mine, reading), _LINE_BITS, by_target=True)
            some = f.resize(f.compare("ne", mine, 0), 32)
            f.set(total, f.add(f.get("i32", total), f.intrinsic("umax", pairs, some)))
            f.set(used, f.add(f.get("i32", used), some))
        fetched, sectors, pairs, lines = (
            f.resize(_distinct(f, reading, bits, by_target=by_target), 64)
            for bits in (_SECTOR_BITS, _LINE_BITS)
            for by_target in (True, False)
        )
        apart = f.shl(f.sub(pairs, lines), 32)
        again = f.or_(apart, f.sub(fetched, sectors))
        _remember(f, f.get("i32", total), f.get("i32", used), again)
        f.ret()


def _define_tags(module: Module) -> None:
    """copy_tags(site, to, to_base, from, from_base): the most pairs in a tag bank, not lines."""
    with module.function("gemmkit.copy_tags", "void", _BOTH, inline=False) as f:
        reading = f.load("i32", _FROM, PATTERN.mask)
        pairs, lines = (_deepest_tag_bank(f, reading, by_target=each) for each in (True, False))
        f.increase(_SITE, SITE["more_tags"], f.sub(pairs, lines))
        f.ret()


def _deepest_tag_bank(f: Function, lanes: Value, *, by_target: bool) -> Value:
    depth, most = f.variable(literal("<4 x i64>", 0)), f.variable(literal("i64", 0))

    def add(line: Value) -> None:
        bank = literal("i64", 0)
        for place, mask in enumerate(TAG_BANK_MASKS):
            odd = f.and_(f.intrinsic("ctpop", f.and_(line, mask >> _LINE_BITS), result="i64"), 1)
            bank = f.or_(bank, f.shl(odd, place))
        here = f.value("ptr", f"getelementptr i64, {depth}, {bank}")
        now = f.add(f.load("i64", here), 1)
        f.store(now, here)
        f.set(most, f.intrinsic("umax", f.get("i64", most), now))

    _distinct(f, lanes, _LINE_BITS, by_target=by_target, take=add)
    return f.get("i64", most)


def _distinct(
    f: Function,
    lanes: Value,
    bits: int,
    *,
    by_target: bool,
    take: Callable[[Value], None] | None = None,
) -> Value:
    """Distinct pieces of memory, of 2**bits bytes, that lanes read; by lines that they write to.

    `take` is code for the number of each.
    """
    seen = f.variable(literal("i64", 0))
    sources, targets = (f.variable(literal(f"<{LANES} x i64>", 0)) for _ in range(2))
    with f.each_bit(lanes) as lane:
        source = f.lshr(f.add(_FROM_BASE, element(f, _FROM, lane, 64)), bits)
        target = f.lshr(f.add(_TO_BASE, element(f, _TO, lane, 64)), _LINE_BITS)
        if not by_target:
            target = literal("i64", 0)
        count, new = f.get("i64", seen), f.variable(literal("i1", 1))
        with f.loop(count) as earlier:
            differs = f.or_(
                f.compare("ne", element(f, sources, earlier, 64), source),
                f.compare("ne", element(f, targets, earlier, 64), target),
            )
            f.set(new, f.and_(f.get("i1", new), differs))
        with f.when(f.get("i1", new)):
            for places, number in ((sources, source), (targets, target)):
                f.store(number, f.value("ptr", f"getelementptr i64, {places}, {count}"))
            f.set(seen, f.add(count, 1))
            if take is not None:
                take(source)
    return f.resize(f.get("i64", seen), 32)
