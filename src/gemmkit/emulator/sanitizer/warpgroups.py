"""`Warpgroups`: what wgmma read from shared memory, and when, in one block.

A wgmma reads through the asynchronous proxy until a `wgmma.wait_group` of its own warp covers its
group; each warp has an actor of its own for that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.matrix_descriptors import CHUNK_BYTES, chunks_of
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.emulator.sanitizer.agreement import Agreement
from gemmkit.emulator.sanitizer.clocks import ORDERED, VISIBLE
from gemmkit.emulator.sanitizer.cluster_order import ClusterOrder
from gemmkit.emulator.sanitizer.granules import Granules, Numbers, party
from gemmkit.emulator.sanitizer.logged_accesses import LoggedAccesses
from gemmkit.emulator.sanitizer.parties import Parties
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.warpgroup_findings import WarpgroupFindings


class Warpgroups:
    """The wgmma of one block's warps."""

    def __init__(
        self,
        block: int,
        warps: range,
        cluster: ClusterOrder[Any],
        granules: Granules,
        accesses: LoggedAccesses,
        shadow: BlockShadow,
        found: WarpgroupFindings,
        parties: Parties,
    ) -> None:
        """`warps` are the block's as the clocks count them."""
        self._block, self._cluster, self._clocks = block, cluster, cluster.clocks
        self._granules = granules
        self._first, self._shadow, self._accesses = warps.start, shadow, accesses
        self._found, self._parties = found, parties
        # The group of wgmma that is open in each warp.
        self._group = np.ones(len(warps), np.int32)
        self._agreement = Agreement(len(warps))

    def order(self, warp: int, action: Action) -> None:
        """A warp commits its open group, or waits for groups."""
        if action.operation == "wgmma_commit":
            self._group[warp] += 1
            return
        going = action.sources[0]
        assert isinstance(going, Immediate)
        row, actor = self._clocks.of[self._first + warp, ORDERED], self._actor(warp)
        row[actor] = max(int(row[actor]), int(self._group[warp]) - 1 - going.value)

    def _actor(self, warp: int) -> int:
        return self._clocks.place("wgmma", self._first + warp)

    def multiply(
        self, warp: int, number: int, product: WarpgroupProduct, descriptors: tuple[int, ...]
    ) -> None:
        """A warp reads A and B from shared memory."""
        self._found.executed(number, self._block, warp * LANES)
        differing = self._agreement.differs(warp, number, descriptors)
        if differing is not None:
            self._found.disagree(self._block, (number, warp), differing, "wgmma")
        shift = self._shadow.shift
        where, place = _granules(product, descriptors, warp % WARPS, shift)
        who = party(number, (self._first + warp) * LANES)
        actor, time = self._actor(warp), int(self._group[warp])
        if self._accesses.read(self._first + warp, actor, time, who, place):
            return
        defined = self._shadow.is_defined(where)
        if not defined.all():
            self._found.uninitialized(
                self._parties, self._block, who, int(where[~defined][0]) << shift
            )
        known, granules = self._clocks.of[self._first + warp], self._granules
        whos = np.full(len(where), who)
        met = granules.read(actor, time, where, whos, known[ORDERED])
        if met is not None:
            address = int(where[met.index]) << shift
            self._found.too_early(self._parties, self._block, who, address, met, self._cluster)
            return
        writer = granules.writer[where]
        late = granules.time[where] > known[VISIBLE][writer]
        if late.any():
            late &= self._clocks.generic(writer)
            if late.any():
                first = where[int(late.argmax())]
                other = int(granules.who[first])
                copied = int(granules.writer[first]) >= self._clocks.copies_of(0)
                self._found.no_proxy_fence(
                    self._parties, self._block, who, int(first) << shift, other, copied=copied
                )

    def end(self) -> None:
        """All warps have ended."""
        for number, warp, other in self._agreement.absences():
            self._found.absent(self._block, number, warp, other, "wgmma")


@lru_cache(maxsize=4096)
def _granules(
    product: WarpgroupProduct, descriptors: tuple[int, ...], rank: int, shift: int
) -> tuple[Numbers, tuple[int, int]]:
    """The granules of shared memory that a warp's product reads; their address, and how many."""
    found = []
    for operand, word in zip(product.in_shared, descriptors, strict=True):
        rows, transposed = product.rows_of(operand, rank)
        chunks = chunks_of(word, rows.start, len(rows), transposed)
        first, last = chunks >> shift, chunks + CHUNK_BYTES - 1 >> shift
        most = int((last - first).max()) + 1
        found.append(np.minimum(first[:, None] + np.arange(most), last[:, None]).reshape(-1))
    every = np.unique(np.concatenate(found))
    return every, (every.ctypes.data, len(every))
