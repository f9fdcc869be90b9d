"""Finds loads of adjacent words that can be performed together.

Unrolled loops read `[r]`, `[r+4]`, `[r+8]` … with one instruction each; ptxas merges them too. Four
such loads cost the emulator little more than one. Each is still counted by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.ptx.cfg import BasicBlock
from gemmkit.emulator.ptx.module import Register

# Loads per group.
TOGETHER = 4
_WORD = 4
# Instructions that may stand between: other loads, and those that do not access memory.
_HARMLESS = frozenset(["load", "copy_async_commit", "active_mask", "is_space"])


def load_groups(actions: Sequence[Action], block: BasicBlock) -> list[tuple[int, ...]]:
    """Groups of loads in a block, by instruction number, in the order of their addresses."""
    found: defaultdict[tuple[str, Register, int, int], dict[int, int]] = defaultdict(dict)
    written: defaultdict[Register, int] = defaultdict(int)
    stretch = 0
    for action in actions[block.start : block.end]:
        if _plain(action):
            assert action.address is not None
            base = action.address.base
            assert isinstance(base, Register)
            key = (action.form["S"], base, written[base], stretch)
            found[key].setdefault(action.address.offset, action.number)
        elif not action.pure and action.operation not in _HARMLESS:
            stretch += 1
        for register in action.dests:
            if register is not None:
                written[register] += 1
    return [group for offsets in found.values() for group in _runs(offsets)]


def _plain(action: Action) -> bool:
    """Whether this is a load of one word by all active lanes that may be performed early."""
    return (
        action.operation == "load"
        and action.form["S"] in ("global", "shared", "shared::cta")
        and action.form.type.bits == 8 * _WORD
        and len(action.dests) == 1
        and action.guard is None
        and action.address is not None
        and isinstance(action.address.base, Register)
        and not any(
            ordered in action.form.opcode for ordered in (".volatile", ".relaxed", ".acquire")
        )
    )


def _runs(offsets: dict[int, int]) -> list[tuple[int, ...]]:
    groups = []
    left = dict(sorted(offsets.items()))
    for offset in list(left):
        wanted = [offset + _WORD * index for index in range(TOGETHER)]
        if all(each in left for each in wanted):
            groups.append(tuple(left.pop(each) for each in wanted))
    return groups
