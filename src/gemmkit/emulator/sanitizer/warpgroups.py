"""`Warpgroups`: what wgmma read from shared memory, and when, in one block.

A wgmma reads through the asynchronous proxy until a `wgmma.wait_group` of its own warp covers its
group; each warp has an actor of its own for that. Native code does what is done here for those that
are in the log and in order.
"""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import ORDERED, VISIBLE
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.sanitizer.agreement import Agreement
from gemmkit.emulator.sanitizer.clocks import Clocks
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
        granules: Granules,
        accesses: LoggedAccesses,
        shadow: BlockShadow,
        found: WarpgroupFindings,
        parties: Parties,
        products: Products,
    ) -> None:
        """`warps` are the block's as the clocks count them."""
        self._block, self._clocks = block, clocks
        self._granules = granules
        self._first, self._shadow, self._accesses = warps.start, shadow, accesses
        self._found, self._parties = found, parties
        # The group of wgmma that is open in each warp, and the actor that stands for its wgmma.
        self._group = np.ones(len(warps), np.int32)
        self._actors = np.full(len(warps), -1, np.int64)
        self._agreement = Agreement(len(warps), products.identities)
        accesses.begin_products(block, self._agreement.table, self._actors, self._group)

    def commit(self, warp: int) -> None:
        """A warp commits its open group."""
        self._group[warp] += 1

    def wait(self, warp: int, going: int) -> None:
        """A warp waits until at most so many of its groups are in flight."""
        row, actor = self._clocks.of[self._first + warp, ORDERED], self._actor(warp)
        row[actor] = max(int(row[actor]), int(self._group[warp]) - 1 - going)

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
            self._found.uninitialized(
                self._parties, self._block, who, int(where[~defined][0]) << shift
            )
        clock, granules = self._clocks.of[self._first + warp], self._granules
        whos = np.full(len(where), who)
        met = granules.read(actor, time, where, whos, clock[ORDERED])
        if met is not None:
            address = int(where[met.index]) << shift
            self._found.too_early(self._parties, self._block, who, address, met, self._clocks)
            return
        writer = granules.writer[where]
        late = granules.time[where] > clock[VISIBLE][writer]
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
