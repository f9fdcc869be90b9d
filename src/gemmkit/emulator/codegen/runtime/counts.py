"""The counts of an access: sectors and tag-stage wavefronts of global memory, sectors of local
memory, wavefronts of shared memory."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    LANES,
    PATTERN,
    RISING,
    SITE,
    STORE_WAVEFRONTS,
    STRIP_LANES,
    STRIPS,
)
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER
from gemmkit.emulator.codegen.runtime.patterns import BASE, element, lanes_where, strip_of
from gemmkit.emulator.codegen.runtime.patterns import PATTERN_POINTER as P
from gemmkit.emulator.counters.rules import LINE_BYTES, TAG_BANK_MASKS

_LINE_BITS = LINE_BYTES.bit_length() - 1


def define(module: Module) -> None:
    """Add the functions that compute counts."""
    _define_sectors(module)
    _define_tags(module)
    _define_wavefronts(module)
    _define_local_sectors(module)


class Memo:
    """A request's count as the pattern caches it; 0 if it is not known yet.

    For global memory these are the sectors and the fewest possible sectors, by the address's
    position in a sector; tag-stage wavefronts depend on the whole address. For shared memory they
    are wavefronts and conflicts: rotating the banks does not matter. The record says what a shared
    access counts as, since ptxas may merge it into a wider one.
    """

    def __init__(
        self, f: Function, space: str, size: int, *, store: bool, p: Value = P, base: Value = BASE
    ) -> None:
        self._f, self._p, self._base = f, p, base
        self._space, self._store = space, store
        self._nbytes, self._size = size, literal("i32", size)
        if space == "global":
            index = f.lshr(f.or_(f.and_(base, 31), 32), size.bit_length() - 1)
            memo = f.offset(p, PATTERN.sectors)
            self._place = f.element(memo, index, 32)
            self._bits = 32
        elif size < 4:
            index = f.lshr(f.or_(f.and_(base, 3), 4), size.bit_length() - 1)
            memo = f.offset(p, PATTERN.wavefronts + (16 * 8 if store else 0))
            self._place = f.element(memo, index, 64)
            self._bits = 64
        else:
            counts_as = f.load("i64", SITE_POINTER, SITE["counts_as"])
            self._at = f.and_(counts_as, 0xFFFFFFFF)
            self._place = f.offset(p, self._at)
            self._size = f.and_(f.resize(f.lshr(counts_as, 32), 32), 255)
            self._bits = 64

    @property
    def known(self) -> Value:
        """Whether the count is known."""
        return self._f.compare("ne", self._f.load(f"i{self._bits}", self._place), 0)

    def find(self) -> None:
        """Compute the count if it is not known."""
        f = self._f
        with f.when(f.not_(self.known)):
            if self._space == "global":
                f.call("gemmkit.sectors", "void", self._p, self._base, self._size, self._place)
            else:
                store = literal("i1", self._store)
                if self._nbytes >= 4:  # the record says which rule the access follows
                    store = f.compare("uge", self._at, STORE_WAVEFRONTS)
                arguments = (self._p, self._base, self._size, store, self._place)
                f.call("gemmkit.wavefronts", "void", *arguments)

    def add(self, site: Value = SITE_POINTER) -> None:
        """Add the count to an instruction's record."""
        f = self._f
        if self._space == "global":
            self._add_pair(site, SITE["sectors"], f.load("<2 x i16>", self._place, align=4))
        else:
            self._add_pair(site, SITE["wavefronts"], f.load("<2 x i32>", self._place, align=8))

    def add_tags(self) -> None:
        """Add the tag-stage wavefronts beyond one per request to the record."""
        f = self._f
        if self._space == "global":
            with f.when(self.crosses_lines(self._nbytes)):
                count = f.call("gemmkit.tags", "i64", self._p, self._base)
                self.add_more_tags(count)

    def _add_pair(self, site: Value, field: int, counts: Value) -> None:
        f, pointer = self._f, self._f.offset(site, field)
        both = f.cast("zext", counts, "i64")
        f.store(f.add(f.load("<2 x i64>", pointer, align=16), both), pointer, align=16)

    def crosses_lines(self, nbytes: int) -> Value:
        """Whether `nbytes` from each lane's address on are in more than one cache line."""
        f = self._f
        start = f.add(self._base, f.load("i64", self._p, PATTERN.least))
        last = f.add(f.add(start, f.load("i64", self._p, PATTERN.extent)), nbytes - 1)
        return f.compare("ne", f.lshr(f.xor(start, last), _LINE_BITS), 0)

    def remembered_tags(self) -> Value:
        """The tag-stage wavefronts if they need not be computed, else 0.

        They are the same for all bases that share no bit with the offsets, and for bases near the
        last one as long as no lane enters another line.
        """
        f, p = self._f, self._p
        shared = f.and_(self._base, f.load("i64", p, PATTERN.bits))
        regular = f.select(f.compare("eq", shared, 0), f.load("i64", p, PATTERN.tags), 0)
        within = f.load("i64", p, PATTERN.tags_within)
        distance = f.sub(self._base, f.load("i64", p, PATTERN.tags_from))
        near = f.compare("ult", distance, f.and_(within, 255))
        return f.select(near, f.lshr(within, 8), regular)

    def add_more_tags(self, count: Value, site: Value = SITE_POINTER) -> None:
        """Add tag-stage wavefronts of one request to a record."""
        self._f.increase(site, SITE["more_tags"], self._f.sub(count, 1))


def _define_sectors(module: Module) -> None:
    """sectors(pattern, base, bytes, memo): distinct 32-byte sectors of accesses within one sector
    each, and the fewest sectors that could hold all their bytes."""
    p, base, size, memo = P, BASE, Value("i32", "%n"), Value("ptr", "%memo")
    with module.function("gemmkit.sectors", "void", (p, base, size, memo)) as f:
        numbers = f.variable(literal(f"<{LANES} x i64>", 0))
        low = f.splat(f.and_(base, 31))
        for strip in range(STRIPS):
            offsets = strip_of(f, f.offset(p, PATTERN.offsets), strip, 64)
            f.store(f.binary("ashr", f.add(offsets, low), 5), numbers, strip * 64)
        lanes = f.load("i32", p, PATTERN.mask)
        sectors, fewest = (
            f.intrinsic("ctpop", first_lanes(f, lanes, array), result="i32")
            for array in (numbers, f.offset(p, PATTERN.offsets))
        )
        nbytes = f.binary("mul", fewest, size)
        ideal = f.lshr(f.add(nbytes, 31), 5)
        f.store(f.or_(sectors, f.shl(ideal, 16)), memo)
        f.ret()


def first_lanes(f: Function, lanes: Value, numbers: Value) -> Value:
    """Of these lanes, those whose number (64 bits each) no earlier lane has."""
    found = f.variable(literal("i32", 0))
    with f.each_bit(lanes) as lane:
        mine = f.splat(element(f, numbers, lane, 64))
        bit = f.shl(literal("i32", 1), f.resize(lane, 32))

        def equal(strip: int, mine: Value = mine) -> Value:
            return f.compare("eq", strip_of(f, numbers, strip, 64), mine)

        same = lanes_where(f, equal)
        earlier = f.and_(f.and_(same, lanes), f.sub(bit, 1))
        new = f.select(f.compare("eq", earlier, 0), bit, 0)
        f.set(found, f.or_(f.get("i32", found), new))
    return f.get("i32", found)


def _define_tags(module: Module) -> None:
    """tags(pattern, base): tag-stage wavefronts of accesses within one line each.

    The rule is that of `counters.rules`: the most lines in one of four banks.
    """
    p, base = P, BASE
    with module.function("gemmkit.tags", "i64", (p, base), inline=False) as f:
        start = f.add(base, f.load("i64", p, PATTERN.least))
        _return_for_two_lines(f, start, f.add(start, f.load("i64", p, PATTERN.extent)))
        lanes = f.load("i32", p, PATTERN.mask)
        numbers = f.variable(literal(f"<{LANES} x i64>", 0))
        nearest, farthest = f.splat(literal("i64", LINE_BYTES)), f.splat(literal("i64", 0))
        for strip in range(STRIPS):
            address = f.add(strip_of(f, f.offset(p, PATTERN.offsets), strip, 64), f.splat(base))
            inside = f.and_(address, LINE_BYTES - 1)
            nearest = f.intrinsic("umin", nearest, inside)
            farthest = f.intrinsic("umax", farthest, inside)
            f.store(f.lshr(address, _LINE_BITS), numbers, strip * 64)
        before, after = (
            f.intrinsic(f"vector.reduce.u{which}", each, result="i64")
            for which, each in (("min", nearest), ("max", farthest))
        )
        first = f.variable(literal("i32", 0))
        rising = f.compare("ne", f.and_(f.load("i32", p, PATTERN.flags), RISING), 0)
        with f.when(rising):
            f.set(first, _where_new(f, numbers))
        with f.when(f.not_(rising)):
            f.set(first, first_lanes(f, lanes, numbers))
        most = deepest_tag_bank(f, f.get("i32", first), numbers)
        count = f.resize(most, 64)
        regular = f.compare("eq", f.and_(base, f.load("i64", p, PATTERN.bits)), 0)
        with f.when(regular):
            f.store(count, p, PATTERN.tags)
        # Valid as long as no lane enters another line.
        room = f.add(f.sub(literal("i64", LINE_BYTES), after), before)
        f.store(f.sub(base, before), p, PATTERN.tags_from)
        f.store(f.or_(f.shl(count, 8), room), p, PATTERN.tags_within)
        f.ret(count)


def deepest_tag_bank(f: Function, lanes: Value, lines: Value) -> Value:
    """The most of these lanes whose lines (64 bits each) share a bank of the tag stage."""
    halves = []
    for mask in TAG_BANK_MASKS:

        def odd(strip: int, mask: int = mask) -> Value:
            line = f.resize(strip_of(f, lines, strip, 64), 32)
            folded = f.and_(line, mask >> _LINE_BITS)
            for shift in (8, 4, 2, 1):
                folded = f.xor(folded, f.lshr(folded, shift))
            return f.compare("ne", f.and_(folded, 1), 0)

        halves.append(lanes_where(f, odd))
    most = literal("i32", 0)
    for bank in range(1 << len(halves)):
        chosen = lanes
        for index, half in enumerate(halves):
            chosen = f.and_(chosen, half if bank >> index & 1 else f.xor(half, -1))
        most = f.intrinsic("umax", most, f.intrinsic("ctpop", chosen, result="i32"))
    return most


def _return_for_two_lines(f: Function, start: Value, last: Value) -> None:
    """For two adjacent lines it suffices to know which bits of their numbers differ."""
    first, second = (f.lshr(each, _LINE_BITS) for each in (start, last))
    with f.when(f.compare("eq", f.sub(second, first), 1)):
        different = f.xor(first, second)
        apart = literal("i64", 0)
        for mask in TAG_BANK_MASKS:
            bits = f.intrinsic("ctpop", f.and_(different, mask >> _LINE_BITS), result="i64")
            apart = f.or_(apart, f.and_(bits, 1))
        count = f.sub(literal("i64", 2), apart)
        f.store(BASE, P, PATTERN.tags_from)
        f.store(f.or_(f.shl(count, 8), 1), P, PATTERN.tags_within)
        f.ret(count)


def _where_new(f: Function, numbers: Value) -> Value:
    """Lanes whose number differs from the previous lane's; lane 0 is one of them."""

    def differs(strip: int) -> Value:
        here = strip_of(f, numbers, strip, 64)
        if strip:
            before = f.load(vector("i64"), numbers, (strip * STRIP_LANES - 1) * 8, 8)
        else:
            before = f.permute(here, [max(lane - 1, 0) for lane in range(STRIP_LANES)])
        return f.compare("ne", here, before)

    return lanes_where(f, differs, literal("i32", 1))


def _define_wavefronts(module: Module) -> None:
    """wavefronts(pattern, base, bytes, store, memo): wavefronts, and those due to conflicts.

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
            f.store(word, f.element(words, count, 64))
            f.set(seen, f.add(count, 1))
            with f.loop(f.resize(words_each, 64)) as further:
                bank = f.and_(f.add(word, further), LANES - 1)
                pointer = f.offset(depth, bank)
                now = f.add(f.load("i8", pointer), 1)
                f.store(now, pointer)
                f.set(deepest, f.intrinsic("umax", f.get("i32", deepest), f.resize(now, 32)))
    return f.get("i32", deepest)


def _define_local_sectors(module: Module) -> None:
    """local_sectors(pattern, base, bytes): distinct sectors. Word w of lane l is word 32 w + l of
    the warp's local memory, so each strip of lanes has its own sectors."""
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
                        f.store(word, f.element(words, count_, 64))
                        f.set(seen, f.add(count_, 1))
            f.set(total, f.add(f.get("i32", total), f.resize(f.get("i64", seen), 32)))
        f.ret(f.get("i32", total))
