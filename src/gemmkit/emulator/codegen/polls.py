"""`Polls`: which basic blocks of a kernel poll memory, and which may change what others see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.addresses import space_of
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering, loads_atomically
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Immediate, Register, Special

# What changes nothing but registers, and the state of the block's barriers.
_HARMLESS = frozenset(
    [
        *("load", "branch", "barrier", "barrier_arrive", "no_operation", "mbarrier_test"),
        *("mbarrier_try", "vote", "ballot", "shuffle", "active_mask", "match_any", "match_all"),
        *("reduce_warp", "elect", "is_space", "map_address", "cluster_rank", "create_policy"),
    ]
)
# What only computes registers, also from those of other lanes.
_COMPUTES = frozenset(
    [
        *("vote", "ballot", "shuffle", "active_mask", "match_any", "match_all", "reduce_warp"),
        *("elect", "is_space", "map_address", "cluster_rank", "create_policy", "no_operation"),
    ]
)
# Clocks stand still in the emulator, and go on elsewhere.
_CLOCKS = ("%clock", "%globaltimer")


def polls(action: Action) -> bool:
    """Whether a loop may ask for memory by an instruction until others have changed it."""
    reads = action.operation in ("load", "atomic", "compare_and_swap")
    fresh = Ordering.of(action).strong or ".cv" in action.form.opcode
    return action.operation == "mbarrier_test" or (reads and fresh)


def _computes(action: Action) -> bool:
    """Whether an instruction does nothing but compute registers."""
    return action.pure or action.operation in _COMPUTES


def _asks_others(action: Action) -> bool:
    return polls(action) and not (
        action.operation == "mbarrier_test" or space_of(action).startswith("shared")
    )


def _tells_time(action: Action) -> bool:
    """Whether an instruction has another result each time."""
    return any(
        isinstance(each, Special) and each.name.startswith(_CLOCKS) for each in action.sources
    )


def _changes(action: Action) -> bool:
    """Whether an instruction may change what other threads see."""
    own = action.operation == "store" and space_of(action) == "local"
    harmless = action.pure or action.operation in _HARMLESS or loads_atomically(action)
    return not (own or harmless)


class Polls:
    """The basic blocks of one kernel.

    Attributes:
        asks: which blocks poll memory.
        asks_others: which poll memory that is not that of the thread block, or its cluster.
        changes: which blocks may change something.
    """

    def __init__(self, flow: ControlFlow, actions: Sequence[Action]) -> None:
        self._flow, self._actions = flow, actions
        inside = [actions[each.start : each.end] for each in flow.blocks]
        self.asks = np.array([any(map(polls, each)) for each in inside], np.bool_)
        self.asks_others = np.array([any(map(_asks_others, each)) for each in inside], np.bool_)
        self.changes = np.array([any(map(_changes, each)) for each in inside], np.bool_)
        self._inside = inside
        self._clocks = np.array([any(map(_tells_time, each)) for each in inside], np.bool_)
        # The registers that always hold the same number.
        self._constants: dict[Register, int | None] = {}
        for action in actions:
            moved = action.sources[0] if action.operation == "move" else None
            value = moved.value if isinstance(moved, Immediate) else None
            for dest in action.dests:
                if dest is not None:
                    self._constants[dest] = value if dest not in self._constants else None

    def value_set(self, ran: NDArray[np.bool_]) -> int | None:
        """The one value that the blocks which `ran` set memory to by atomics, if that is all that
        they do; None else. Memory that was the same before and after has not changed then."""
        blocks = np.flatnonzero(ran & self.changes).tolist()
        values = {self._sets(each) for at in blocks for each in self._inside[at] if _changes(each)}
        return values.pop() if len(values) == 1 else None

    def _sets(self, action: Action) -> int | None:
        """The one value that an atomic leaves, if it changes anything: that of an exchange, or of a
        compare-and-swap."""
        swaps = action.operation == "compare_and_swap" or action.form.modifiers.get("O") == "exch"
        value = action.sources[-1] if swaps and action.sources else None
        if isinstance(value, Register):
            return self._constants.get(value)
        return value.value if isinstance(value, Immediate) else None

    def decides(self, ran: NDArray[np.bool_]) -> frozenset[Register]:
        """The registers on which depends what the blocks that `ran` do next, as long as no other
        blocks run: not those that only count how often they did, or say how long to sleep."""
        blocks = np.flatnonzero(ran).tolist()
        actions = [each for at in blocks for each in self._inside[at]]
        found: set[Register] = set()
        open_branches: dict[int, frozenset[Register]] = {}
        for at in blocks:
            idle = self._idle.get(at)
            if idle is not None and ran[self._flow.reconvergence[at]]:
                open_branches[at] = idle
            last = self._inside[at][-1:] if at in open_branches else []
            for each in self._inside[at]:
                if each not in last and not _computes(each):
                    found.update(each.registers_read())
        known = -1
        while known != len(found):
            known = len(found)
            for at, written in [*open_branches.items()]:
                if not found.isdisjoint(written):
                    found.update(self._inside[at][-1].registers_read())
                    del open_branches[at]
            for each in reversed(actions):
                if not found.isdisjoint(dest for dest in each.dests if dest is not None):
                    found.update(each.registers_read())
        return frozenset(found)

    @cached_property
    def _idle(self) -> dict[int, frozenset[Register]]:
        """By block whose last branch only decides what is computed until its ways meet again, the
        registers that are written on these ways."""
        blocks, found = self._flow.blocks, {}
        for at, block in enumerate(blocks):
            last, meeting = self._inside[at][-1:], self._flow.reconvergence[at]
            if len(block.successors) != 2 or meeting >= len(blocks):
                continue
            between: set[int] = set()
            waiting = [each for each in block.successors if each != meeting]
            while waiting:
                inside = waiting.pop()
                between.add(inside)
                if inside == at or inside >= len(blocks):
                    break
                waiting += {*blocks[inside].successors} - between - {meeting}
            else:
                ways = [each for inside in between for each in self._inside[inside]]
                harmless = all(_computes(each) or each.operation == "branch" for each in ways)
                if harmless and last[0].operation == "branch":
                    dests = (dest for each in ways for dest in each.dests)
                    found[at] = frozenset(dest for dest in dests if dest is not None)
        return found

    def heeds_time(self, ran: NDArray[np.bool_]) -> bool:
        """Whether what the blocks that `ran` do next depends on a clock that they read."""
        if not (ran & self._clocks).any():
            return False
        decisive = self.decides(ran)
        return any(
            _tells_time(each) and not decisive.isdisjoint(filter(None, each.dests))
            for at in np.flatnonzero(ran & self._clocks).tolist()
            for each in self._inside[at]
        )

    def in_loop(self, blocks: Iterable[int]) -> list[Action]:
        """The instructions by which a loop of these blocks polls."""
        return [each for at in sorted(blocks) for each in self._inside[at] if polls(each)]

    def waits_at(self, block: int) -> bool:
        """Whether lanes that continue at a block change nothing before they wait for their warp or
        for others, or exit."""
        seen, waiting = {block}, [block]
        while waiting:
            at = waiting.pop()
            if at >= len(self._inside):
                continue
            for action in self._inside[at]:
                if _waits(action):
                    break
                if _changes(action) or _tells_time(action):
                    return False
            else:
                new = set(self._flow.blocks[at].successors) - seen
                seen |= new
                waiting += new
        return True


def _waits(action: Action) -> bool:
    if action.operation in ("barrier", "exit"):
        return action.guard is None
    whole = action.form.opcode_class == "warp" and action.operation != "active_mask"
    return whole or action.form.opcode.startswith("bar.warp")
