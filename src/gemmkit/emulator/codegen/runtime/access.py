"""Loads and stores of a warp in global and shared memory: the ways to move the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gemmkit.emulator.codegen.ir import Function, Module, Value, vector
from gemmkit.emulator.codegen.layout import (
    ALL_LANES,
    LINEAR,
    PATTERN,
    SITE_BYTES,
    STRIP_LANES,
    STRIPS,
    WINDOWS_FIT,
    WORKER,
    vector_bytes,
)
from gemmkit.emulator.codegen.load_groups import TOGETHER
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P, allowed, check
from gemmkit.emulator.codegen.runtime.counts import Memo
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.codegen.runtime.peers import move_lane, visit_peers

COUNTS = (1, 2, 4)


def define_words(module: Module) -> None:
    """Add loads and stores of 32-bit words at arbitrary addresses."""
    for count_ in COUNTS:
        _define_words(module, count_)
    _define_words_row(module)


class AccessHooks(Protocol):
    """Additional steps of an access, for the sanitizers; `prefix` names its functions."""

    prefix: str

    def note(
        self, f: Function, kind: str, space: str, size: int, row: int, data: Sequence[Value]
    ) -> None:
        """A step before an access that is allowed, of `size` bytes per lane, or a row of them."""

    def whole(self, f: Function, space: str, size: int, align: int) -> Value:
        """Whether an access is allowed in all lanes, within one region of memory."""

    def define_slow(
        self, module: Module, kind: str, space: str, bits: int, data: Sequence[Value], name: str
    ) -> None:
        """Define the function for an access that takes the slow path."""


def define(
    module: Module, space: str, bits: int, *, permutes: bool, hooks: AccessHooks | None = None
) -> None:
    """Add loads and stores of global or shared memory, of one width.

    `permutes`: the host has AVX2's permutation of words.
    """
    if bits == 32:
        _define_row(module, space, permutes, hooks)
    for kind in ("load", "store"):
        for count_ in COUNTS:
            _define_move(module, kind, space, bits, count_, permutes, hooks)


def data_parameters(count: int) -> tuple[Value, ...]:
    """The registers that an access reads or writes."""
    return tuple(Value("ptr", f"%d{index}") for index in range(count))


def return_if_idle(f: Function) -> None:
    """Return if no lane is active."""
    with f.when(f.compare("eq", f.load("i32", P, PATTERN.mask), 0)):
        f.ret()


def host_pointer(f: Function, space: str, base: Value = BASE) -> Value:
    """The host address of the first active lane's access."""
    if space == "global":
        return f.pointer(base)
    return f.offset(f.load("ptr", C, WORKER["shared"]), base)


def _define_move(
    module: Module,
    kind: str,
    space: str,
    bits: int,
    count_: int,
    permutes: bool,
    hooks: AccessHooks | None,
) -> None:
    """<kind>_<space>_<bits>x<count>(worker, site, pattern, base, registers…).

    The slow path is a separate function, so that this one needs no stack.
    """
    data = data_parameters(count_)
    prefix = "gemmkit." + (hooks.prefix if hooks else "")
    name = f"{prefix}{kind}_{space}_{bits}x{count_}"
    slow = f"{prefix}slow_{kind}_{space}_{bits}x{count_}"
    prepare = f"{prefix}prepare_{kind}_{space}_{bits}x{count_}"
    with module.function(name, "void", (C, SITE_POINTER, P, BASE, *data)) as f:
        size = bits // 8 * count_
        memo = Memo(f, space, size, store=kind == "store")
        certain = f.and_(allowed(f, space, size, by_array=hooks is not None), memo.known)
        with f.when(f.not_(certain)):
            f.tail_call(slow, C, SITE_POINTER, P, BASE, *data)
        if space == "global":
            with f.when(memo.crosses_lines(size)):
                tags = memo.remembered_tags()
                with f.when(f.compare("eq", tags, 0)):
                    f.tail_call(prepare, C, SITE_POINTER, P, BASE, *data)
                memo.add_more_tags(tags)
        memo.add()
        if hooks:
            hooks.note(f, kind, space, size, size, data)
        at = host_pointer(f, space)
        if kind == "load" and bits == 32 and permutes:
            _load_windows(f, at, data)
        if kind == "store" and bits == 32 and count_ == 1:
            _store_linear(f, at, data[0])
        if bits == 32:
            f.leave(f"gemmkit.{kind}_words_x{count_}", P, at, *data)
        else:
            (load_each if kind == "load" else store_each)(f, at, data, bits)
            f.ret()
    if space == "global":
        with module.function(prepare, "void", (C, SITE_POINTER, P, BASE, *data), inline=False) as f:
            f.call("gemmkit.tags", "i64", P, BASE)
            f.tail_call(name, C, SITE_POINTER, P, BASE, *data)
    if hooks:
        hooks.define_slow(module, kind, space, bits, data, slow)
        return
    with module.function(slow, "void", (C, SITE_POINTER, P, BASE, *data), inline=False) as f:
        if space == "shared":
            return_if_idle(f)

            def again(p: Value, base: Value) -> None:
                f.call(slow, "void", C, SITE_POINTER, p, base, *data)

            def whole(at: Value) -> None:
                (load_each if kind == "load" else store_each)(f, at, data, bits)

            visit_peers(f, size, whole, move_lane(f, kind, data, bits), again)
        begin(f, space, size, store=kind == "store")
        (load_each if kind == "load" else store_each)(f, host_pointer(f, space), data, bits)
        f.ret()


def _define_words(module: Module, count_: int) -> None:
    """<kind>_words_x<count>(pattern, address, registers…): any lanes, words at any address."""
    at, data = Value("ptr", "%at"), data_parameters(count_)
    with module.function(f"gemmkit.load_words_x{count_}", "void", (P, at, *data)) as f:
        _load_words(f, at, data, 4 * count_)
        f.ret()
    with module.function(f"gemmkit.store_words_x{count_}", "void", (P, at, *data)) as f:
        _store_words(f, at, data)
        store_each(f, at, data, 32)
        f.ret()


def _define_row(module: Module, space: str, permutes: bool, hooks: AccessHooks | None) -> None:
    """load_row_<space>(worker, site, pattern, base, registers): loads of four adjacent words.

    They are four instructions whose records, and registers, are adjacent.
    """
    row = Value("ptr", "%d")
    parameters = (C, SITE_POINTER, P, BASE, row)
    prefix = "gemmkit." + (hooks.prefix if hooks else "")
    slow = f"{prefix}slow_load_row_{space}"
    with module.function(f"{prefix}load_row_{space}", "void", parameters) as f:
        indices = range(TOGETHER)
        bases = [f.add(BASE, 4 * each) if each else BASE for each in indices]
        memos = [Memo(f, space, 4, store=False, base=base) for base in bases]
        certain = allowed(f, space, 4 * TOGETHER, align=4, by_array=hooks is not None)
        for memo in memos if space == "global" else memos[:1]:
            certain = f.and_(certain, memo.known)
        with f.when(f.not_(certain)):
            f.tail_call(slow, *parameters)
        sites = [f.offset(SITE_POINTER, SITE_BYTES * each) for each in indices]
        if space == "global":
            with f.when(memos[0].crosses_lines(4 * TOGETHER)):
                # Within aligned 16 bytes per lane, all four loads access the same lines.
                offsets = f.load("i64", P, PATTERN.bits)
                low = f.and_(f.or_(BASE, offsets), 4 * TOGETHER - 1)
                tags = f.select(f.compare("eq", low, 0), memos[0].remembered_tags(), 0)
                with f.when(f.compare("eq", tags, 0)):
                    f.tail_call(slow, *parameters)
                for site in sites:
                    memos[0].add_more_tags(tags, site)
        for site, memo in zip(sites, memos, strict=True):
            memo.add(site)
        if hooks:
            hooks.note(f, "load", space, 4, 4 * TOGETHER, ())
        at = host_pointer(f, space)
        data = [f.offset(row, vector_bytes(32) * each) for each in indices]
        if permutes:
            _load_windows(f, at, data)
        f.leave("gemmkit.load_words_row", P, at, row)
    with module.function(slow, "void", parameters, inline=False) as f:
        if hooks:
            with f.when(hooks.whole(f, space, 4 * TOGETHER, 4)):
                hooks.note(f, "load", space, 4, 4 * TOGETHER, ())
                _load_one_by_one(f, f"gemmkit.load_{space}_32x1", row)
                f.ret()
        _load_one_by_one(f, f"{prefix}load_{space}_32x1", row)
        f.ret()


def _load_one_by_one(f: Function, function: str, row: Value) -> None:
    for index in range(TOGETHER):
        site = f.offset(SITE_POINTER, SITE_BYTES * index)
        register = f.offset(row, vector_bytes(32) * index)
        f.call(function, "void", C, site, P, f.add(BASE, 4 * index), register)


def _define_words_row(module: Module) -> None:
    """load_words_row(pattern, address, registers): the same, words at any address."""
    at, row = Value("ptr", "%at"), Value("ptr", "%d")
    with module.function("gemmkit.load_words_row", "void", (P, at, row)) as f:
        data = [f.offset(row, vector_bytes(32) * index) for index in range(TOGETHER)]
        _load_words(f, at, data, 4)
        f.ret()


def begin(f: Function, space: str, size: int, *, store: bool) -> None:
    """Check and count an access; return if it is not allowed, or no lane performs it."""
    return_if_idle(f)
    check(f, space, size)
    memo = Memo(f, space, size, store=store)
    memo.find()
    memo.add()
    memo.add_tags()


def _strip_address(f: Function, data: Value, strip: Value, bits: int = 32) -> Value:
    return f.offset(data, f.binary("mul", strip, STRIP_LANES * bits // 8))


def _load_windows(f: Function, at: Value, data: Sequence[Value]) -> None:
    """Each strip accesses words within 32 bytes: read these and permute. May read past the last
    lane's word."""
    fits = f.compare("ne", f.and_(f.load("i32", P, PATTERN.flags), WINDOWS_FIT), 0)
    with f.when(fits):
        for strip in range(STRIPS):
            least = f.load("i64", P, PATTERN.strip_least + 8 * strip)
            order = f.load(vector("i32"), P, PATTERN.order + strip * STRIP_LANES * 4)
            start = f.offset(at, least)
            for index, register in enumerate(data):
                words = f.load(vector("i32"), start, 4 * index, 4)
                chosen = f.call("llvm.x86.avx2.permd", vector("i32"), words, order)
                f.store(chosen, register, strip * STRIP_LANES * 4)
        f.ret()


def _offsets(f: Function, strip: Value) -> Value:
    return f.load(vector("i64"), _strip_address(f, P, strip, 64))


def _pointer_of(f: Function, at: Value, offsets: Value, lane: int) -> Value:
    return f.offset(at, f.extract(offsets, lane))


def _load_words(f: Function, at: Value, data: Sequence[Value], align: int) -> None:
    """Load eight lanes at a time; inactive lanes read what the first active one does."""
    count_ = len(data)
    part = f"<{count_} x i32>" if count_ > 1 else "i32"
    with f.loop(STRIPS) as strip:
        offsets = _offsets(f, strip)
        parts = [
            f.load(part, _pointer_of(f, at, offsets, lane), align=align)
            for lane in range(STRIP_LANES)
        ]
        for index, vector_ in enumerate(_columns(f, parts, count_)):
            f.store(vector_, _strip_address(f, data[index], strip))


def _columns(f: Function, parts: Sequence[Value], count_: int) -> list[Value]:
    """Transpose one short vector per lane to one strip per element."""
    if count_ == 1:
        whole = Value(vector("i32"), "poison")
        for lane, part in enumerate(parts):
            whole = f.insert(whole, part, lane)
        return [whole]
    joined, width = list(parts), count_
    while len(joined) > 1:
        width *= 2
        joined = [
            f.permute(a, range(width), b) for a, b in zip(joined[::2], joined[1::2], strict=True)
        ]
    return [
        f.permute(joined[0], range(index, STRIP_LANES * count_, count_)) for index in range(count_)
    ]


def load_each(f: Function, at: Value, data: Sequence[Value], bits: int) -> None:
    """Load lane by lane; narrow numbers become 32 bits wide."""
    width = max(bits, 32)
    with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
        start = f.offset(at, element(f, P, lane, 64))
        for index, register in enumerate(data):
            number = f.resize(f.load(f"i{bits}", start, index * bits // 8), width)
            f.store(number, f.element(register, lane, width))


def _store_linear(f: Function, at: Value, register: Value) -> None:
    """Store in all lanes at consecutive words."""
    linear = f.compare("ne", f.and_(f.load("i32", P, PATTERN.flags), LINEAR), 0)
    with f.when(linear):
        for strip in range(STRIPS):
            offset = strip * STRIP_LANES * 4
            f.store(f.load(vector("i32"), register, offset), at, offset, 4)
        f.ret()


def _store_words(f: Function, at: Value, data: Sequence[Value]) -> None:
    """Store in all lanes, in order, so that the last of several lanes at one address wins."""
    count_ = len(data)
    with f.when(f.compare("eq", f.load("i32", P, PATTERN.mask), ALL_LANES)):
        with f.loop(STRIPS) as strip:
            offsets = _offsets(f, strip)
            columns = [f.load(vector("i32"), _strip_address(f, each, strip)) for each in data]
            for lane in range(STRIP_LANES):
                words = [f.extract(each, lane) for each in columns]
                part = words[0]
                if count_ > 1:
                    part = Value(f"<{count_} x i32>", "poison")
                    for index, word in enumerate(words):
                        part = f.insert(part, word, index)
                f.store(part, _pointer_of(f, at, offsets, lane), align=4 * count_)
        f.ret()


def store_each(f: Function, at: Value, data: Sequence[Value], bits: int) -> None:
    """Store lane by lane; the low bits of wider registers."""
    width = max(bits, 32)
    with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
        start = f.offset(at, element(f, P, lane, 64))
        for index, register in enumerate(data):
            number = element(f, register, lane, width)
            f.store(f.resize(number, bits), start, index * bits // 8)
