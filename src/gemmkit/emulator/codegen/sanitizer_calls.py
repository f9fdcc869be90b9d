"""Emits the calls that report synchronization and atomics to the sanitizers."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.ir import Value, literal
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering, is_asynchronous, orders_warps
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.values import Scalar
from gemmkit.emulator.ptx.module import Immediate


def nothing(b: BlockWriter, action: Action, lanes: Value) -> None:
    """An instruction with no other effect: fences, cp.async groups, warp barriers."""
    if not b.context.sanitize:
        return
    if action.operation == "copy_async_commit":
        b.f.runtime(PREFIX + "commit", "void", C, lanes)
    elif action.operation == "copy_async_wait":
        groups = action.sources[0] if action.sources else Immediate(-1)
        assert isinstance(groups, Immediate)
        b.f.runtime(PREFIX + "wait", "void", C, lanes, literal("i32", groups.value))
    elif action.form.opcode == "bar.warp.sync":
        members(b, action, lanes, "warp_barrier")
    elif action.form.opcode.startswith(("membar", "fence")):
        if is_asynchronous(b.context.analysis.actions):
            words = action.form.opcode.split(".")
            kind = 1 if "proxy" in words else 2 if "mbarrier_init" in words else 0
            b.f.runtime(PREFIX + "tell_fence", "void", C, literal("i64", kind))
        if not Ordering.of(action).fence:
            return
        if orders_warps(b.context.analysis.actions):
            b.f.runtime(PREFIX + "fence", "void", C)
        _device_fence(b, action)


def copies_arrive(b: BlockWriter, lanes: Value) -> None:
    """All cp.async copies of these lanes arrive."""
    if b.context.sanitize:
        b.f.runtime(PREFIX + "wait", "void", C, lanes, literal("i32", -1))


def before(b: BlockWriter, action: Action) -> None:
    """Report a memory access that orders what came before it."""
    if b.context.sanitize and Ordering.of(action).releases:
        _device_fence(b, action)


def _device_fence(b: BlockWriter, action: Action) -> None:
    in_block = literal("i64", int(Ordering.of(action).in_block))
    b.f.runtime(PREFIX + "device_fence", "void", C, in_block)


def after(b: BlockWriter, action: Action, pattern: Value, base: Value) -> None:
    """Report a memory access through which blocks may synchronize."""
    ordering = Ordering.of(action)
    if not b.context.sanitize or not ordering.strong:
        return
    b.f.runtime(PREFIX + "synchronize", "void", C, pattern, base, literal("i64", action.number))
    if ordering.acquires:
        _device_fence(b, action)


def members(b: BlockWriter, action: Action, lanes: Value, function: str = "members") -> None:
    """Check that the lanes named by an instruction's mask participate in it."""
    if not b.context.sanitize:
        return
    f, named = b.f, b.source(action.sources[-1], 32)
    number = literal("i64", action.number)
    if isinstance(named, Scalar):
        masks, name = named.value, function
    else:
        masks, name = b.pointer(b.in_memory(named, 32)), function + "_each"
    with f.when(f.compare("ne", lanes, 0)):
        f.runtime(PREFIX + name, "void", C, W, lanes, masks, number)


def whole_warp(b: BlockWriter, action: Action, lanes: Value) -> None:
    """Check that all lanes of the warp participate."""
    if b.context.sanitize:
        f, everyone = b.f, literal("i32", -1)
        with f.when(f.compare("ne", lanes, 0)):
            number = literal("i64", action.number)
            f.runtime(PREFIX + "members", "void", C, W, lanes, everyone, number)


def aligned(b: BlockWriter, action: Action) -> None:
    """Check that all lanes of the warp participate in an instruction of the cluster's barrier, if
    it is `.aligned`."""
    if action.operation.startswith("barrier_cluster_") and ".aligned" in action.form.opcode:
        whole_warp(b, action, b.active(action.guard))


def barrier(b: BlockWriter, action: Action, lanes: Value, operands: Sequence[Value]) -> None:
    """Check that these lanes may arrive at a barrier."""
    if not b.context.sanitize:
        return
    threads = operands[1] if len(operands) > 1 else literal("i32", -1)
    number = literal("i64", action.number)
    b.f.runtime(PREFIX + "check_barrier", "void", C, W, lanes, operands[0], threads, number)
