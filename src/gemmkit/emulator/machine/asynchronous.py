"""What the parts of the asynchronous machine know of each other: copies in flight, lanes that wait,
and the interfaces of a block's `Phases` and of the sanitizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.tensor_copies import Box
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.machine.warp_stores import WarpStores


@dataclass(slots=True, eq=False)
class Copy:
    """A bulk copy of a thread; addresses are those in their spaces.

    `barrier` is the mbarrier that counts its bytes, if one does, or else `group` the number of the
    bulk group; `due` is the time of its effect, and `data` what it has read, or what `st.async` or
    `red.async` holds. Addresses in shared memory may be in the window of the cluster. A copy of a
    tensor has a `box`, and the address of its tensor map; `to` or `start` is then the first byte of
    the box in the tensor.
    """

    action: Action
    thread: int
    to: int
    start: int
    nbytes: int
    barrier: int | None
    group: int = 0
    due: int = 0
    data: NDArray[np.uint8] | None = None
    box: Box | None = None
    map_at: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Lanes (a mask) that wait, or poll, at an instruction: the parity of the awaited phase by the
    address of each mbarrier."""

    lanes: int
    number: int
    awaited: dict[int, int]
    polls: bool


class Waiting(Protocol):
    """What the warps of a worker's block wait for, and its copies in flight."""

    def execute(
        self, warp: int, action: Action, operands: Sequence[NDArray[Any]], active: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        """Execute an asynchronous instruction in some lanes of a warp."""

    def expire(self) -> bool:
        """All warps have stopped; returns whether that let one of them continue."""

    def land(self, copy: Copy) -> bool:
        """Let a copy take effect; False if it is not in flight."""

    def land_one(self) -> bool:
        """Let one of the copies in flight take effect; False if there is none."""

    def stopped(self) -> Sequence[object]:
        """The warps whose waits may expire, and what they wait for."""

    def resume(self) -> None:
        """Let these waits expire."""

    def wake(self, address: int, phase: int) -> None:
        """Wake the lanes that wait for the end of a phase other than this one of an mbarrier or, at
        `isa.cluster.CLUSTER_BARRIER`, of the cluster's barrier."""

    def settle_cluster(self) -> bool:
        """Threads may have exited: whether that completed the phase of the cluster's barrier."""

    def drain(self) -> None:
        """All warps have ended: copies in flight take effect."""

    def waits(self, warp: int) -> Sequence[Wait]:
        """What lanes of a warp wait or poll for."""

    def read(self, address: int) -> int:
        """The 8 bytes of an mbarrier of the block."""

    def text(self, address: int) -> str:
        """An mbarrier, and what it has and expects, in words."""


class Scheduled(Protocol):
    """A block that follows a schedule, with its cluster, or is recorded."""

    def advance(self) -> bool:
        """No warp runs: go on with the next step; False if there is none."""

    @property
    def holding(self) -> bool:
        """Whether steps of the schedule are left."""

    def finish(self) -> None:
        """The launch has ended."""

    def holds(self, copy: Copy) -> bool:
        """Whether the schedule says when a copy takes effect, which is issued now."""

    def answered(self, warp: int, number: int, lanes: int, *, done: bool) -> None:
        """Lanes have asked for the phase of an mbarrier, or waited for the cluster's barrier."""


class Observer(Protocol):
    """Is told of the asynchronous instructions of one worker, in the order of their execution.

    Threads are numbered within the block, `number` is that of an instruction, addresses are in
    shared memory: the block's own, or in the window of the cluster (see `isa.cluster`).
    """

    def look(self) -> None:
        """Native code returns for a while."""

    def initialized(self, number: int, thread: int, address: int) -> None:
        """A thread initializes an mbarrier."""

    def invalidated(self, number: int, thread: int, address: int) -> None:
        """A thread invalidates an mbarrier."""

    def used(self, number: int, thread: int, address: int) -> None:
        """A thread uses an mbarrier in another way; arrivals and waits are reported again."""

    def arrived(self, number: int, thread: int, address: int, ended: int | None = None) -> None:
        """A thread has arrived at an mbarrier, the last one of its warp in this instruction; this
        precedes the completion of the phase. Before it in this instruction, the thread `ended`, if
        any, has completed an earlier phase of the same mbarrier."""

    def releases(self, warp: int, number: int, lanes: int) -> None:
        """Lanes of a warp (a mask) are about to arrive at mbarriers."""

    def completed(self, address: int) -> None:
        """A phase of an mbarrier is complete."""

    def waited(self, number: int, thread: int, address: int, lanes: int) -> None:
        """A thread has observed the completion of a phase, with other `lanes` of its warp."""

    def issued(self, copy: Copy) -> None:
        """A thread has issued a bulk copy."""

    def sent(self, stores: WarpStores) -> bool:
        """Lanes of a warp have executed `st.async` or `red.async`, and their bytes have arrived;
        this precedes the completion of the phase. If it returns False, there may be something to
        report, and each lane's store is reported by itself instead."""

    def acquired_map(self, thread: int, address: int) -> None:
        """A thread has executed a `fence.proxy.tensormap` that acquires a tensor map."""

    def released_maps(self) -> None:
        """A thread has executed a `fence.proxy.tensormap` that releases its writes to maps."""

    def delivered(self, copy: Copy) -> None:
        """The bytes of a bulk copy are counted at its mbarrier."""

    def landed(self, copy: Copy) -> None:
        """A bulk copy has written its destination."""

    def groups_waited(self, thread: int, copies: Iterable[Copy], *, read: bool) -> None:
        """A thread has waited for bulk copies that it issued, or for their reads only."""

    def arrived_in_cluster(self, number: int, warp: int) -> None:
        """Lanes of a warp have arrived at the cluster's barrier."""

    def cluster_met(self) -> None:
        """All threads of the cluster have arrived at its barrier."""

    def waited_in_cluster(self, warp: int) -> None:
        """Lanes of a warp have waited for the cluster's barrier."""

    def exited(self) -> None:
        """All warps of the block have ended, in a cluster of several."""

    def ended(self, copies: Iterable[Copy]) -> None:
        """All warps have ended; these copies to global memory were not waited for."""

    def wgmma_issued(
        self, warp: int, number: int, product: WarpgroupProduct, descriptors: tuple[int, ...]
    ) -> None:
        """A warp issues a `wgmma.mma_async`; the descriptors are of its operands in shared
        memory."""

    def wgmma_ordered(self, warp: int, action: Action) -> None:
        """A warp commits a group of wgmma, or waits for groups."""

    def registers_set(self, warp: int, action: Action) -> None:
        """A warp executes `setmaxnreg`."""
