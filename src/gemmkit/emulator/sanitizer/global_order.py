"""`GlobalOrder`: the order of accesses to global memory, within a block and between blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from gemmkit.emulator.codegen.layout import WINDOWS
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.shadow_layout import (
    CONFLICT,
    FENCE,
    GLOBAL_RACE,
    SCOPES,
    SYNCHRONIZES,
    VISIBLE_GLOBAL,
)
from gemmkit.emulator.machine.turns import most_at_once
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.announced_data import AnnouncedData
from gemmkit.emulator.sanitizer.asynchronous import Order
from gemmkit.emulator.sanitizer.between_blocks import BetweenBlocks
from gemmkit.emulator.sanitizer.clocks import FENCED_ROWS
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.flag_values import Look, Looks, flag_place, operand_of
from gemmkit.emulator.sanitizer.global_copies import GlobalCopies, LaunchCopies
from gemmkit.emulator.sanitizer.global_findings import GlobalFindings
from gemmkit.emulator.sanitizer.global_shadow import GlobalShadow
from gemmkit.emulator.sanitizer.memory_faults import space_at
from gemmkit.emulator.sanitizer.pollers import Pollers
from gemmkit.emulator.sanitizer.shadow import BlockShadow, Pattern
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
    # What memory held before the launch: the value of so many bytes at an address.
    held_before: Callable[[int, int], int | None] = lambda *_: None
    # The addresses of flags in global memory that were accessed.
    flags: set[int] = field(default_factory=set)
    pollers: Pollers = field(default_factory=Pollers)


class GlobalOrder:
    """The order of one worker's accesses."""

    def __init__(
        self, launch: LaunchOrder, worker: Worker, shadow: BlockShadow, order: Order | None
    ) -> None:
        """`order` follows mbarriers and bulk copies, if the kernel may have some."""
        self._worker, self._names, self._pollers = worker, launch.names, launch.pollers
        self._launch = launch
        peer = launch.workers[0] if launch.workers else None
        names = launch.names
        self._between = BetweenBlocks(names, worker, shadow, launch.known, peer, order)
        launch.workers.append(self._between)
        if most_at_once(worker.kernel, names.request) > 1 or (
            worker.kernel.orders_blocks and names.request.cluster_blocks > 1
        ):
            # A fence of another worker's block matters too.
            shadow.set_field("fences", 1)
        if worker.kernel.has_fences and (
            shadow.traits.flags_order_warps or names.request.cluster_blocks > 1
        ):
            # So do those who poll before the first fence.
            shadow.set_field("fences", 1)
        self._order, self._waits = order, worker.kernel.flag_waits
        self._within = WithinBlock(names, worker, shadow, self._between, order)
        self._announced = AnnouncedData(names, worker, launch.known, self._within, self._between)
        if worker.kernel.data_loads:
            # Flags matter without any fence.
            shadow.set_field("fences", 1)
        self._shadow = shadow
        if order is not None:
            found = GlobalFindings(names, launch.collection)
            copies = GlobalCopies(worker, launch.known, launch.copies, self._between, found)
            order.follow_global(copies, launch.want_loads)
            self._within.follow_copies(copies)

    def fence_proxy(self, kind: int, now: int) -> None:
        """The running warp executes a proxy fence of a kind."""
        if VISIBLE_GLOBAL in FENCED_ROWS.get(kind, ()):
            self._between.fence_proxy(now)

    def _note_poll(self, looks: Looks, action: Action) -> None:
        """The running warp has performed a strong access: does it wait for others, or do others
        wait for it?"""
        worker = self._worker
        warp = worker.warp_number(worker.field("running"))
        for address in looks:
            block, place = -1, address
            if space_at(action, address) == "shared":
                rank, place = flag_place(address, worker.rank)
                block = worker.number + rank - worker.rank
            self._pollers.accessed(
                worker,
                warp,
                action.number,
                (block, place),
                reads=action.operation not in ("store", "reduction"),
                writes=action.operation != "load",
            )

    def _looks(self, pattern: Pattern, base: int, action: Action, operands: int | None) -> Looks:
        """What a strong access finds at each address; `operands` says where native code keeps what
        its lanes compare with, if they wait."""
        wait = self._waits.get(action.number)
        if action.number in self._worker.kernel.data_loads:
            return dict.fromkeys((base + pattern.offsets[pattern.lanes]).tolist(), Look(0))
        found: dict[int, Look] = {}
        refused: set[int] = set()
        nbytes = action.form.type.bytes
        for lane in pattern.lanes.tolist():
            address = base + int(pattern.offsets[lane])
            if address not in found:
                operand = operand_of(wait, operands or 0, lane) if wait is not None else 0
                value = self._value(action, address, nbytes)
                found[address] = Look(value or 0, wait if value is not None else None, operand)
                if value is None:
                    refused.add(address)
        self._note_lanes(found, pattern, base)
        for address in found.keys() - refused - self._launch.flags if self._waits else ():
            self._note_initial(found, address, action)
        return found

    def _note_initial(self, looks: dict[int, Look], address: int, action: Action) -> None:
        """Note the value that a flag had before the first strong access to it, unless ordinary
        stores have set it."""
        if address >= min(WINDOWS.values()) or space_at(action, address) == "shared":
            return
        self._launch.flags.add(address)
        initial: int | None = looks[address].value
        if action.operation != "load":
            initial = self._launch.held_before(address, action.form.type.bytes)
            if self._launch.known.was_stored(address):
                initial = None
        looks[address] = replace(looks[address], initial=initial)

    def _note_lanes(self, looks: dict[int, Look], pattern: Pattern, base: int) -> None:
        """Note which lanes have accessed each address, where these are not all of the warp."""
        worker = self._worker
        warp = worker.warp_number(worker.field("running"))
        initial, exited = (int(worker.warp_fields(name)[warp]) for name in ("initial", "exited"))
        lanes: dict[int, int] = dict.fromkeys(looks, 0)
        for lane in pattern.lanes.tolist():
            lanes[base + int(pattern.offsets[lane])] |= 1 << lane
        for address, wrote in lanes.items():
            if initial & ~exited & ~wrote & 0xFFFFFFFF:
                looks[address] = replace(looks[address], lanes=wrote)

    def _value(self, action: Action, address: int, nbytes: int) -> int | None:
        """The value at an address; None if the access was refused."""
        worker = self._worker
        if space_at(action, address) == "shared":
            rank, place = flag_place(address, worker.rank)
            if rank >= len(worker.peers):
                return None
            memory = worker.peers[rank].shared[place : place + nbytes]
        else:
            found = self._names.memory.find(address)
            if found is None or address + nbytes > found.address + found.nbytes:
                return None
            memory = self._names.memory.view(address, nbytes)
        return int.from_bytes(memory.tobytes(), "little")

    def _loads_data(self, site: int) -> bool:
        return self._worker.site_number(site) in self._worker.kernel.data_loads

    def told(
        self, what: int, site: int | None, pattern: int | None, base: int, more: int
    ) -> tuple[int, Finding | None]:
        """Native code tells one of the events: the answer to it, and the race if it is one."""
        if what == FENCE:
            self._between.fence(base, in_block=more != SCOPES[""])
            self._within.fence(base)
            if self._order is not None:
                self._order.fenced(in_block=more == SCOPES["block"])
        elif pattern is not None:
            action = self._names.actions[more]
            looks = self._looks(Pattern(pattern), base, action, site)
            self._between.synchronize(looks, base, more)
            self._within.synchronize(looks, base, more)
            if self._order is not None:
                lanes = int((1 << Pattern(pattern).lanes.astype(np.int64)).sum())
                self._order.flagged(action, looks, lanes)
            self._note_poll(looks, action)
            if action.operation != "load":
                # What follows a flag comes later.
                self._shadow.now[0] += bool(self._worker.kernel.data_loads)
        elif site is not None and what == CONFLICT and self._loads_data(site):
            return self._announced.loaded(site, base, more)
        elif site is not None:
            follows = self._within if what == GLOBAL_RACE else self._between
            return follows.conflict(site, base, more)
        return 0, None
