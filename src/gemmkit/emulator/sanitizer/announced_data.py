"""`AnnouncedData`: data in global memory that a flag announces without a fence.

Volatile and relaxed accesses do not race with each other, but they order nothing: if a thread
stores data so, and then a flag, another one that sees the flag may still load what was there
before. The fence that is missing is that of the writer. (Without that of the reader, its load can
only come too early if it does not depend on the flag; kernels such as NVIDIA's threadFenceReduction
do without it.)
"""

from __future__ import annotations

from typing import Protocol

from gemmkit.emulator.codegen.shadow_layout import CONFLICT_THREAD, IN_ORDER
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.block_knowledge import KNOWN, UNFENCED
from gemmkit.emulator.sanitizer.cross_block_races import (
    Actor,
    cross_block_race,
    instruction_numbers,
)
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow
from gemmkit.emulator.sanitizer.orders import LANES_APART, BlockOrders, lanes_apart
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import Finding


class Follows(Protocol):
    """What fences and flags order before what the running warp does now."""

    def relation(self, other: Actor, time: int, thread: int) -> int:
        """How an access of another thread at a time is ordered before what a thread of the running
        warp does now, see `BlockOrder`."""

    def is_of_warps(self, other: Actor, time: int) -> bool:
        """Whether that holds for all lanes of both warps."""

    def is_announced(self, other: Actor, time: int) -> bool:
        """Whether the running warp has observed a flag that was written after it."""


class AnnouncedData:
    """The data that the blocks of one worker load; `within` follows the warps of a cluster,
    `between` other blocks."""

    def __init__(
        self, names: Names, worker: Worker, known: GlobalShadow, within: Follows, between: Follows
    ) -> None:
        self._names, self._worker, self._known = names, worker, known
        self._within, self._between = within, between
        self._numbers = instruction_numbers(worker.kernel.areas)
        self._orders = BlockOrders(names.actions)
        # The finding that stands for others of the same instructions and array.
        self._made: dict[tuple[int, int, int, int], Finding] = {}

    def loaded(self, site: int, address: int, more: int) -> tuple[int, Finding | None]:
        """The running warp loads what another one has written, with no barrier between, both by
        strong accesses: the answer to native code, and the race if it is one."""
        note, time = self._known.at(address, "strong")
        other = Actor.read(note, self._numbers)
        own = other.block == self._worker.field("cluster_start")
        follows = self._within if own else self._between
        number, thread = self._worker.site_number(site), more >> CONFLICT_THREAD
        how = follows.relation(other, time, thread)
        if how == KNOWN:
            return IN_ORDER if follows.is_of_warps(other, time) else 0, None
        if how == UNFENCED or (how not in LANES_APART and not follows.is_announced(other, time)):
            return 0, None
        alike = number, other.number, self._known.region(address), how
        if alike not in self._made:
            self._made[alike] = self._finding(address, other, how, number, thread)
        return 1, self._made[alike]

    def _finding(self, address: int, other: Actor, how: int, number: int, thread: int) -> Finding:
        rank, block = self._worker.rank, self._worker.field("cluster_start")
        me = Actor(block, thread, number, rank)
        why = LANES_APART.get(how) or self._orders.not_released(self._names.actions[number])
        race = cross_block_race(self._names, "read after write", address, other, me, why=why)
        return lanes_apart(race) if how in LANES_APART else race
