"""`Ordering`: an instruction's role in PTX's memory model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gemmkit.emulator.ptx.module import Immediate

if TYPE_CHECKING:
    from gemmkit.emulator.codegen.operands import Action

# Waits until the launches before are complete, and what they wrote is visible.
LAUNCH_WAIT = "griddepcontrol.wait"
ATOMICS = frozenset(["atomic", "reduction", "compare_and_swap"])
_ORDERING = ATOMICS | {"load", "store", "no_operation"}
_STRONG = frozenset(["volatile", "relaxed", "acquire", "release", "acq_rel"])


@dataclass(frozen=True, slots=True)
class Ordering:
    """The memory-model properties of an instruction.

    `strong` accesses may conflict with others of their kind without a race. A fence makes earlier
    accesses visible to observers of the next strong writes, and to the own thread what earlier
    strong reads observed. An access that releases or acquires does so for its own address only.
    `scope` limits all this to the threads of one "block", or one "cluster", because of the
    instruction's scope or because the memory is shared memory.
    """

    strong: bool = False
    releases: bool = False
    acquires: bool = False
    scope: str = ""

    @classmethod
    def of(cls, action: Action) -> Ordering:
        """The ordering of an instruction."""
        if action.operation not in _ORDERING:
            return _NONE
        return _ordering(action.operation, action.form.opcode, action.form.modifiers.get("S", ""))

    @property
    def in_block(self) -> bool:
        """Whether it is limited to a block, or a cluster, which is a block alone or has clocks."""
        return bool(self.scope)

    @property
    def between_blocks(self) -> Ordering:
        """The part that also holds for threads of other clusters."""
        return _NONE if self.in_block else self

    @property
    def fence(self) -> bool:
        """Whether it orders accesses, by itself or as part of one."""
        return self.releases or self.acquires


_NONE = Ordering()
_ASYNCHRONOUS = (
    *("mbarrier_", "bulk_", "wgmma_", "barrier_cluster_", "map_address", "set_registers"),
)


@cache
def _ordering(operation: str, opcode: str, space: str) -> Ordering:
    name, *words = opcode.split(".")
    if not {"proxy", "mbarrier_init"}.isdisjoint(words):
        return _NONE
    # What orders the blocks of a cluster is followed by vector clocks.
    scope = "block" if "cta" in words else "cluster" if "cluster" in words else ""
    if name in ("membar", "fence"):
        return Ordering(releases=True, acquires=True, scope=scope)
    space = space.removesuffix("::cta").removesuffix("::cluster")
    if operation == "no_operation" or space not in ("", "global", "shared"):
        return _NONE
    if space == "shared" and not scope:
        scope = "cluster"
    return Ordering(
        strong=operation in ATOMICS or not _STRONG.isdisjoint(words),
        releases=not {"release", "acq_rel"}.isdisjoint(words),
        acquires=not {"acquire", "acq_rel"}.isdisjoint(words),
        scope=scope,
    )


def scope(action: Action) -> str:
    """The scope of an atomic: "block", "device" or "system"; empty for other instructions."""
    if action.operation not in ATOMICS:
        return ""
    words = action.form.opcode.split(".")
    return (
        "block"
        if not {"cta", "cluster"}.isdisjoint(words)
        else "system"
        if "sys" in words
        else "device"
    )


def loads_atomically(action: Action) -> bool:
    """Whether an atomic changes nothing and only tells what is there, as `atomicAdd(p, 0)` does."""
    return (
        action.operation == "atomic"
        and action.form.modifiers.get("O") in ("add", "or", "xor")
        and isinstance(action.sources[0], Immediate)
        and action.sources[0].value == 0
    )


def is_cas_loop(one: Action, other: Action) -> bool:
    """Whether these are a plain load and a compare-and-swap, whose race is benign: a
    compare-and-swap loop, as in the CUDA programming guide, begins with a plain load, and a stale
    value only makes it iterate again."""
    return {one.operation, other.operation} == {"load", "compare_and_swap"}


def orders_warps(actions: Sequence[Action]) -> bool:
    """Whether a kernel's warps may synchronize through shared memory by fences, which also takes
    strong accesses there."""
    return any(
        action.operation in (*ATOMICS, "load", "store")
        and action.form.modifiers.get("S", "") in ("", "shared", "shared::cta")
        and (action.operation in ATOMICS or not _STRONG.isdisjoint(action.form.opcode.split(".")))
        for action in actions
    )


def hands_over_by_flags(actions: Sequence[Action]) -> bool:
    """Whether warps of a block may hand data over by fences and flags in shared memory."""
    if not any(Ordering.of(action).fence for action in actions):
        return False
    generic = any(
        action.operation == "convert_address"
        and action.form.modifiers.get("D") == ""
        and action.form.modifiers["S"].startswith("shared")
        for action in actions
    )
    return any(
        Ordering.of(action).strong
        and (
            action.form.modifiers.get("S", "").startswith((".shared", "shared"))
            or (generic and not action.form.modifiers.get("S", ""))
        )
        for action in actions
    )


def needs_clocks(actions: Sequence[Action]) -> bool:
    """Whether races in a kernel's shared memory are found by vector clocks, as more than barriers
    of the block may order its warps."""
    return is_asynchronous(actions) or hands_over_by_flags(actions)


def is_asynchronous(actions: Sequence[Action]) -> bool:
    """Whether a kernel uses mbarriers, bulk copies, tensor copies, wgmma, `setmaxnreg`, the shared
    memory of a cluster's blocks, or fences and accesses of the cluster's scope."""
    return any(
        action.operation.startswith(_ASYNCHRONOUS)
        or ("cluster" in action.form.opcode.split(".") and Ordering.of(action).scope == "cluster")
        for action in actions
    )
