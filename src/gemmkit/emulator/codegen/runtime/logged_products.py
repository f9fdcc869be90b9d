"""wgmma in the sanitizers' log: entered when a warp executes it, compared later.

A wgmma is entered only if Python has found the same one valid before, and if it reads nothing that
was never written, which could be written until the log is read. Otherwise Python executes it.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import ALL_LANES, GROUPS_KEPT, LANES, WARP, WORKER
from gemmkit.emulator.codegen.runtime.blocks import ASYNCHRONOUS_COST
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.comparison import T, field, pointer
from gemmkit.emulator.codegen.runtime.granules import READ, READ_STRIPS
from gemmkit.emulator.codegen.runtime.logged_barriers import Clock
from gemmkit.emulator.codegen.runtime.mbarrier_log import keep_patterns
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.runtime.shadow import common_word, log_entry, shadow
from gemmkit.emulator.codegen.shadow_layout import (
    CAUSED,
    COMMON,
    EXECUTED,
    EXECUTED_BYTES,
    GROUPED,
    LOG_ENTRY,
    MULTIPLIED,
    ORDERED,
    PRODUCT,
    PRODUCT_BYTES,
    PRODUCT_FACTORS,
    PRODUCT_PROBES,
    PRODUCTS_LOG2,
    SHADOW,
    TAG_KIND,
    WAITED,
)
from gemmkit.emulator.isa.warpgroup_forms import WARPS

W, ENTRY = Value("ptr", "%w"), Value("ptr", "%logged")
WARP_NUMBER = Value("i64", "%warp")
NULL, NO, YES = Value("ptr", "null"), literal("i1", 0), literal("i1", 1)
# What is called when a warp executes a wgmma, or an instruction that orders them; and when the log
# is read.
MULTIPLIES, ORDERS = f"{PREFIX}multiplies", f"{PREFIX}orders_products"
_STRIPS = (("ptr", "strips"), ("i64", "strip_count"))
_GRANULES = (("ptr", "granules"), ("i64", "granule_count"))
COMPARE, ORDER = "gemmkit.compare_product", "gemmkit.order_products"


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_find(module)
    _define_multiplies(module)
    _define_orders(module)
    _define_compare(module)
    _define_order(module)


def _define_find(module: Module) -> None:
    """find_product(table, key, left, right) -> the record of this wgmma, or null."""
    table = Value("ptr", "%table")
    key, left, right = (Value("i64", f"%{name}") for name in ("key", "left", "right"))
    with module.function("gemmkit.find_product", "ptr", (table, key, left, right)) as f:
        sums, last = PRODUCT_FACTORS[:2], PRODUCT_FACTORS[2]
        mixed = key
        for each, factor in zip((left, right), sums, strict=True):
            mixed = f.add(mixed, f.binary("mul", each, factor))
        first = f.lshr(f.binary("mul", mixed, last), 64 - PRODUCTS_LOG2)
        with f.loop(PRODUCT_PROBES) as further:
            place = f.and_(f.add(first, further), (1 << PRODUCTS_LOG2) - 1)
            record = f.offset(table, f.binary("mul", place, PRODUCT_BYTES))
            same = YES
            for name, a in (("key", key), ("left", left), ("right", right)):
                same = f.and_(same, f.compare("eq", f.load("i64", record, PRODUCT[name]), a))
            with f.when(same):
                f.ret(record)
        f.ret(NULL)


def _define_multiplies(module: Module) -> None:
    """sanitized_multiplies(worker, warp, instruction, whether all lanes agree, left, right, rank)
    -> whether it was entered into the log; else Python has to see it."""
    number, valid, rank = Value("i32", "%number"), Value("i1", "%valid"), Value("i32", "%rank")
    left, right = Value("i64", "%left"), Value("i64", "%right")
    parameters = (C, W, number, valid, left, right, rank)
    with module.function(f"gemmkit.{MULTIPLIES}", "i1", parameters) as f:
        s = shadow(f)
        table = f.load("ptr", s, SHADOW["products"])
        with f.when(f.not_(f.and_(valid, _natively(f)))):
            f.ret(NO)
        with f.when(f.compare("eq", table, NULL)):
            f.ret(NO)
        key = f.add(f.or_(f.shl(number, 2), rank), 1)
        found = f.call("gemmkit.find_product", "ptr", table, f.resize(key, 64), left, right)
        with f.when(f.compare("eq", found, NULL)):
            f.ret(NO)
        words = f.load("ptr", found, PRODUCT["words"])
        unset = f.variable(literal("i64", 0))
        with f.loop(f.load("i64", found, PRODUCT["word_count"])) as each:
            pair = f.offset(words, f.shl(each, 4))
            common = common_word(f, s, f.load("i64", pair))
            missing = f.not_(f.load("i64", common, COMMON["initialized"]))
            missing = f.and_(missing, f.load("i64", pair, 8))
            f.set(unset, f.or_(f.get("i64", unset), missing))
        with f.when(f.compare("ne", f.get("i64", unset), 0)):
            f.ret(NO)
        _enter(f, s, MULTIPLIED, f.integer(found), literal("i64", 0))
        f.ret(YES)


def _natively(f: Function) -> Value:
    return f.compare("eq", f.load("i64", C, WORKER["through_python"]), 0)


def _enter(f: Function, s: Value, kind: int, record: Value, base: Value) -> None:
    """Enter it into the log; it costs as much as in Python, so that warps take the same turns."""
    keep_patterns(f)
    count = f.load("i64", s, SHADOW["log_count"])
    entry = log_entry(f, s, count)
    tag = f.or_(f.load("i64", s, SHADOW["own_tag"]), kind << TAG_KIND)
    for name, a in (
        ("pattern", record),
        ("base", base),
        ("serial", literal("i64", 0)),
        ("tag", tag),
    ):
        f.store(a, entry, LOG_ENTRY[name])
    f.store(f.add(count, 1), s, SHADOW["log_count"])
    fuel = f.load("i64", C, WORKER["fuel"])
    f.store(f.sub(fuel, ASYNCHRONOUS_COST), C, WORKER["fuel"])


def _define_orders(module: Module) -> None:
    """sanitized_orders_products(worker, warp, instruction, lanes, groups): a warp commits its open
    group of wgmma (−1), or waits until at most so many are in flight."""
    number, lanes, groups = Value("i32", "%number"), Value("i32", "%lanes"), Value("i64", "%groups")
    with module.function(f"gemmkit.{ORDERS}", "void", (C, W, number, lanes, groups)) as f:
        last = f.resize(f.or_(f.load("i32", W, WARP["index"]), WARPS - 1), 64)
        whole = f.compare("ult", last, f.load("i64", C, WORKER["warp_count"]))
        valid = f.and_(f.compare("eq", lanes, ALL_LANES), f.and_(whole, _natively(f)))
        with f.when(f.not_(valid)):
            f.call("gemmkit.operate_asynchronous", "void", C, W, number, lanes)
            f.ret()
        s = shadow(f)
        with f.when(f.compare("slt", groups, 0)):
            # A commit advances the block's clock, as an arrival does.
            _enter(f, s, GROUPED, f.resize(number, 64), f.load("i64", s, SHADOW["time"]))
            f.increase(s, SHADOW["time"], 1)
            f.ret()
        _enter(f, s, WAITED, f.resize(number, 64), groups)
        f.ret()


def _define_compare(module: Module) -> None:
    """compare_product(worker, table, entry, warp) -> whether a wgmma is ordered after all that it
    reads, and agrees with those of its warpgroup; if not, nothing is recorded but its reads."""
    with module.function(COMPARE, "i1", (C, T, ENTRY, WARP_NUMBER), inline=False) as f:
        record = f.load("ptr", ENTRY, LOG_ENTRY["pattern"])
        number, identity = (f.load("i64", record, PRODUCT[name]) for name in ("number", "identity"))
        first = f.load("i64", f.offset(pointer(f, "first_blocks"), f.shl(number, 3)))
        actor = f.load("i64", f.offset(pointer(f, "product_actors"), f.shl(WARP_NUMBER, 3)))
        with f.when(f.or_(f.compare("slt", field(f, "block"), first), f.compare("slt", actor, 0))):
            f.ret(NO)
        with f.when(f.compare("ne", field(f, "reached"), 0)):
            f.ret(NO)
        # A warp may have waited before its first wgmma.
        reads = f.load("ptr", f.offset(pointer(f, "read_times"), f.shl(actor, 3)))
        with f.when(f.compare("eq", reads, NULL)):
            f.ret(NO)
        mine = _executed(f, WARP_NUMBER)
        count = f.load("i64", mine, EXECUTED["count"])
        with f.when(f.compare("eq", count, f.load("i64", mine, EXECUTED["room"]))):
            f.ret(NO)
        group = f.and_(WARP_NUMBER, -WARPS)
        with f.loop(WARPS) as each:
            other = _executed(f, f.add(group, each))
            # A warp is not ahead of itself.
            ahead = f.compare("sgt", f.load("i64", other, EXECUTED["count"]), count)
            with f.when(ahead):
                theirs = f.load("ptr", other, EXECUTED["identities"])
                its = f.load("i64", f.offset(theirs, f.shl(count, 3)))
                with f.when(f.compare("ne", its, identity)):
                    f.ret(NO)
        warp = f.add(WARP_NUMBER, field(f, "first_warp"))
        time = f.load("i32", f.offset(pointer(f, "product_groups"), f.shl(WARP_NUMBER, 2)))
        who = f.or_(f.shl(number, 16), f.binary("mul", warp, LANES))
        access = (warp, actor, f.resize(time, 64), who)
        strips, total = (f.load(of, record, PRODUCT[name]) for of, name in _STRIPS)
        with f.when(f.compare("ne", total, 0)):
            clean = f.call(READ_STRIPS, "i32", T, strips, total, *access)
            with f.when(f.compare("eq", clean, 0)):
                f.ret(NO)
        with f.when(f.compare("eq", total, 0)):
            granules, total = (f.load(of, record, PRODUCT[name]) for of, name in _GRANULES)
            clean = f.call(READ, "i32", C, T, granules, total, *access)
            with f.when(f.compare("eq", clean, 0)):
                f.ret(NO)
        place = f.offset(f.load("ptr", mine, EXECUTED["identities"]), f.shl(count, 3))
        f.store(identity, place)
        f.store(f.add(count, 1), mine, EXECUTED["count"])
        f.ret(YES)


def _executed(f: Function, warp: Value) -> Value:
    return f.offset(pointer(f, "executed"), f.binary("mul", warp, EXECUTED_BYTES))


def _define_order(module: Module) -> None:
    """order_products(table, entry, kind, warp) -> whether a commit or a wait is done; if not,
    Python does it."""
    kind = Value("i64", "%kind")
    with module.function(ORDER, "i1", (T, ENTRY, kind, WARP_NUMBER), inline=False) as f:
        place = f.offset(pointer(f, "product_groups"), f.shl(WARP_NUMBER, 2))
        group, row_bytes = f.load("i32", place), field(f, "row_bytes")
        clock = Clock.of(f, f.add(WARP_NUMBER, field(f, "first_warp")))
        base = f.load("i64", ENTRY, LOG_ENTRY["base"])
        with f.when(f.compare("eq", kind, GROUPED)):
            # All that the warp did until then is in its own time.
            own, time = f.add(WARP_NUMBER, field(f, "first_warp")), f.resize(base, 32)
            f.store(time, clock.place(CAUSED, own))
            f.store(f.add(time, 1), clock.place(ORDERED, own))
            f.move(_causes(f, WARP_NUMBER, group), clock.row(CAUSED), row_bytes)
            f.store(f.add(group, 1), place)
            f.ret(YES)
        first = f.and_(WARP_NUMBER, -WARPS)
        with f.loop(WARPS) as each:
            place = f.offset(pointer(f, "product_actors"), f.shl(f.add(first, each), 3))
            with f.when(f.compare("slt", f.load("i64", place), 0)):
                f.ret(NO)
        done = f.sub(f.sub(group, 1), f.resize(base, 32))
        with f.when(f.compare("sle", done, 0)):
            f.ret(YES)
        # The group is complete in all warps of the warpgroup, which have issued it before.
        with f.loop(WARPS) as each:
            other = f.add(first, each)
            actor = f.load("i64", f.offset(pointer(f, "product_actors"), f.shl(other, 3)))
            known = clock.place(ORDERED, actor)
            f.store(f.intrinsic("smax", f.load("i32", known), done), known)
            theirs = f.load("i32", f.offset(pointer(f, "product_groups"), f.shl(other, 2)))
            open_ = Clock.of(f, f.add(other, field(f, "first_warp"))).row(CAUSED)
            committed = f.compare("sgt", theirs, done)
            causes = f.select(committed, _causes(f, other, done), open_)
            f.call("gemmkit.join_clock", "void", clock.row(CAUSED), causes, row_bytes)
        f.ret(YES)


def _causes(f: Function, warp: Value, group: Value) -> Value:
    """What was earlier than the commit of a group by a warp of the block: a row of a clock."""
    kept = f.resize(f.and_(group, GROUPS_KEPT - 1), 64)
    index = f.add(f.binary("mul", warp, GROUPS_KEPT), kept)
    return f.offset(pointer(f, "product_causes"), f.binary("mul", index, field(f, "row_bytes")))
