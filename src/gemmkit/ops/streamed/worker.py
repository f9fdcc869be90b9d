"""One device's share of a product of host matrices: copies in, products and copies out, overlapped.

The worker's thread puts copies to the device and launches on two streams, ordered by events, so
that panels arrive while others are multiplied. A second thread brings tiles back on a third stream.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator

from gemmkit.devices.device import Buffer
from gemmkit.devices.streamed import Event, StreamedDevice
from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.ops.operands import View
from gemmkit.ops.placement import SCALE_ROLES
from gemmkit.ops.streamed.host_matrices import HostStack
from gemmkit.ops.streamed.job import Job, Region, part
from gemmkit.ops.streamed.launches import StepShape, TileLaunches
from gemmkit.ops.streamed.sizes import PART_ALIGNMENT, round_up
from gemmkit.ops.streamed.transfers import Transfers
from gemmkit.ops.streamed.traversal import PanelKey, Slots, Tile

# How long the steps take that are on the device's streams at once, so that an interrupt need not
# wait longer; and how many those are at least, so that the device need not wait, and at most.
AHEAD_S, LEAST_AHEAD, MOST_AHEAD = 0.6, 2, 16
_POLL_S = 0.1


class _Panels:
    """The slots for panels of A, or of B, and what happened last in each."""

    def __init__(self, slots: int) -> None:
        self.slots = Slots(slots)
        self.used: dict[int, Event] = {}


class Worker:
    """What one device does; `number` is its place among the product's devices."""

    def __init__(self, job: Job, device: StreamedDevice, number: int) -> None:
        self._job, self._device, self._number = job, device, number
        plan = job.plan
        self._problem, self._tiling = plan.problem, plan.tiling
        self._parts = plan.tiling.parts(plan.problem)
        self._wide = plan.tiling.widened(plan.problem)
        self._item = plan.tiling.accumulator_item(plan.problem)
        self._panels = {"a": _Panels(self._tiling.slots_a), "b": _Panels(self._tiling.slots_b)}
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._computed: queue.SimpleQueue[tuple[Tile, int, Event] | None] = queue.SimpleQueue()
        self._ahead: deque[Event] = deque()
        fitting = int(AHEAD_S / max(plan.step_s, AHEAD_S / MOST_AHEAD))
        self._most_ahead = max(fitting, LEAST_AHEAD)
        self._addresses: dict[str, int] = {}
        self._memory: Buffer

    def run(self) -> None:
        """Compute tiles until none is left, or the job is stopped; failures stop the job."""
        storing = threading.Thread(target=self._store_tiles, name="gemmkit copies to the host")
        try:
            self._device.enter()
            self._begin()
            storing.start()
            for tile in self._tiles():
                self._compute(tile)
        except BaseException as error:
            self._job.fail(error)
        finally:
            self._computed.put(None)
            if storing.ident is not None:
                storing.join()
            self._end()
            self._job.events.put(False)

    def _begin(self) -> None:
        """Allocate memory, and copy there what all tiles share."""
        job, device = self._job, self._device
        self._memory = device.allocate(job.plan.device_bytes)
        for slot in range(self._tiling.tiles):
            self._free.put(slot)
        self._loading = Transfers(device, job.threads, job.check)
        semaphores = self._parts["semaphores"]
        device.clear(self._memory.address + semaphores.offset, semaphores.nbytes)
        address = self._memory.address + self._parts["fixed"].offset
        views = {}
        for role, array in job.streamed.whole(self._wide).items():
            self._addresses[role] = address
            lines = array.reshape(1, array.size)
            stack = HostStack(lines, job.streamed.terms.out_dtype)
            try:
                self._loading.load(lines, stack, address, lines.nbytes, lines.itemsize)
            finally:
                stack.close()
            address = round_up(address + lines.nbytes, PART_ALIGNMENT)
            if role in SCALE_ROLES:
                views[role] = View.tight(array.shape)
        device.order("compute", device.record("in"))
        scratch = (self._at("workspace"), self._at("semaphores"))
        self._scale_views = views
        self._launches = TileLaunches(
            device, self._problem, self._tiling, job.streamed.terms, views, scratch
        )

    def _end(self) -> None:
        """Wait for the device, and give back what it has."""
        if hasattr(self, "_loading"):
            self._loading.finish()
        try:
            self._device.close()
        except BaseException as error:
            self._job.fail(error)
        if hasattr(self, "_memory"):
            del self._memory

    def _at(self, name: str, slot: int = 0) -> int:
        return self._memory.address + self._parts[name].at(slot)

    # --- the worker's thread --------------------------------------------------------------------

    def _tiles(self) -> Iterator[Tile]:
        """Those of its own share, and then, when the device has almost computed it, of others."""
        deal = self._job.deal
        while (tile := deal.own(self._number)) is not None:
            yield tile
        while True:
            self._wait_until_ahead(1)
            if (tile := deal.others()) is None:
                return
            yield tile

    def _wait_until_ahead(self, steps: int) -> None:
        """Wait until so many steps are left on the device, or fewer."""
        while len(self._ahead) > steps:
            self._job.check()
            self._ahead.popleft().wait()

    def _compute(self, tile: Tile) -> None:
        slot = self._free_slot()
        region, device = Region.of(tile, self._job.plan), self._device
        stacks = self._job.streamed.stacks
        for role, name in (("c", "out"), ("residual", "residual")):
            if role in stacks:
                self._load_tile(stacks[role], region, self._at(name, slot))
        if "c" in stacks or "residual" in stacks:
            device.order("compute", device.record("in"))
        chunks = self._tiling.chunks(self._problem)
        order = tile.chunks(chunks)
        for chunk in order:
            self._job.check()
            panels = {
                "a": self._panel("a", tile.panel_a(chunk, self._problem), region, chunk),
                "b": self._panel("b", tile.panel_b(chunk, self._problem), region, chunk),
            }
            shape = StepShape(
                len(region.products),
                len(region.rows),
                len(region.columns),
                len(part(chunk, self._tiling.k, self._problem.k)),
                first=chunk == order[0],
                last=chunk == order[-1],
            )
            self._launches.multiply(shape, self._operands(region, chunk, panels, slot))
            done = device.record("compute")
            for role, own in panels.items():
                self._panels[role].used[own] = done
            self._ahead.append(done)
            self._wait_until_ahead(self._most_ahead)
        if self._wide:
            lines, columns = len(region.products) * len(region.rows), len(region.columns)
            for name in ("out", "auxiliary") if "auxiliary" in stacks else ("out",):
                own, rounded = self._at(name, slot), self._at(f"rounded {name}", slot)
                self._launches.round(lines, columns, own, rounded)
        self._computed.put((tile, slot, device.record("compute")))

    def _free_slot(self) -> int:
        """A slot for a tile, when one has been brought back.

        Raises:
            Stopped: the job is.
        """
        while True:
            self._job.check()
            try:
                return self._free.get(timeout=_POLL_S)
            except queue.Empty:
                continue

    def _load_tile(self, stack: HostStack, region: Region, address: int) -> None:
        pitch = self._tiling.pitch_c(self._item)
        for lines, first in stack.lines(region.products, region.rows, region.columns):
            self._loading.load(lines, stack, address + first * pitch, pitch, self._item)

    def _panel(self, role: str, key: PanelKey, region: Region, chunk: int) -> int:
        """The slot of a panel, which is on its way there, for launches that come now."""
        panels, device = self._panels[role], self._device
        slot, missing = panels.slots.take(key)
        if not missing or not self._problem.k:
            return slot
        if (used := panels.used.pop(slot, None)) is not None:
            device.order("in", used)
        stack = self._job.streamed.stacks[role]
        depth = part(chunk, self._tiling.k, self._problem.k)
        of_a = role == "a"
        pitch = (self._tiling.pitch_a if of_a else self._tiling.pitch_b)(self._problem)
        rows, columns = (region.rows, depth) if of_a else (depth, region.columns)
        address = self._at(role, slot)
        for lines, first in stack.lines(region.products, rows, columns):
            self._loading.load(lines, stack, address + first * pitch, pitch, stack.item)
        device.order("compute", device.record("in"))
        return slot

    def _operands(
        self, region: Region, chunk: int, panels: dict[str, int], slot: int
    ) -> dict[str, int]:
        """The addresses of a step's operands by role."""
        found = {role: self._at(role, own) for role, own in panels.items()}
        for name in ("out", "residual", "auxiliary"):
            if name in self._parts:
                found[name] = self._at(name, slot)
        terms = self._job.streamed.terms
        if "bias" in self._addresses:
            side = region.rows if terms.epilogue.bias == "row" else region.columns
            found["bias"] = self._addresses["bias"] + side.start * self._item
        for role, view in self._scale_views.items():
            of_a = role == "scale_a"
            kind = terms.scales.a if of_a else terms.scales.b
            side = region.rows if of_a else region.columns
            line = side.start // kind.lines if kind.lines else 0
            deep = kind.shape(1, chunk * self._tiling.k)[1] if kind.of_chunks else 0
            along, across = view.strides[1:] if of_a else view.strides[:0:-1]
            product = region.products.start if view.shape[0] > 1 else 0
            elements = product * view.strides[0] + line * along + deep * across
            found[role] = self._addresses[role] + elements * FLOAT_BYTES
        return found

    # --- the thread that brings tiles back -------------------------------------------------------

    def _store_tiles(self) -> None:
        storing = Transfers(self._device, self._job.threads, self._job.check)
        try:
            self._device.enter()
            while (computed := self._computed.get()) is not None:
                self._job.check()
                self._store(storing, *computed)
        except BaseException as error:
            self._job.fail(error)
        finally:
            storing.finish()

    def _store(self, storing: Transfers, tile: Tile, slot: int, done: Event) -> None:
        stacks, device = self._job.streamed.stacks, self._device
        region = Region.of(tile, self._job.plan)
        device.order("out", done)
        pitch = self._tiling.pitch_c(self._problem.out_item)
        for name in ("out", "auxiliary"):
            if name not in stacks:
                continue
            address = self._at(f"rounded {name}" if self._wide else name, slot)
            for lines, first in stacks[name].lines(region.products, region.rows, region.columns):
                storing.store(lines, stacks[name], address + first * pitch, pitch)
        self._free.put(slot)
        self._job.events.put(True)
