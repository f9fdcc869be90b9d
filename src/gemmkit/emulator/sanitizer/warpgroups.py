"""`Warpgroups`: what wgmma read from shared memory, and when, in one block.

A wgmma reads through the asynchronous proxy until a `wgmma.wait_group` covers its group. That is a
group of the warpgroup, so the wait of one warp covers what the others read too, and comes after
they have issued it. Each warp has an actor of its own for its reads. Native code does what is done
here for those that are in the log and in order.
"""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.codegen.layout import GROUPS_KEPT, LANES
from gemmkit.emulator.codegen.shadow_layout import CAUSED, ORDERED
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.sanitizer.agreement import Agreement
from gemmkit.emulator.sanitizer.clocks import Clocks
from gemmkit.emulator.sanitizer.cluster_scope import ClusterScope
from gemmkit.emulator.sanitizer.granules import Granules, party
from gemmkit.emulator.sanitizer.logged_accesses import LoggedAccesses
from gemmkit.emulator.sanitizer.parties import Parties
from gemmkit.emulator.sanitizer.products import Known, Products, footprint
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.warpgroup_findings import WarpgroupFindings


class Warpgroups:
    """The wgmma of one block's warps."""

    def __init__(
        self,
        block: int,
        warps: range,
        clocks: Clocks,
        scope: ClusterScope,
        granules: Granules,
        accesses: LoggedAccesses,
        shadow: BlockShadow,
        found: WarpgroupFindings,
        parties: Parties,
        products: Products,
    ) -> None:
        """`warps` are the block's as the clocks count them."""
        self._block, self._clocks = block, clocks
        self._granules, self._scope = granules, scope
        self._first, self._shadow, self._accesses = warps.start, shadow, accesses
        self._found, self._parties = found, parties
        # The group of wgmma that is open in each warp, and the actor that stands for its wgmma.
        self._group = np.ones(len(warps), np.int32)
        self._actors = np.full(len(warps), -1, np.int64)
        self._agreement = Agreement(len(warps), products.identities)
        # What was earlier than the commits of each warp's last groups.
        self._causes = np.zeros((len(warps), GROUPS_KEPT, clocks.actors), np.int32)
        accesses.begin_products(
            block, self._agreement.table, self._actors, self._group, self._causes
        )

    def commit(self, warp: int) -> None:
        """A warp commits its open group."""
        group = int(self._group[warp])
        self._causes[warp, group % GROUPS_KEPT] = self._clocks.caused(self._first + warp)
        self._group[warp] += 1

    def wait(self, warp: int, going: int) -> None:
        """A warp has waited until at most so many of its groups are in flight."""
        clocks, done = self._clocks, int(self._group[warp]) - 1 - going
        mine = clocks.of[self._first + warp]
        for other in range(warp // WARPS * WARPS, warp // WARPS * WARPS + WARPS):
            actor = self._actor(other)
            if done > 0:
                mine[ORDERED, actor] = max(int(mine[ORDERED, actor]), done)
                theirs = self._causes[other, done % GROUPS_KEPT]
                if self._group[other] <= done:
                    theirs = clocks.of[self._first + other, CAUSED]
                np.maximum(mine[CAUSED], theirs, out=mine[CAUSED])

    def _actor(self, warp: int) -> int:
        if self._actors[warp] < 0:
            self._actors[warp] = self._clocks.place("wgmma", self._first + warp)
        return int(self._actors[warp])

    def multiply(self, warp: int, known: Known) -> None:
        """A warp reads A and B from shared memory."""
        number, descriptors = known.number, known.descriptors
        self._found.executed(number, self._block, warp * LANES)
        self._accesses.executed(number, self._block)
        differing = self._agreement.differs(warp, number, descriptors)
        if differing is not None:
            self._found.disagree(self._block, (number, warp), differing, "wgmma")
        shift = self._shadow.shift
        read = footprint(known.product, descriptors, warp % WARPS, shift)
        where = read.granules
        who = party(number, (self._first + warp) * LANES)
        actor, time = self._actor(warp), int(self._group[warp])
        if self._accesses.read(self._first + warp, actor, time, who, read.place):
            return
        defined = self._shadow.is_defined(where)
        if not defined.all():
            unset = int(where[~defined][0])
            by = int(self._granules.who[unset]) if self._granules.time[unset] else None
            self._found.uninitialized(self._parties, self._block, who, unset << shift, by)
        clock, granules = self._clocks.of[self._first + warp], self._granules
        whos = np.full(len(where), who)
        met = granules.read(actor, time, where, whos, clock[ORDERED])
        if met is not None:
            address = int(where[met.index]) << shift
            self._found.too_early(self._parties, self._block, who, address, met, self._clocks)
            return
        writer, rank = granules.writer[where], self._scope.rank_of(self._first)
        late = self._scope.hidden(rank, clock, writer, granules.time[where])
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
