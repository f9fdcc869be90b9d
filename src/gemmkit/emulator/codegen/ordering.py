"""`Ordering`: what an instruction has to do with the order of what threads do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmkit.emulator.codegen.operands import Action

ATOMICS = frozenset(["atomic", "reduction", "compare_and_swap"])
_ORDERING = ATOMICS | {"load", "store", "no_operation"}
_STRONG = frozenset(["volatile", "relaxed", "acquire", "release", "acq_rel"])


@dataclass(frozen=True, slots=True)
class Ordering:
    """By the memory model of PTX.

    `strong` accesses may meet others of their kind. A release makes what came before known to who
    sees the next strong write; an acquire learns what strong reads before it have seen. A fence is
    both, and no access. `in_block` says that all this holds among the threads of one block only,
    by the instruction's scope or since it is the block's shared memory.
    """

    strong: bool = False
    releases: bool = False
    acquires: bool = False
    in_block: bool = False

    @classmethod
    def of(cls, action: Action) -> Ordering:
        """An instruction's."""
        if action.operation not in _ORDERING:
            return _NONE
        name, *words = action.form.opcode.split(".")
        if "proxy" in words:
            return _NONE
        in_block = "cta" in words
        if name in ("membar", "fence"):
            return cls(releases=True, acquires=True, in_block=in_block)
        if action.operation == "no_operation":
            return _NONE
        space = action.form.modifiers.get("S", "").removesuffix("::cta")
        if space not in ("", "global", "shared"):
            return _NONE
        return cls(
            strong=action.operation in ATOMICS or not _STRONG.isdisjoint(words),
            releases=not {"release", "acq_rel"}.isdisjoint(words),
            acquires=not {"acquire", "acq_rel"}.isdisjoint(words),
            in_block=in_block or space == "shared",
        )

    @property
    def between_blocks(self) -> Ordering:
        """What of it holds for threads of other blocks too."""
        return _NONE if self.in_block else self

    @property
    def fence(self) -> bool:
        """Whether it orders accesses, be it by itself or as a part of one."""
        return self.releases or self.acquires


_NONE = Ordering()


def scope(action: Action) -> str:
    """Among whose threads an atomic is atomic: "block", "device" or "system"; none of others."""
    if action.operation not in ATOMICS:
        return ""
    words = action.form.opcode.split(".")
    return "block" if "cta" in words else "system" if "sys" in words else "device"


def is_cas_loop(one: Action, other: Action) -> bool:
    """Whether these are a load and a compare-and-swap, which do no harm to each other: a loop of
    compare-and-swap, as of the CUDA programming guide, begins with a plain load, and a value that
    is out of date makes it go round once more."""
    return {one.operation, other.operation} == {"load", "compare_and_swap"}


def orders_warps(actions: Sequence[Action]) -> bool:
    """Whether a kernel's warps may make an order among themselves in shared memory by fences: not
    without strong accesses there."""
    return any(
        action.operation in (*ATOMICS, "load", "store")
        and action.form.modifiers.get("S", "") in ("", "shared", "shared::cta")
        and (action.operation in ATOMICS or not _STRONG.isdisjoint(action.form.opcode.split(".")))
        for action in actions
    )
