"""Emits the calls that report synchronization and atomics to the sanitizers."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.ir import Value, literal
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import (
    LAUNCH_WAIT,
    Ordering,
    hands_over_by_flags,
    needs_clocks,
)
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVES_FOR_ALL,
    CLUSTER_PROXY_FENCE,
    FENCE_NUMBER,
    GLOBAL_PROXY_FENCE,
    INIT_FENCE,
    OTHER_FENCE,
    PROXY_FENCE,
    SCOPES,
    SHARED_PROXY_FENCE,
    WAITS_FOR_ALL,
)
from gemmkit.emulator.codegen.values import Scalar
from gemmkit.emulator.ptx.module import Immediate, Register

NULL = Value("ptr", "null")


def nothing(b: BlockWriter, action: Action, lanes: Value) -> None:
    """An instruction with no other effect: fences, cp.async groups, warp barriers."""
    if not b.context.sanitize:
        return
    if action.operation == "copy_async_commit":
        b.f.runtime(PREFIX + "commit", "void", C, lanes)
    elif action.operation == "copy_async_wait":
        groups = action.sources[0] if action.sources else Immediate(WAITS_FOR_ALL)
        assert isinstance(groups, Immediate)
        b.f.runtime(PREFIX + "wait", "void", C, W, lanes, literal("i32", groups.value))
    elif action.form.opcode == "bar.warp.sync":
        members(b, action, lanes, "warp_barrier")
    elif action.form.opcode == LAUNCH_WAIT:
        b.f.runtime(PREFIX + "launch_wait", "void", C, lanes)
    elif action.form.opcode.startswith(("membar", "fence")):
        kind = _fence_kind(action.form.opcode)
        if kind is not None and needs_clocks(b.context.analysis.actions):
            told = kind | action.number << FENCE_NUMBER
            b.f.runtime(PREFIX + "tell_fence", "void", C, literal("i64", told), lanes)
        if not Ordering.of(action).fence:
            return
        if hands_over_by_flags(b.context.analysis.actions):
            b.f.runtime(PREFIX + "fence", "void", C)
        scope = literal("i64", SCOPES[Ordering.of(action).scope])
        b.f.runtime(PREFIX + "device_fence", "void", C, scope)


def _fence_kind(opcode: str) -> int | None:
    """What a fence tells the sanitizers of asynchronous kernels; nothing if it is for aliases, of
    which there are none."""
    words = opcode.split(".")
    if "alias" in words:
        return None
    if "mbarrier_init" in words:
        return INIT_FENCE
    if "proxy" not in words:
        return OTHER_FENCE
    if "global" in words:
        return GLOBAL_PROXY_FENCE
    spaces = {"shared::cta": SHARED_PROXY_FENCE, "shared::cluster": CLUSTER_PROXY_FENCE}
    return spaces.get(words[-1], PROXY_FENCE)


def copies_arrive(b: BlockWriter, lanes: Value) -> None:
    """All cp.async copies of these lanes arrive."""
    if b.context.sanitize:
        b.f.runtime(PREFIX + "wait", "void", C, W, lanes, literal("i32", ARRIVES_FOR_ALL))


def before(b: BlockWriter, action: Action) -> None:
    """Report a memory access that releases what came before it, or acquires."""
    if b.context.sanitize and Ordering.of(action).fence:
        b.f.runtime(PREFIX + "ordering_access", "void", C)


def after(b: BlockWriter, action: Action, pattern: Value, base: Value) -> None:
    """Report a memory access through which blocks may synchronize."""
    if not b.context.sanitize or not Ordering.of(action).strong:
        return
    wait, operands = b.context.analysis.flag_waits.get(action.number), NULL
    if wait is not None and isinstance(wait.operand, Register):
        operands = b.pointer(b.in_memory(b.source(wait.operand, wait.bits), wait.bits))
    number = literal("i64", action.number)
    b.f.runtime(PREFIX + "synchronize", "void", C, pattern, base, number, operands)


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


def tell_python(b: BlockWriter, action: Action, lanes: Value) -> None:
    """Tell the sanitizers in Python of an instruction that has no result."""
    if b.context.sanitize:
        b.context.outside[action.number] = ((), ())
        number = literal("i32", action.number)
        b.f.runtime("operate_asynchronous", "void", C, W, number, lanes)


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
