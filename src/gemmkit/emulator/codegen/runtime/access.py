"""Loads, stores and copies of a warp: bounds, counts, and the way to move the data.

Every access is checked against the memory that it may touch: the region that its instruction
touched last, or else all regions. One that is refused notes the fault, does nothing, and lets the
warp run on to the next place where it can be stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    ALL_LANES,
    LINEAR,
    MISALIGNED,
    OUT_OF_BOUNDS,
    PATTERN,
    SITE,
    SITE_BYTES,
    STRIP_LANES,
    STRIPS,
    WARP,
    WINDOW_BYTES,
    WINDOWS,
    WINDOWS_FIT,
    WORKER,
    vector_bytes,
)
from gemmkit.emulator.codegen.neighbours import TOGETHER
from gemmkit.emulator.codegen.runtime.patterns import (
    BASE,
    PATTERN_POINTER,
    WORKER_POINTER,
    lanes_of,
)

C, P, SITE_POINTER, W = WORKER_POINTER, PATTERN_POINTER, Value("ptr", "%site"), Value("ptr", "%w")
COUNTS = (1, 2, 4)


def data_parameters(count: int) -> tuple[Value, ...]:
    """The registers that an access reads or writes."""
    return tuple(Value("ptr", f"%d{place}") for place in range(count))


def define_bounds(module: Module) -> None:
    """Add the functions that look up regions and refuse accesses."""
    _define_refuse(module)
    _define_find(module)
    _define_search(module)
    for space in ("shared", "local"):
        _define_check(module, space)
    _define_local_sectors(module)
    for count_ in COUNTS:
        _define_words(module, count_)
    _define_words_row(module)


def define_accesses(module: Module, space: str, bits: int, *, permutes: bool) -> None:
    """Add loads and stores of one space and width; `permutes` where the host is AVX2's kind."""
    if space in ("global", "shared") and bits == 32:
        _define_row(module, space, permutes)
    for kind in ("load", "store"):
        for count_ in COUNTS:
            if space == "local":
                _define_local(module, kind, bits, count_)
            elif space == "generic":
                _define_generic(module, kind, bits, count_)
            else:
                _define_move(module, kind, space, bits, count_, permutes)


# Bounds


def _define_refuse(module: Module) -> None:
    """refuse(worker, site, kind, address, lane): note the first fault, and stop soon."""
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


def element(f: Function, array: Value, lane: Value, bits: int) -> Value:
    """One element of an array of integers."""
    return f.load(f"i{bits}", f.value("ptr", f"getelementptr i{bits}, {array}, {lane}"))


def _lane_offset(f: Function, pattern: Value, lane: Value) -> Value:
    return element(f, pattern, lane, 64)


def _define_search(module: Module) -> None:
    """search(worker, site, pattern, base, bytes): an access to global memory may be made."""
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
            address = f.add(BASE, _lane_offset(f, P, lane))
            found = f.call("gemmkit.find", "ptr", C, address, size)
            with f.when(f.compare("eq", found, Value("ptr", "null"))):
                _refuse(f, OUT_OF_BOUNDS, address, lane)
        f.ret(literal("i1", 1))


def _refuse(f: Function, kind: int, address: Value, lane: Value) -> None:
    f.call("gemmkit.refuse", "void", C, SITE_POINTER, literal("i64", kind), address, lane)
    f.ret(literal("i1", 0))


def _refuse_misaligned(f: Function, lanes: Value, size: Value) -> None:
    with f.each_bit(lanes) as lane:
        address = f.add(BASE, _lane_offset(f, P, lane))
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
            address = f.and_(f.add(BASE, _lane_offset(f, P, lane)), WINDOW_BYTES - 1)
            with f.when(f.compare("ugt", f.add(address, size), limit)):
                _refuse(f, OUT_OF_BOUNDS, address, lane)
        f.ret(literal("i1", 1))


def return_if_idle(f: Function) -> None:
    """Nothing happens where no lane is active."""
    with f.when(f.compare("eq", f.load("i32", P, PATTERN.mask), 0)):
        f.ret()


def allowed(
    f: Function, space: str, size: int, p: Value = P, base: Value = BASE, align: int = 0
) -> Value:
    """Whether an access of so many bytes a lane certainly may be made; aligned to its own size,
    or else to `align`."""
    align = align or size
    least, extent, bits = (
        f.load("i64", p, getattr(PATTERN, each)) for each in ("least", "extent", "bits")
    )
    start = f.add(base, least)
    if space == "global":
        start = f.sub(start, f.load("i64", SITE_POINTER, SITE["region"]))
        limit = f.load("i64", SITE_POINTER, SITE["region_bytes"])
    else:
        limit = f.load("i64", C, WORKER[f"{space}_bytes"])
    room = f.sub(f.sub(limit, size), extent)
    good = f.and_(f.compare("ule", start, room), f.compare("sge", room, 0))
    if align > 1:
        low = f.and_(f.or_(base, bits), align - 1)
        good = f.and_(good, f.compare("eq", low, 0))
    return good


def check(f: Function, space: str, size: int, p: Value = P, base: Value = BASE) -> None:
    """Return unless an access of so many bytes a lane may be made."""
    with f.when(f.not_(allowed(f, space, size, p, base))):
        slow = "search" if space == "global" else f"check_{space}"
        good = f.call(f"gemmkit.{slow}", "i1", C, SITE_POINTER, p, base, literal("i64", size))
        with f.when(f.not_(good)):
            f.ret()


# Counts


class Memo:
    """A request's count as the pattern remembers it; 0 where it is not known yet.

    For global memory that is sectors, by the address's place within a sector. For shared memory
    it is wavefronts and conflicts: the banks may be turned by any number of words alike.
    """

    def __init__(
        self, f: Function, space: str, size: int, *, store: bool, p: Value = P, base: Value = BASE
    ) -> None:
        self._f, self._p, self._base = f, p, base
        self._space, self._size, self._store = space, size, store
        if space == "global":
            index = f.lshr(f.or_(f.and_(base, 31), 32), size.bit_length() - 1)
            memo = f.offset(p, PATTERN.sectors)
            self._place = f.value("ptr", f"getelementptr i16, {memo}, {index}")
            self._bits = 16
        else:
            if size < 4:
                index = f.lshr(f.or_(f.and_(base, 3), 4), size.bit_length() - 1)
            else:
                index = literal("i64", {4: 1, 8: 8, 16: 9, 32: 10}[size])
            memo = f.offset(p, PATTERN.wavefronts + (16 * 8 if store else 0))
            self._place = f.value("ptr", f"getelementptr i64, {memo}, {index}")
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
                size, store = literal("i32", self._size), literal("i1", self._store)
                arguments = (self._p, self._base, size, store, self._place)
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


def host_pointer(f: Function, space: str) -> Value:
    """Where the first active lane's access goes."""
    if space == "global":
        return f.value("ptr", f"inttoptr {BASE} to ptr")
    return f.offset(f.load("ptr", C, WORKER["shared"]), BASE)


# Moving data


def _define_move(
    module: Module, kind: str, space: str, bits: int, count_: int, permutes: bool
) -> None:
    """<kind>_<space>_<bits>x<count>(worker, site, pattern, base, registers…).

    What is not quite plain is left to a second function, so that this one needs no stack.
    """
    data = data_parameters(count_)
    name = f"gemmkit.{kind}_{space}_{bits}x{count_}"
    slow = f"gemmkit.slow_{kind}_{space}_{bits}x{count_}"
    with module.function(name, "void", (C, SITE_POINTER, P, BASE, *data)) as f:
        size = bits // 8 * count_
        memo = Memo(f, space, size, store=kind == "store")
        certain = f.and_(allowed(f, space, size), memo.known)
        with f.when(f.not_(certain)):
            f.tail_call(slow, C, SITE_POINTER, P, BASE, *data)
        memo.add()
        at = host_pointer(f, space)
        if kind == "load" and bits == 32 and permutes:
            _load_windows(f, at, data)
        if kind == "store" and bits == 32 and count_ == 1:
            _store_linear(f, at, data[0])
        if bits == 32:
            f.leave(f"gemmkit.{kind}_words_x{count_}", P, at, *data)
        else:
            (_load_each if kind == "load" else _store_each)(f, at, data, bits)
            f.ret()
    with module.function(slow, "void", (C, SITE_POINTER, P, BASE, *data), inline=False) as f:
        begin(f, space, size, store=kind == "store")
        (_load_each if kind == "load" else _store_each)(f, host_pointer(f, space), data, bits)
        f.ret()


def _define_words(module: Module, count_: int) -> None:
    """<kind>_words_x<count>(pattern, address, registers…): any lanes, words anywhere."""
    at, data = Value("ptr", "%at"), data_parameters(count_)
    with module.function(f"gemmkit.load_words_x{count_}", "void", (P, at, *data)) as f:
        _load_words(f, at, data, 4 * count_)
        f.ret()
    with module.function(f"gemmkit.store_words_x{count_}", "void", (P, at, *data)) as f:
        _store_words(f, at, data)
        _store_each(f, at, data, 32)
        f.ret()


def _define_row(module: Module, space: str, permutes: bool) -> None:
    """load_row_<space>(worker, site, pattern, base, registers): loads of four neighbouring words.

    They are four instructions, whose records lie side by side, as their registers do.
    """
    row = Value("ptr", "%d")
    parameters = (C, SITE_POINTER, P, BASE, row)
    with module.function(f"gemmkit.load_row_{space}", "void", parameters) as f:
        places = range(TOGETHER)
        bases = [f.add(BASE, 4 * place) if place else BASE for place in places]
        memos = [Memo(f, space, 4, store=False, base=base) for base in bases]
        certain = allowed(f, space, 4 * TOGETHER, align=4)
        for memo in memos if space == "global" else memos[:1]:
            certain = f.and_(certain, memo.known)
        with f.when(f.not_(certain)):
            f.tail_call(f"gemmkit.slow_load_row_{space}", *parameters)
        for place, memo in enumerate(memos):
            memo.add(f.offset(SITE_POINTER, SITE_BYTES * place))
        at = host_pointer(f, space)
        data = [f.offset(row, vector_bytes(32) * place) for place in places]
        if permutes:
            _load_windows(f, at, data)
        f.leave("gemmkit.load_words_row", P, at, row)
    with module.function(f"gemmkit.slow_load_row_{space}", "void", parameters, inline=False) as f:
        for place in range(TOGETHER):
            site = f.offset(SITE_POINTER, SITE_BYTES * place)
            register = f.offset(row, vector_bytes(32) * place)
            base = f.add(BASE, 4 * place)
            f.call(f"gemmkit.load_{space}_32x1", "void", C, site, P, base, register)
        f.ret()


def _define_words_row(module: Module) -> None:
    """load_words_row(pattern, address, registers): the same, words anywhere."""
    at, row = Value("ptr", "%at"), Value("ptr", "%d")
    with module.function("gemmkit.load_words_row", "void", (P, at, row)) as f:
        data = [f.offset(row, vector_bytes(32) * place) for place in range(TOGETHER)]
        _load_words(f, at, data, 4)
        f.ret()


def begin(f: Function, space: str, size: int, *, store: bool) -> None:
    """Check and count an access; return if it may not be made, or no lane makes it."""
    return_if_idle(f)
    check(f, space, size)
    memo = Memo(f, space, size, store=store)
    memo.find()
    memo.add()


def _strip_address(f: Function, data: Value, strip: Value, bits: int = 32) -> Value:
    return f.offset(data, f.binary("mul", strip, STRIP_LANES * bits // 8))


def _load_windows(f: Function, at: Value, data: Sequence[Value]) -> None:
    """Each strip lies within 32 bytes: read them, permute. May read past the last lane's word."""
    fits = f.compare("ne", f.and_(f.load("i32", P, PATTERN.flags), WINDOWS_FIT), 0)
    with f.when(fits):
        for strip in range(STRIPS):
            least = f.load("i64", P, PATTERN.strip_least + 8 * strip)
            order = f.load(vector("i32"), P, PATTERN.order + strip * STRIP_LANES * 4)
            start = f.offset(at, least)
            for place, register in enumerate(data):
                words = f.load(vector("i32"), start, 4 * place, 4)
                chosen = f.call("llvm.x86.avx2.permd", vector("i32"), words, order)
                f.store(chosen, register, strip * STRIP_LANES * 4)
        f.ret()


def _offsets(f: Function, strip: Value) -> Value:
    return f.load(vector("i64"), _strip_address(f, P, strip, 64))


def _pointer_of(f: Function, at: Value, offsets: Value, lane: int) -> Value:
    return f.offset(at, f.value("i64", f"extractelement {offsets}, i64 {lane}"))


def _load_words(f: Function, at: Value, data: Sequence[Value], align: int) -> None:
    """Eight lanes at a time; inactive lanes read what the first active one does."""
    count_ = len(data)
    part = f"<{count_} x i32>" if count_ > 1 else "i32"
    with f.loop(STRIPS) as strip:
        offsets = _offsets(f, strip)
        parts = [
            f.load(part, _pointer_of(f, at, offsets, lane), align=align)
            for lane in range(STRIP_LANES)
        ]
        for place, vector_ in enumerate(_columns(f, parts, count_)):
            f.store(vector_, _strip_address(f, data[place], strip))


def _columns(f: Function, parts: Sequence[Value], count_: int) -> list[Value]:
    """From one short vector for each lane to one strip for each place in it."""
    if count_ == 1:
        whole = Value(vector("i32"), "poison")
        for lane, part in enumerate(parts):
            whole = f.value(whole.type, f"insertelement {whole}, {part}, i64 {lane}")
        return [whole]
    joined, width = list(parts), count_
    while len(joined) > 1:
        width *= 2
        mask = ", ".join(f"i32 {place}" for place in range(width))
        joined = [
            f.value(f"<{width} x i32>", f"shufflevector {a}, {b}, <{width} x i32> <{mask}>")
            for a, b in zip(joined[::2], joined[1::2], strict=True)
        ]
    whole = joined[0]
    strips = []
    for place in range(count_):
        mask = ", ".join(f"i32 {lane * count_ + place}" for lane in range(STRIP_LANES))
        text = f"shufflevector {whole}, {whole.type} poison, <{STRIP_LANES} x i32> <{mask}>"
        strips.append(f.value(vector("i32"), text))
    return strips


def _load_each(f: Function, at: Value, data: Sequence[Value], bits: int) -> None:
    """Lane by lane; narrow numbers become 32 bits wide."""
    width = max(bits, 32)
    with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
        start = f.offset(at, _lane_offset(f, P, lane))
        for place, register in enumerate(data):
            number = f.resize(f.load(f"i{bits}", start, place * bits // 8), width)
            f.store(number, f.value("ptr", f"getelementptr i{width}, {register}, {lane}"))


def _store_linear(f: Function, at: Value, register: Value) -> None:
    """All lanes, one word further each."""
    linear = f.compare("ne", f.and_(f.load("i32", P, PATTERN.flags), LINEAR), 0)
    with f.when(linear):
        for strip in range(STRIPS):
            place = strip * STRIP_LANES * 4
            f.store(f.load(vector("i32"), register, place), at, place, 4)
        f.ret()


def _store_words(f: Function, at: Value, data: Sequence[Value]) -> None:
    """All lanes, in order, so that of lanes that meet at one place the last one wins."""
    count_ = len(data)
    with f.when(f.compare("eq", f.load("i32", P, PATTERN.mask), ALL_LANES)):
        with f.loop(STRIPS) as strip:
            offsets = _offsets(f, strip)
            columns = [f.load(vector("i32"), _strip_address(f, each, strip)) for each in data]
            for lane in range(STRIP_LANES):
                words = [f.value("i32", f"extractelement {each}, i64 {lane}") for each in columns]
                part = words[0]
                if count_ > 1:
                    part = Value(f"<{count_} x i32>", "poison")
                    for place, word in enumerate(words):
                        part = f.value(part.type, f"insertelement {part}, {word}, i64 {place}")
                f.store(part, _pointer_of(f, at, offsets, lane), align=4 * count_)
        f.ret()


def _store_each(f: Function, at: Value, data: Sequence[Value], bits: int) -> None:
    width = max(bits, 32)
    with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
        start = f.offset(at, _lane_offset(f, P, lane))
        for place, register in enumerate(data):
            number = element(f, register, lane, width)
            f.store(f.resize(number, bits), start, place * bits // 8)


# Local and generic addresses


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
                first = f.binary("ashr", f.add(_lane_offset(f, P, lane), BASE), 2)
                with f.loop(words_each) as further:
                    word, count_ = f.add(first, further), f.get("i64", seen)
                    new = f.variable(literal("i1", 1))
                    with f.loop(count_) as earlier:
                        differs = f.compare("ne", _lane_offset(f, words, earlier), word)
                        f.set(new, f.and_(f.get("i1", new), differs))
                    with f.when(f.get("i1", new)):
                        f.store(word, f.value("ptr", f"getelementptr i64, {words}, {count_}"))
                        f.set(seen, f.add(count_, 1))
            f.set(total, f.add(f.get("i32", total), f.resize(f.get("i64", seen), 32)))
        f.ret(f.get("i32", total))


def _define_local(module: Module, kind: str, bits: int, count_: int) -> None:
    """Each lane has memory of its own."""
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
            here = f.offset(f.offset(own, BASE), _lane_offset(f, P, lane))
            for place, register in enumerate(data):
                at = f.value("ptr", f"getelementptr i{width}, {register}, {lane}")
                if kind == "load":
                    f.store(f.resize(f.load(f"i{bits}", here, place * bits // 8), width), at)
                else:
                    f.store(f.resize(f.load(f"i{width}", at), bits), here, place * bits // 8)
        f.ret()


def local_memory(f: Function) -> Value:
    """Local memory of the warp's lane 0; the others' follows."""
    index = f.resize(f.load("i32", W, WARP["index"]), 64)
    warp_bytes = f.shl(f.load("i64", C, WORKER["local_stride"]), 5)
    return f.offset(f.load("ptr", C, WORKER["local"]), f.binary("mul", index, warp_bytes))


def _define_generic(module: Module, kind: str, bits: int, count_: int) -> None:
    """By what the addresses say: shared, then local, then global memory."""
    data = data_parameters(count_)
    name = f"gemmkit.{kind}_generic_{bits}x{count_}"
    with module.function(name, "void", (C, W, SITE_POINTER, P, BASE, *data)) as f:
        return_if_idle(f)
        for_each_part(f, f"{kind}_{{}}_{bits}x{count_}", data)
        f.ret()


def for_each_part(
    f: Function,
    name: str,
    rest: Sequence[Value],
    spaces: Sequence[str] = ("shared", "local", "global"),
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
        with f.when(f.compare("ne", inside, 0)):
            f.call("gemmkit.pattern64", "void", part, addresses, inside)
            base = f.sub(f.load("i64", part, PATTERN.base), WINDOWS.get(space, 0))
            here = [C, W] if space == "local" else [C]
            f.call("gemmkit." + name.format(space), "void", *here, SITE_POINTER, part, base, *rest)


def _lanes_within(f: Function, addresses: Value, lanes: Value, start: int) -> Value:
    found = literal("i32", 0)
    for strip in range(STRIPS):
        strip_addresses = f.load(vector("i64"), addresses, strip * STRIP_LANES * 8)
        inside = f.compare("ult", f.sub(strip_addresses, start), WINDOW_BYTES)
        active = f.and_(inside, lanes_of(f, lanes, strip))
        byte = f.resize(f.value("i8", f"bitcast {active} to i8"), 32)
        found = f.or_(found, f.shl(byte, strip * STRIP_LANES))
    return found
