"""`ClusterScope`: what orders, and shows, accesses of one block of a cluster to others.

An arrival or a wait of block scope (`.cta`, which PTX assumes) orders ordinary accesses of the
threads of one block only. A proxy fence for `shared::cta` covers the memory of the block that
executes it, and not what its threads have written to that of others. What a block knows of the
others is kept for all of its warps together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.shadow_layout import ORDERED, VISIBLE, VISIBLE_IN_CLUSTER
from gemmkit.emulator.sanitizer.clocks import Clock, Clocks

Times = NDArray[np.int32]


class ClusterScope:
    """For each block, by warp of the cluster, the time up to which its ordinary accesses are
    ordered before what the block does now."""

    def __init__(self, clocks: Clocks, blocks: int) -> None:
        self._clocks, self._each = clocks, clocks.warps // blocks
        self._known = np.zeros((blocks, clocks.warps), np.int32)
        # What each warp acquires at its next fence.
        self._observed = np.zeros((clocks.warps, clocks.warps), np.int32)
        # The same for accesses that a proxy fence of the block has covered.
        self._fenced = np.zeros((blocks, clocks.actors), np.int32)

    def rank_of(self, warp: int) -> int:
        """The rank of a warp's block."""
        return warp // self._each

    def released(self, warp: int, fenced: Clock | None = None) -> Times:
        """What a warp releases by an instruction of cluster scope or, with what was ordered at its
        last fence (`fenced`), by any."""
        row = self._clocks.of[warp, ORDERED] if fenced is None else fenced[ORDERED]
        rank = self.rank_of(warp)
        first = rank * self._each
        found: Times = self._known[rank].copy()
        own = slice(first, first + self._each)
        found[own] = row[own]
        return found

    def acquire(self, rank: int, times: Times) -> None:
        """A block acquires what others have released."""
        np.maximum(self._known[rank], times, out=self._known[rank])

    def acquire_at_fence(self, warp: int, times: Times) -> None:
        """A warp has observed, by a relaxed wait of cluster scope, what others have released."""
        np.maximum(self._observed[warp], times, out=self._observed[warp])

    def order_by_fence(self, warp: int) -> None:
        """A warp executes a fence, other than a proxy fence."""
        self.acquire(self.rank_of(warp), self._observed[warp])

    def fence(self, warp: int) -> None:
        """A warp executes a proxy fence for the shared memory of its block, or for more."""
        mine = self._fenced[self.rank_of(warp)]
        np.maximum(mine, self._clocks.of[warp, ORDERED], out=mine)

    def hidden(
        self, rank: int, known: Clock, writers: NDArray[np.int16], times: Times
    ) -> NDArray[np.bool_]:
        """Which writes to the shared memory of the block of a rank are not visible to the
        asynchronous proxy for a warp with the clock `known`."""
        clocks, seen = self._clocks, known[VISIBLE][writers]
        found: NDArray[np.bool_] = clocks.generic(writers) & (times > seen)
        peers = (writers < clocks.warps) & (writers // self._each != rank)
        if peers.any():
            own = np.minimum(seen, self._fenced[rank][writers])
            seen = np.maximum(own, known[VISIBLE_IN_CLUSTER][writers])
            found |= peers & (times > seen)
        return found

    def are_ordered(self, rank: int, writers: NDArray[np.int16], times: Times) -> NDArray[np.bool_]:
        """Which accesses of warps (`writers`) are ordered before what a block does now; so are all
        of its own."""
        own = writers // self._each == rank
        found: NDArray[np.bool_] = own | (self._known[rank, writers] >= times)
        return found
