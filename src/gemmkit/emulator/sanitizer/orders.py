"""What may order a kernel's accesses, and what is missing between two of them, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import ATOMICS, Ordering, hands_over_by_flags
from gemmkit.emulator.sanitizer.block_knowledge import AHEAD, UNFENCED, UNLEARNED
from gemmkit.emulator.sanitizer.block_knowledge import APART as APART_BEFORE
from gemmkit.emulator.sanitizer.collection import APART
from gemmkit.findings import Finding

# Why lanes of a warp matter, by how an access is ordered before another.
LANES_APART = {
    APART_BEFORE: "only another lane of that warp signals this, with no __syncwarp() before it",
    AHEAD: "only another lane of this warp has waited for that, with no __syncwarp() after it",
}
# As the emulator runs them.
TOGETHER = "the hardware as long as these lanes run together"
# The kind of a flag that one thread may read or set before another one has initialized it.
UNINITIALIZED_FLAG = "uninitialized flag"
OLD_FLAG = "it may find what was there before"
LOST_FLAG = "what it writes may be overwritten, and those who wait for it wait on"
_MBARRIERS = ("mbarrier_", "bulk_")
_READS = ("load", "atomic", "compare_and_swap")
_MEETINGS = ("mbarrier_", "barrier_cluster_")
_IN_ORDER = " (with a barrier before the {write}, if a thread of another warp executes that)"


def own_address_only(actions: Iterable[Action]) -> str:
    """What a kernel may have overlooked whose flags are partly relaxed, and partly not."""
    roles = [(Ordering.of(each), each.operation) for each in actions]
    strong = [(role, operation) for role, operation in roles if role.strong]
    reads = {role.acquires for role, operation in strong if operation in _READS}
    writes = {role.releases for role, operation in strong if operation != "load"}
    if len(reads) < 2 and len(writes) < 2:
        return ""
    return "; an access that acquires or releases does so for its own address only"


def missing_order(actions: Iterable[Action]) -> str:
    """What is missing between two accesses of a block's threads that nothing orders: all by which
    the kernel may order its threads."""
    actions = tuple(actions)
    relaxed = any(
        ".relaxed" in each.form.opcode and each.operation.startswith(_MEETINGS) for each in actions
    )
    note = " (one that is .relaxed orders no other accesses)" * relaxed
    if not hands_over_by_flags(actions):
        return f"with no barrier, and no arrival and wait at an mbarrier, between{note}"
    mbarriers = any(each.operation.startswith(_MBARRIERS) for each in actions)
    arrivals = "no arrival and wait at an mbarrier, " if mbarriers else ""
    return (
        f"with no barrier, {arrivals}and no flag that one releases (by a fence and a write) and "
        f"the other acquires (by a read and a fence), between{note}{own_address_only(actions)}"
    )


def lanes_apart(race: Finding) -> Finding:
    """A race that there is only as lanes of a warp are not in step."""
    message = race.message.replace(f"{race.kind}:", f"{APART}:", 1)
    return msgspec.structs.replace(race, kind=APART, message=message, forgiven_by=TOGETHER)


class BlockOrders:
    """How the blocks of a kernel may signal each other in global memory, in words."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = actions

    @cached_property
    def _flags(self) -> list[Action]:
        return [each for each in self._actions if Ordering.of(each).between_blocks.strong]

    @cached_property
    def _write(self) -> str:
        return _either(each for each in self._flags if each.operation != "load")

    @cached_property
    def _look(self) -> str:
        return _either(each for each in self._flags if each.operation != "store")

    @cached_property
    def _block_scope(self) -> str:
        roles = map(Ordering.of, self._actions)
        fences = any(each.fence and each.scope == "block" for each in roles)
        return "; fences of block scope (.cta) order no other blocks" * fences

    def missing(self, how: int, look: Action | None, *, after_read: bool) -> str:
        """What is missing between two accesses of blocks that are ordered so; `look` is the last
        access by which the later block has observed another one. `after_read`: the later access
        writes what the other one reads."""
        limits = f"{self._block_scope}{own_address_only(self._actions)}"
        if how == UNFENCED:
            word = self._look if look is None else _word(look)
            also = ""
            if word in ("volatile load", "relaxed load"):
                also = f" (a {word} does not order other accesses)"
            return (
                f"no __threadfence() comes between this and the {word} that signals the other"
                f"{also}{limits}"
            )
        if how == UNLEARNED:
            return (
                f"no {self._look} that signals the other, followed by a __threadfence(), comes "
                f"before this{limits}"
            )
        waits = " (or the other waits for too little, and this has to come first)" * after_read
        return f"{self._unreleased()}{waits}{limits}"

    def not_released(self, load: Action) -> str:
        """The same if the later access is a strong load, and a flag that it has observed follows
        the other one without a fence."""
        word = _word(load).removesuffix(" load")
        return f"{self._unreleased()}; {_article(word)} access orders no others{self._block_scope}"

    def _unreleased(self) -> str:
        return (
            f"the other is not followed by a __threadfence() and then {_article(self._write)} that "
            f"signals it{_IN_ORDER.format(write=self._write)}"
        )


def ordinary_access(one: Action, other: Action) -> str:
    """Why an ordinary access races with a strong one of another block; empty if none of the two is
    ordinary, or both are."""
    strong = [Ordering.of(each).strong for each in (one, other)]
    ordinary = other if strong[0] else one
    if all(strong) or not any(strong) or ordinary.operation not in ("load", "store"):
        return ""
    its = _word(one if strong[0] else other)
    does = "looks at" if ordinary.operation == "load" else "sets"
    return (
        f"an ordinary {ordinary.operation} races with {_article(its)} that no fences order: one "
        f"that {does} a flag must be volatile, or atomic"
    )


def _either(flags: Iterable[Action]) -> str:
    """What the flags of a kernel are accessed by."""
    words = sorted(set(map(_word, flags)))
    return " or ".join(words) if words else "atomic"


def _word(action: Action) -> str:
    if action.operation in ATOMICS:
        return "atomic"
    words = action.form.opcode.split(".")
    kind = next(
        (each for each in ("volatile", "relaxed", "acquire", "release") if each in words), ""
    )
    return f"{kind} {action.operation}"


def _article(word: str) -> str:
    return f"{'an' if word[0] == 'a' else 'a'} {word}"
