"""Groups of wgmma: what each warp of a warpgroup has issued, and waits that need all of it.

The tensor cores execute a wgmma once all four warps have issued it, and PTX has one group for the
whole warpgroup. Here each warp computes its own rows when it issues them; so a warp whose
`wgmma.wait_group` covers a wgmma goes on when the others have issued that too.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import (
    ALL_LANES,
    GROUPS_KEPT,
    RUNNING,
    WARP,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.isa.warpgroup_forms import WARPS

W = Value("ptr", "%w")
ISSUE, COMMIT, AWAIT = "issue_product", "commit_products", "await_products"
_FIRST_END = WARP["product_group0"]


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_behind(module)
    _define_issue(module)
    _define_commit(module)
    _define_await(module)


def _rank(f: Function, warp: Value) -> Value:
    """The rank of a warp in its warpgroup."""
    return f.and_(f.load("i32", warp, WARP["index"]), WARPS - 1)


def _first(f: Function, warp: Value, size: Value) -> Value:
    """The first warp of a warp's warpgroup; a warp has `size` bytes."""
    return f.offset(
        warp, f.sub(literal("i64", 0), f.binary("mul", f.resize(_rank(f, warp), 64), size))
    )


def _end_of(f: Function, warp: Value, group: Value) -> Value:
    """Where a warp holds how many wgmma it had issued when it committed a group."""
    place = f.shl(f.resize(f.and_(group, GROUPS_KEPT - 1), 64), 2)
    return f.offset(warp, f.add(place, _FIRST_END))


def _define_behind(module: Module) -> None:
    """products_behind(worker, warp, count) -> whether a warp of the warpgroup has issued fewer
    wgmma than that."""
    count = Value("i32", "%count")
    with module.function("gemmkit.products_behind", "i1", (C, W, count)) as f:
        size = f.load("i64", C, WORKER["warp_bytes"])
        first, found = _first(f, W, size), f.variable(literal("i1", 0))
        with f.loop(WARPS) as each:
            other = f.offset(first, f.binary("mul", each, size))
            behind = f.compare("ult", f.load("i32", other, WARP["products"]), count)
            f.set(found, f.or_(f.get("i1", found), behind))
        f.ret(f.get("i1", found))


def _define_issue(module: Module) -> None:
    """issue_product(worker, warp): a warp has issued a wgmma; those that waited for it may run."""
    with module.function(f"gemmkit.{ISSUE}", "void", (C, W)) as f:
        issued = f.add(f.load("i32", W, WARP["products"]), 1)
        f.store(issued, W, WARP["products"])
        size = f.load("i64", C, WORKER["warp_bytes"])
        first = _first(f, W, size)
        with f.loop(WARPS) as each:
            other = f.offset(first, f.binary("mul", each, size))
            # No other instruction of this warp can end the wait.
            this = f.compare("eq", f.load("i32", other, WARP["products_awaited"]), issued)
            with f.when(this):
                behind = f.call("gemmkit.products_behind", "i1", C, W, issued)
                with f.when(f.not_(behind)):
                    f.store(literal("i32", RUNNING), other, WARP["status"])
        f.ret()


def _define_commit(module: Module) -> None:
    """commit_products(warp): a warp commits its open group."""
    with module.function(f"gemmkit.{COMMIT}", "void", (W,)) as f:
        group = f.load("i32", W, WARP["product_groups"])
        f.store(f.load("i32", W, WARP["products"]), _end_of(f, W, group))
        f.store(f.add(group, 1), W, WARP["product_groups"])
        f.ret()


def _define_await(module: Module) -> None:
    """await_products(worker, warp, lanes, groups) -> whether a warp that waits until at most so
    many of its groups are in flight stops, since others of its warpgroup have not issued theirs."""
    lanes, going = Value("i32", "%lanes"), Value("i32", "%going")
    with module.function(f"gemmkit.{AWAIT}", "i1", (C, W, lanes, going)) as f:
        f.store(literal("i32", 0), W, WARP["products_awaited"])
        last = f.resize(f.or_(f.load("i32", W, WARP["index"]), WARPS - 1), 64)
        whole = f.compare("ult", last, f.load("i64", C, WORKER["warp_count"]))
        valid = f.and_(f.compare("eq", lanes, ALL_LANES), whole)
        done = f.sub(f.load("i32", W, WARP["product_groups"]), going)
        with f.when(f.not_(f.and_(valid, f.compare("sgt", done, 0)))):
            f.ret(literal("i1", 0))
        count = f.load("i32", _end_of(f, W, f.sub(done, 1)))
        with f.when(f.not_(f.call("gemmkit.products_behind", "i1", C, W, count))):
            f.ret(literal("i1", 0))
        f.store(count, W, WARP["products_awaited"])
        f.ret(literal("i1", 1))
