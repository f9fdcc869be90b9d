"""What an access counts: sectors of global and local memory, wavefronts of shared memory."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN, SITE, STRIP_LANES, STRIPS
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER
from gemmkit.emulator.codegen.runtime.patterns import BASE, element, strip_of
from gemmkit.emulator.codegen.runtime.patterns import PATTERN_POINTER as P


def define(module: Module) -> None:
    """Add the functions that work counts out."""
    _define_sectors(module)
    _define_wavefronts(module)
    _define_local_sectors(module)


class Memo:
    """A request's count as the pattern remembers it; 0 where it is not known yet.

    For global memory that is sectors, by the address's place within a sector. For shared memory
    it is wavefronts and conflicts: the banks may be turned by any number of words alike. What a
    shared access counts as stands in its record, for ptxas may make it a part of a wider one.
    """

    def __init__(
        self, f: Function, space: str, size: int, *, store: bool, p: Value = P, base: Value = BASE
    ) -> None:
        self._f, self._p, self._base = f, p, base
        self._space, self._store = space, store
        self._size = literal("i32", size)
        if space == "global":
            index = f.lshr(f.or_(f.and_(base, 31), 32), size.bit_length() - 1)
            memo = f.offset(p, PATTERN.sectors)
            self._place = f.value("ptr", f"getelementptr i16, {memo}, {index}")
            self._bits = 16
        elif size < 4:
            index = f.lshr(f.or_(f.and_(base, 3), 4), size.bit_length() - 1)
            memo = f.offset(p, PATTERN.wavefronts + (16 * 8 if store else 0))
            self._place = f.value("ptr", f"getelementptr i64, {memo}, {index}")
            self._bits = 64
        else:
            counts_as = f.load("i64", SITE_POINTER, SITE["counts_as"])
            self._place = f.offset(p, f.and_(counts_as, 0xFFFFFFFF))
            self._size = f.resize(f.lshr(counts_as, 32), 32)
            self._bits = 64

    @property
    def known(self) -> Value:
        """Whether the count is known."""
        return self._f.compare("ne", self._f.load(f"i{self._bits}", self._place), 0)

    def find(self) -> None:
        """Work the count out if it is not known."""
        f = self._f
        with f.when(f.not_(self.known)):
            if self._space == "global":
                f.call("gemmkit.sectors", "void", self._p, self._base, self._place)
            else:
                store = literal("i1", self._store)
                arguments = (self._p, self._base, self._size, store, self._place)
                f.call("gemmkit.wavefronts", "void", *arguments)

    def add(self, site: Value = SITE_POINTER) -> None:
        """Add the count to an instruction's record."""
        f = self._f
        if self._space == "global":
            sectors = f.resize(f.load("i16", self._place), 64)
            f.increase(site, SITE["sectors"], sectors)
            return
        place = f.offset(site, SITE["wavefronts"])
        both = f.value(
            "<2 x i64>", f"zext {f.load('<2 x i32>', self._place, align=8)} to <2 x i64>"
        )
        f.store(f.add(f.load("<2 x i64>", place, align=16), both), place, align=16)


def _define_sectors(module: Module) -> None:
    """sectors(pattern, base, memo): distinct 32-byte sectors of accesses within one each."""
    p, base = P, BASE
    with module.function("gemmkit.sectors", "void", (p, base, Value("ptr", "%memo"))) as f:
        numbers = f.variable(literal(f"<{LANES} x i64>", 0))
        low = f.splat(f.and_(base, 31))
        for strip in range(STRIPS):
            offsets = strip_of(f, f.offset(p, PATTERN.offsets), strip, 64)
            f.store(f.binary("ashr", f.add(offsets, low), 5), numbers, strip * 64)
        count = f.variable(literal("i32", 0))
        lanes = f.load("i32", p, PATTERN.mask)
        with f.each_bit(lanes) as lane:
            mine = f.splat(element(f, numbers, lane, 64))
            below = f.and_(lanes, f.sub(f.shl(literal("i32", 1), f.resize(lane, 32)), 1))
            same = literal("i32", 0)
            for strip in range(STRIPS):
                equal = f.compare("eq", strip_of(f, numbers, strip, 64), mine)
                byte = f.resize(f.value("i8", f"bitcast {equal} to i8"), 32)
                same = f.or_(same, f.shl(byte, strip * STRIP_LANES))
            new = f.compare("eq", f.and_(same, below), 0)
            f.set(count, f.add(f.get("i32", count), f.resize(new, 32)))
        f.store(f.resize(f.get("i32", count), 16), Value("ptr", "%memo"))
        f.ret()


def _define_wavefronts(module: Module) -> None:
    """wavefronts(pattern, base, bytes, store, memo): wavefronts, and those by conflicts.

    The rules are those of `counters.rules`.
    """
    p, base = P, BASE
    size, store, memo = Value("i32", "%n"), Value("i1", "%store"), Value("ptr", "%memo")
    with module.function("gemmkit.wavefronts", "void", (p, base, size, store, memo)) as f:
        lanes = f.load("i32", p, PATTERN.mask)
        offsets = f.offset(p, PATTERN.offsets)
        words_each = f.intrinsic("umax", f.lshr(size, 2), literal("i32", 1))
        merged = literal("i1", 0)
        for bit in (1, 2):
            agree = f.variable(literal("i1", 1))
            with f.each_bit(lanes) as lane:
                other = f.xor(lane, bit)
                there = f.compare("ne", f.and_(f.lshr(lanes, f.resize(other, 32)), 1), 0)
                mine, its = (element(f, offsets, each, 64) for each in (lane, other))
                equal = f.or_(f.not_(there), f.compare("eq", mine, its))
                f.set(agree, f.and_(f.get("i1", agree), equal))
            merged = f.or_(merged, f.get("i1", agree))
        merges = f.and_(f.and_(merged, f.not_(store)), f.compare("ugt", words_each, 1))
        phases = f.lshr(words_each, f.resize(merges, 32))
        width = f.binary("udiv", literal("i32", LANES), phases)
        total, used = f.variable(literal("i32", 0)), f.variable(literal("i32", 0))
        words = f.variable(literal(f"<{LANES} x i64>", 0))
        depth = f.variable(literal(f"<{LANES} x i8>", 0))
        ones = f.lshr(literal("i32", -1), f.sub(literal("i32", LANES), width))
        with f.loop(f.resize(phases, 64)) as phase:
            shift = f.binary("mul", f.resize(phase, 32), width)
            mine = f.and_(lanes, f.shl(ones, shift))
            deepest = _deepest_bank(f, mine, base, words_each, words, depth, offsets)
            f.set(total, f.add(f.get("i32", total), deepest))
            some = f.resize(f.compare("ne", mine, 0), 32)
            f.set(used, f.add(f.get("i32", used), some))
        wavefronts = f.get("i32", total)
        conflicts = f.sub(wavefronts, f.get("i32", used))
        f.store(wavefronts, memo)
        f.store(conflicts, memo, 4)
        f.ret()


def _deepest_bank(
    f: Function,
    lanes: Value,
    base: Value,
    words_each: Value,
    words: Value,
    depth: Value,
    offsets: Value,
) -> Value:
    """The most distinct words of these lanes in one bank."""
    f.store(literal(f"<{LANES} x i8>", 0), depth)
    deepest, seen = f.variable(literal("i32", 0)), f.variable(literal("i64", 0))
    with f.each_bit(lanes) as lane:
        word = f.binary("ashr", f.add(element(f, offsets, lane, 64), base), 2)
        count = f.get("i64", seen)
        new = f.variable(literal("i1", 1))
        with f.loop(count) as earlier:
            differs = f.compare("ne", element(f, words, earlier, 64), word)
            f.set(new, f.and_(f.get("i1", new), differs))
        with f.when(f.get("i1", new)):
            f.store(word, f.value("ptr", f"getelementptr i64, {words}, {count}"))
            f.set(seen, f.add(count, 1))
            with f.loop(f.resize(words_each, 64)) as further:
                bank = f.and_(f.add(word, further), LANES - 1)
                place = f.offset(depth, bank)
                now = f.add(f.load("i8", place), 1)
                f.store(now, place)
                f.set(deepest, f.intrinsic("umax", f.get("i32", deepest), f.resize(now, 32)))
    return f.get("i32", deepest)


def _define_local_sectors(module: Module) -> None:
    """local_sectors(pattern, base, bytes): distinct sectors, where word w of lane l is word
    32 w + l of the warp's local memory; so each strip of lanes has sectors of its own."""
    size = Value("i64", "%n")
    with module.function("gemmkit.local_sectors", "i32", (P, BASE, size)) as f:
        lanes = f.load("i32", P, PATTERN.mask)
        words_each = f.intrinsic("umax", f.lshr(size, 2), literal("i64", 1))
        total = f.variable(literal("i32", 0))
        words = f.variable(literal("<64 x i64>", 0))
        for strip in range(STRIPS):
            seen = f.variable(literal("i64", 0))
            with f.each_bit(f.and_(lanes, 0xFF << (strip * STRIP_LANES))) as lane:
                first = f.binary("ashr", f.add(element(f, P, lane, 64), BASE), 2)
                with f.loop(words_each) as further:
                    word, count_ = f.add(first, further), f.get("i64", seen)
                    new = f.variable(literal("i1", 1))
                    with f.loop(count_) as earlier:
                        differs = f.compare("ne", element(f, words, earlier, 64), word)
                        f.set(new, f.and_(f.get("i1", new), differs))
                    with f.when(f.get("i1", new)):
                        f.store(word, f.value("ptr", f"getelementptr i64, {words}, {count_}"))
                        f.set(seen, f.add(count_, 1))
            f.set(total, f.add(f.get("i32", total), f.resize(f.get("i64", seen), 32)))
        f.ret(f.get("i32", total))
