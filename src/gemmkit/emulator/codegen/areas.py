"""Assigns each instruction its counter, record and pattern cache in a worker's buffer."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from gemmkit.emulator.codegen.layout import (
    COUNTER_BYTES,
    PATTERN,
    PATTERN_WAYS,
    SITE_BYTES,
    TRANSFER_BYTES,
    WORKER_COUNTERS,
)
from gemmkit.emulator.codegen.load_groups import load_groups
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.counters.merging import Merging
from gemmkit.emulator.ptx.cfg import ControlFlow

MEMORY_OPERATIONS = frozenset(
    ["load", "store", "copy_async", "atomic", "compare_and_swap", "reduction"]
)
TRANSFERS = frozenset(["bulk_copy", "bulk_store", "bulk_tensor"])


def counted_separately(action: Action) -> bool:
    """Whether an instruction may act in fewer lanes than its block."""
    if action.guard is not None:
        return True
    return action.operation == "copy_async" and len(action.sources) > 1


class Areas:
    """Offsets in a worker's buffer for one kernel."""

    def __init__(self, flow: ControlFlow, actions: Sequence[Action]) -> None:
        self.merging = Merging.of(flow)
        blocks = flow.blocks
        # Loads that are performed together: their records are adjacent, and all count alike.
        self.together = [
            group
            for block in blocks
            for group in load_groups(actions, block)
            if len({self.merging.width.get(number) for number in group}) == 1
        ]
        apart = [action.number for action in actions if counted_separately(action)]
        self.apart = {number: index for index, number in enumerate(apart, len(blocks))}
        self.group_of = {number: group for group in self.together for number in group}
        grouped = [number for group in self.together for number in group]
        sites = dict.fromkeys(grouped)
        sites |= dict.fromkeys(
            action.number for action in actions if action.operation in MEMORY_OPERATIONS
        )
        self.sites = {number: index for index, number in enumerate(sites)}
        # The instruction of each record.
        self.numbers = tuple(sites)
        self.counters = len(blocks) + len(apart)
        self._sites_at = -(-(WORKER_COUNTERS + COUNTER_BYTES * self.counters) // 64) * 64
        transfers = [action.number for action in actions if action.operation in TRANSFERS]
        self.transfers = {number: index for index, number in enumerate(transfers)}
        self._transfers_at = self._sites_at + SITE_BYTES * len(sites)
        # Patterns are aligned as the records are.
        self._patterns_at = self._transfers_at + -(-TRANSFER_BYTES * len(transfers) // 64) * 64
        self._patterns = 0

    def without_patterns(self) -> Areas:
        """These, as they are before code is written."""
        copied = copy(self)
        copied._patterns = 0
        return copied

    def block(self, number: int) -> int:
        """A basic block's counter."""
        return WORKER_COUNTERS + COUNTER_BYTES * number

    def counter(self, number: int) -> int:
        """The counter of an instruction that is counted separately."""
        return WORKER_COUNTERS + COUNTER_BYTES * self.apart[number]

    def site(self, number: int) -> int:
        """The record of a memory instruction."""
        return self._sites_at + SITE_BYTES * self.sites[number]

    def transfer(self, number: int) -> int:
        """The counts of a bulk copy, `st.async` or `red.async`."""
        return self._transfers_at + TRANSFER_BYTES * self.transfers[number]

    def new_patterns(self) -> int:
        """A pattern cache for one more address in the code."""
        offset = self._patterns_at + self._patterns * PATTERN_WAYS * PATTERN.size
        self._patterns += 1
        return offset

    @property
    def size(self) -> int:
        """Size of the buffer in bytes."""
        return self._patterns_at + self._patterns * PATTERN_WAYS * PATTERN.size

    @property
    def transfer_start(self) -> int:
        """Where the counts of bulk copies begin."""
        return self._transfers_at

    @property
    def sites_start(self) -> int:
        """Where the records of memory instructions begin."""
        return self._sites_at
