"""`BulkCopies`: the bulk copies of a running block, from their issue to their effect.

With warp seed 0 a copy takes effect when it is issued. Otherwise a generator that the seed and the
block determine chooses when: a few asynchronous instructions later, or when nothing else can run,
and at the latest at the wait that covers it. A copy reads its source when it takes effect; one
whose source was waited for (`wait_group.read`) may still write its destination later.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import WINDOW_BYTES
from gemmkit.emulator.isa.bulk_copies import combined, is_reduction
from gemmkit.emulator.isa.cluster import divided, reaches_peers
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.machine import tensor_copies
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.memory import Bytes, DeviceMemory
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.shared_names import shared_array

# A delayed copy takes effect after at most so many asynchronous instructions of its block; one that
# a schedule holds back does not by itself.
_LONGEST = 12
_HELD = 1 << 62


@dataclass(slots=True)
class _Groups:
    """The bulk groups of a thread: that which is open, with its number, and those committed."""

    number: int = 1
    open: list[Copy] = field(default_factory=list)
    # Those that were not waited for in any way.
    unread: list[Copy] = field(default_factory=list)
    committed: list[list[Copy]] = field(default_factory=list)


class BulkCopies:
    """The copies of one worker's block; `deliver` counts bytes at an mbarrier for a copy."""

    def __init__(
        self, worker: Worker, memory: DeviceMemory, deliver: Callable[[Copy], None]
    ) -> None:
        self._worker, self._memory, self._deliver = worker, memory, deliver
        self.begin()

    def begin(self) -> None:
        """A block begins."""
        self._now = 0
        self._groups: defaultdict[int, _Groups] = defaultdict(_Groups)
        self._queue: list[Copy] = []
        self._seed = self._worker.grid.warp_seed
        self._random = random.Random(f"{self._seed}/{self._worker.number}")
        self._worker.set_field("in_flight", 0)

    @property
    def are_delayed(self) -> bool:
        """Whether copies may take effect later than they are issued."""
        return self._seed != 0 or self._worker.replay is not None

    def issue(self, copy: Copy) -> None:
        """A thread issues a copy.

        Raises:
            Refusal: it is out of bounds; a tensor copy was checked when it was made.
        """
        if copy.box is None:
            self._check_bounds(copy)
        if copy.barrier is None:
            groups = self._groups[copy.thread]
            copy.group = groups.number
            groups.open.append(copy)
            groups.unread.append(copy)
        if self._worker.observer is not None:
            self._worker.observer.issued(copy)
            self._note_queue()
        if self._worker.replay is not None and self._worker.replay.holds(copy):
            copy.due = _HELD
        elif not self._seed or self._random.random() < 0.25:
            self._take_effect(copy)
            return
        else:
            copy.due = self._now + self._random.randint(1, _LONGEST)
        self._queue.append(copy)
        self._note_queue()

    def _check_bounds(self, copy: Copy) -> None:
        form = copy.action.form
        for does, space, address in (
            ("writes", form["D"], copy.to),
            ("reads", form.modifiers.get("F", "shared"), copy.start),
        ):
            if self._fits(form, space, address, copy.nbytes):
                continue
            array, offset = self._place(space, address)
            what = f"{does} {copy.nbytes:,} bytes at byte {offset:,} of '{array}', out of bounds"
            if space == "shared":
                what += f": the block has {self._worker.shared_bytes:,} bytes of shared memory"
            if not array:
                what = f"{does} {copy.nbytes:,} bytes at {address:#x}, where nothing is allocated"
            number = copy.action.number
            raise Refusal("out of bounds", what, number, copy.thread, array, offset)

    def _fits(self, form: Form, space: str, address: int, nbytes: int) -> bool:
        if space == "shared":
            if reaches_peers(form):
                rank, address = divided(address, self._worker.rank)
                if rank >= len(self._worker.peers):
                    return False
            within = 0 <= address < WINDOW_BYTES
            start, end = self._worker.shared_base, self._worker.shared_end
            return within and start <= address and address + nbytes <= end
        found = self._memory.find(address)
        return nbytes == 0 or (
            found is not None and address + nbytes <= found.address + found.nbytes
        )

    def _place(self, space: str, address: int) -> tuple[str, int]:
        if space == "shared":
            address = divided(address, self._worker.rank)[1]
            return shared_array(self._worker.flow.kernel, address)
        found = self._memory.nearest(address)
        return ("", 0) if found is None else (found.name, address - found.address)

    # Groups

    def commit(self, thread: int) -> None:
        """The copies that a thread issued since its last commit become a group."""
        groups = self._groups[thread]
        groups.committed.append(groups.open)
        groups.open = []
        groups.number += 1

    def wait(self, thread: int, going: int, *, read: bool) -> None:
        """A thread waits until at most `going` of its latest groups are in flight; with `read`,
        only until they have read their sources."""
        groups = self._groups[thread]
        done = groups.committed[: max(len(groups.committed) - going, 0)]
        for copy in (copy for group in done for copy in group if copy in self._queue):
            if read:
                self._read(copy)
            else:
                self._queue.remove(copy)
                self._take_effect(copy)
        if self._worker.observer is not None:
            waited = [each for group in done for each in group]
            self._worker.observer.groups_waited(thread, waited, read=read)
        covered = {copy for group in done for copy in group}
        groups.unread = [copy for copy in groups.unread if copy not in covered]
        if not read:
            del groups.committed[: len(done)]
        self._note_queue()

    # Effects

    def tick(self) -> None:
        """An asynchronous instruction is about to run; copies that are due take effect."""
        self._now += 1
        if self._queue:
            due = [copy for copy in self._queue if copy.due <= self._now]
            for copy in due:
                self._queue.remove(copy)
                self._take_effect(copy)
            self._note_queue()

    def land(self, copy: Copy) -> bool:
        """Let a copy take effect; False if it is not in flight."""
        if copy not in self._queue:
            return False
        self._queue.remove(copy)
        self._take_effect(copy)
        self._note_queue()
        return True

    def land_one(self) -> bool:
        """Let one of the copies in flight take effect; False if there is none."""
        if not self._queue:
            return False
        self._take_effect(self._queue.pop(self._random.randrange(len(self._queue))))
        self._note_queue()
        return True

    def end(self) -> None:
        """The block has ended: all copies in flight take effect, in some order."""
        while self.land_one():
            pass
        if self._worker.observer is not None:
            self._worker.observer.ended(self._unread())
        self._worker.set_field("in_flight", 0)

    def _unread(self) -> list[Copy]:
        return [copy for groups in self._groups.values() for copy in groups.unread]

    def _note_queue(self) -> None:
        """Native code must return at the end of the block if there is something left to do."""
        left = len(self._queue)
        if self._worker.observer is not None:
            left += len(self._unread())
        self._worker.set_field("in_flight", left)

    def _bytes(self, space: str, address: int, nbytes: int) -> Bytes:
        if space == "shared":
            rank, address = divided(address, self._worker.rank)
            return self._worker.peers[rank].shared[address : address + nbytes]
        return self._memory.view(address, nbytes)

    def _read(self, copy: Copy) -> NDArray[np.uint8]:
        if copy.data is None and copy.box is not None:
            copy.data = tensor_copies.read(self._worker, self._memory, copy)
        elif copy.data is None:
            copy.data = self._bytes(copy.action.form["F"], copy.start, copy.nbytes).copy()
        return copy.data

    def _take_effect(self, copy: Copy) -> None:
        data, form = self._read(copy), copy.action.form
        if copy.box is not None:
            tensor_copies.write(self._worker, self._memory, copy, data)
        else:
            target = self._bytes(form["D"], copy.to, copy.nbytes)
            target[:] = combined(form, target, data) if is_reduction(form) else data
        if self._worker.observer is not None:
            self._worker.observer.landed(copy)
        if copy.barrier is not None:
            self._deliver(copy)
