"""`GlobalOrder`: the order of accesses to global memory, within a block and between blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.codegen.shadow_layout import (
    CONFLICT,
    FENCE,
    GLOBAL_RACE,
    SYNCHRONIZES,
    VISIBLE_GLOBAL,
)
from gemmkit.emulator.machine.turns import most_at_once
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.asynchronous import Order
from gemmkit.emulator.sanitizer.between_blocks import BetweenBlocks
from gemmkit.emulator.sanitizer.clocks import FENCED_ROWS
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.global_copies import GlobalCopies, LaunchCopies
from gemmkit.emulator.sanitizer.global_findings import GlobalFindings
from gemmkit.emulator.sanitizer.memory_faults import space_at
from gemmkit.emulator.sanitizer.pollers import Pollers
from gemmkit.emulator.sanitizer.shadow import BlockShadow, GlobalShadow, Pattern
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.within_block import WithinBlock
from gemmkit.findings import Finding

# The events about the order of accesses to global memory.
EVENTS = frozenset([FENCE, SYNCHRONIZES, CONFLICT, GLOBAL_RACE])


@dataclass(frozen=True)
class LaunchOrder:
    """What the workers of a launch share. `want_loads` is told of a region (its first byte) whose
    loads must be recorded from the start."""

    names: Names
    known: GlobalShadow
    collection: Collection
    want_loads: Callable[[int], None]
    workers: list[BetweenBlocks] = field(default_factory=list)
    copies: LaunchCopies = field(default_factory=LaunchCopies)
    pollers: Pollers = field(default_factory=Pollers)


class GlobalOrder:
    """The order of one worker's accesses."""

    def __init__(
        self, launch: LaunchOrder, worker: Worker, shadow: BlockShadow, order: Order | None
    ) -> None:
        """`order` follows mbarriers and bulk copies, if the kernel may have some."""
        self._worker, self._names, self._pollers = worker, launch.names, launch.pollers
        peer = launch.workers[0] if launch.workers else None
        names = launch.names
        self._between = BetweenBlocks(names, worker, shadow, launch.known, peer, order)
        launch.workers.append(self._between)
        if most_at_once(worker.kernel, names.request) > 1 or (
            worker.kernel.orders_blocks and names.request.cluster_blocks > 1
        ):
            # A fence of another worker's block matters too.
            shadow.set_field("fences", 1)
        if shadow.traits.flags_order_warps and any(Ordering.of(a).fence for a in names.actions):
            # So do those who poll before the first fence.
            shadow.set_field("fences", 1)
        self._within = WithinBlock(names, worker, shadow, self._between, order)
        if order is not None:
            found = GlobalFindings(names, launch.collection)
            copies = GlobalCopies(worker, launch.known, launch.copies, self._between, found)
            order.follow_global(copies, launch.want_loads)
            self._within.follow_copies(copies)

    def fence_proxy(self, kind: int, now: int) -> None:
        """The running warp executes a proxy fence of a kind."""
        if VISIBLE_GLOBAL in FENCED_ROWS.get(kind, ()):
            self._between.fence_proxy(now)

    def _note_poll(self, pattern: Pattern, base: int, action: Action) -> None:
        """The running warp has performed a strong access: does it wait for others, or do others
        wait for it?"""
        worker = self._worker
        warp = worker.warp_number(worker.field("running"))
        block = worker.number if space_at(action, base) == "shared" else -1
        for address in set((base + pattern.offsets[pattern.lanes]).tolist()):
            self._pollers.accessed(
                worker,
                warp,
                action.number,
                (block, address),
                reads=action.operation not in ("store", "reduction"),
                writes=action.operation != "load",
            )

    def told(
        self, what: int, site: int | None, pattern: int | None, base: int, more: int
    ) -> tuple[int, Finding | None]:
        """Native code tells one of the events: the answer to it, and the race if it is one."""
        if what == FENCE:
            self._between.fence(base, in_block=bool(more))
            self._within.fence(base)
        elif pattern is not None:
            strong = Pattern(pattern)
            self._between.synchronize(strong, base, more)
            self._within.synchronize(strong, base, more)
            self._note_poll(strong, base, self._names.actions[more])
        elif site is not None:
            follows = self._within if what == GLOBAL_RACE else self._between
            return follows.conflict(site, base, more)
        return 0, None
