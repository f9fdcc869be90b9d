"""`Order`: races in shared memory of kernels that use mbarriers, bulk copies, wgmma or clusters."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.layout import ALL_LANES, LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVES,
    BEGINS,
    COMMITS,
    FENCE_LANES,
    FENCE_NUMBER,
    FENCES,
    MULTIPLIED,
    OPENS,
    OTHER_FENCE,
    TAG_KIND,
    TAG_WARP,
    VISIBLE,
    WAIT_OLDEST,
    WAITED,
    WAITS,
)
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings
from gemmkit.emulator.sanitizer.block_barriers import BlockBarriers
from gemmkit.emulator.sanitizer.clocks import FENCED_ROWS
from gemmkit.emulator.sanitizer.copy_order import CopyOrder
from gemmkit.emulator.sanitizer.products import Known, Products, footprint
from gemmkit.emulator.sanitizer.register_pool import RegisterPool
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.tensor_maps import MapOrder
from gemmkit.emulator.sanitizer.warpgroup_findings import WarpgroupFindings
from gemmkit.emulator.sanitizer.warpgroups import Warpgroups


class Order(CopyOrder):
    """The order of one worker's accesses, block by block."""

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        found: AsynchronousFindings,
        maps: MapOrder,
        warpgroup_findings: WarpgroupFindings,
        barriers: BlockBarriers,
    ) -> None:
        super().__init__(names, worker, shadow, found, maps)
        self._warpgroup_findings, self._barriers = warpgroup_findings, barriers
        self._products = Products(shadow)
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        self._barriers.begin(self._clocks, self._first)
        self._left = self._worker.left
        self._warpgroups = Warpgroups(
            self._block,
            self._cluster.warps_of(self._rank),
            self._clocks,
            self._cluster.scope,
            self._granules,
            self._accesses,
            self._shadow,
            self._warpgroup_findings,
            self._found.parties,
            self._products,
        )
        self._registers = RegisterPool(
            self._block,
            self._cluster.warps_of(self._rank),
            self._clocks,
            self._worker.grid.request,
            self._warpgroup_findings,
        )

    def told(self, what: int, operand: int) -> None:
        """The running warp synchronizes, or a block begins."""
        clocks = self._clocks
        if what == BEGINS:
            self.finish()
            self._begin()
            return
        self.look()
        warp = self._running()
        if what == ARRIVES:
            self._released(warp - self._first, 0, ALL_LANES)
        if what in (ARRIVES, OPENS):
            self._barriers.told(what, operand)
        elif what == COMMITS:
            clocks.group[warp] += 1
        elif what == WAITS:
            oldest, going = operand >> WAIT_OLDEST, operand & (1 << WAIT_OLDEST) - 1
            clocks.wait_for_copies(warp, going - (going >> 31 << 32), oldest)
        elif what == FENCES:
            self._fenced(warp, operand)

    def _fenced(self, warp: int, told: int) -> None:
        """A warp executes a fence."""
        kind, clocks = told & (1 << FENCE_LANES) - 1, self._clocks
        if kind == OTHER_FENCE:
            clocks.order_by_fence(warp)
            self._cluster.scope.order_by_fence(warp)
            return
        rows = FENCED_ROWS[kind]
        if VISIBLE in rows:
            lanes = told >> FENCE_LANES & (1 << LANES) - 1
            self._released(warp - self._first, told >> FENCE_NUMBER, lanes, fence=True)
        clocks.fence(warp, rows)
        if VISIBLE in rows:
            self._cluster.scope.fence(warp)

    def _multiply(self, warp: int, known: Known) -> None:
        """A warp executes a wgmma."""
        if self._lane_windows.some:
            read = footprint(known.product, known.descriptors, warp % WARPS, self._shadow.shift)
            who = self._who(known.number, warp * LANES)
            self._check_lanes(read.granules, self._first + warp, who, "the wgmma by ", proxy=True)
        self._warpgroups.multiply(warp, known)

    def finish(self) -> None:
        """The block has ended, or was left."""
        self.look()
        if self._left == self._worker.left and self._worker.field("block") != self._block:
            self._warpgroups.end()
            self._registers.end()

    def wgmma_issued(
        self, warp: int, number: int, product: WarpgroupProduct, descriptors: tuple[int, ...]
    ) -> None:
        """A warp issues a wgmma."""
        self.look()
        known = Known(number, product, descriptors)
        if self._worker.cluster is not None:
            self._warpgroup_findings.descriptors.given(self._rank, self._block, warp, known)
        # Others with the same descriptors read the same chunks.
        first = self._clocks.warps
        mismatch = self._swizzles.mismatch(warp, known, range(first, first + self._clocks.places))
        if mismatch is not None:
            who = self._who(number, warp * LANES)
            self._warpgroup_findings.swizzled(self._found.parties, self._block, who, mismatch)
        self._products.add(warp, known)
        self._multiply(warp, known)

    def wgmma_ordered(self, warp: int, action: Action) -> None:
        """A warp commits a group of wgmma, or waits for groups."""
        self.look()
        if action.operation == "wgmma_commit":
            self._warpgroups.commit(warp)
            return
        going = action.sources[0]
        assert isinstance(going, Immediate)
        self._warpgroups.wait(warp, going.value)

    def _replay(self, entry: Sequence[int]) -> None:
        first, base, _, tag = entry
        kind, warp = tag >> TAG_KIND, tag >> TAG_WARP & 255
        if kind == MULTIPLIED:
            self._multiply(warp, self._products.at(first))
        elif kind == WAITED:
            self._warpgroups.wait(warp, base)
        else:
            super()._replay(entry)

    def registers_set(self, warp: int, action: Action) -> None:
        """A warp executes `setmaxnreg`."""
        self.look()
        self._registers.set(warp, action)
