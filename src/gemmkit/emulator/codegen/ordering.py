"""`Ordering`: what an instruction has to do with the order of what different blocks do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmkit.emulator.codegen.operands import Action

ATOMICS = frozenset(["atomic", "reduction", "compare_and_swap"])
_ORDERING = ATOMICS | {"load", "store", "no_operation"}
_STRONG = frozenset(["volatile", "relaxed", "acquire", "release", "acq_rel"])


@dataclass(frozen=True, slots=True)
class Ordering:
    """By the memory model of PTX, for scopes that are wider than a block.

    `strong` accesses may meet others of their kind. A release makes what came before known to who
    sees the next strong write; an acquire learns what strong reads before it have seen. A fence is
    both, and no access.
    """

    strong: bool = False
    releases: bool = False
    acquires: bool = False

    @classmethod
    def of(cls, action: Action) -> Ordering:
        """An instruction's; nothing for scopes of a block and for its shared memory."""
        if action.operation not in _ORDERING:
            return _NONE
        name, *words = action.form.opcode.split(".")
        if "cta" in words or "proxy" in words:
            return _NONE
        if name in ("membar", "fence"):
            return cls(releases=True, acquires=True)
        if action.form.modifiers.get("S") not in ("", "global"):
            return _NONE
        return cls(
            strong=action.operation in ATOMICS or not _STRONG.isdisjoint(words),
            releases=not {"release", "acq_rel"}.isdisjoint(words),
            acquires=not {"acquire", "acq_rel"}.isdisjoint(words),
        )

    @property
    def fence(self) -> bool:
        """Whether it orders accesses, be it by itself or as a part of one."""
        return self.releases or self.acquires


_NONE = Ordering()


def orders_warps(actions: Sequence[Action]) -> bool:
    """Whether a kernel's warps may make an order among themselves in shared memory by fences: not
    without strong accesses there."""
    return any(
        action.operation in (*ATOMICS, "load", "store")
        and action.form.modifiers.get("S", "") in ("", "shared", "shared::cta")
        and (action.operation in ATOMICS or not _STRONG.isdisjoint(action.form.opcode.split(".")))
        for action in actions
    )
