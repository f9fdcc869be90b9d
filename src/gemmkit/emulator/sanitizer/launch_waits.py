"""`LaunchWaits`: accesses to global memory that do not wait for earlier launches.

In a programmatic dependent launch a kernel may begin before the launches before it have ended. By
`griddepcontrol.wait` a thread waits until they have, and all that they wrote is visible. What a
thread does before that, and what nothing orders after another thread's wait, may meet them.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.ordering import LAUNCH_WAIT
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.module import Variable
from gemmkit.emulator.sanitizer.access_order import AccessOrder
from gemmkit.emulator.sanitizer.collection import APART, Collection, Key
from gemmkit.emulator.sanitizer.orders import TOGETHER
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names, is_bulk, verb
from gemmkit.findings import AccessSite, Finding, forgiven_text

NOT_WAITED = "earlier launch not waited for"
NEVER_WAITED = "launch that never waits"
_WAIT = f"{LAUNCH_WAIT} (cudaGridDependencySynchronize())"
_HARM = {
    "reads": "may still write it",
    "writes": "may still read or write it",
    "updates": "may still read or write it",
}
# After so many accesses of a warp that add nothing new, the rest of its block is not looked at.
_MOST_ALIKE = 64


class Unchanged:
    """Memory that no earlier launch writes, by the names of its allocations: the parameters,
    variables that are constant, or still hold what the file initializes them with, and what the
    user says of. The latter may have been read."""

    def __init__(self, names: Names, variables: Mapping[str, Variable]) -> None:
        self._names, self._variables = names, variables
        self._told = {each.casefold() for each in names.request.not_written_before}

    def holds(self, address: int, *, reads: bool) -> bool:
        """Whether an address, which a thread reads or writes, is in such memory."""
        found = self._names.memory.find(address)
        if found is None:
            return False
        if reads and found.name.casefold() in self._told:
            return True
        if found.address == self._names.request.parameters_at:
            return True
        variable = self._variables.get(found.name)
        if variable is None or variable.constant:
            return variable is not None
        image, held = variable.data, self._names.memory.view(found.address, len(variable.data))
        return any(image) and held.tobytes() == image


class LaunchWaits:
    """Those of one worker's blocks."""

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        collection: Collection,
        order: AccessOrder | None,
        unchanged: Unchanged,
    ) -> None:
        """`order` follows mbarriers and the like, if the kernel may have some."""
        self._names, self._worker, self._shadow = names, worker, shadow
        self._collection, self._order, self._unchanged = collection, order, unchanged
        # What was found in a block, and how often a warp's access added nothing to that.
        self._block = -1
        self._seen: set[Key] = set()
        self._alike: dict[int, int] = {}
        self._waits = wait_sites(names)

    def access(self, number: int, thread: int, address: int, *, together: bool) -> None:
        """A thread of the block, by its number, accesses global memory by an instruction, and is
        not known to come after a wait; `together`: a lane that has waited executes it too, at
        once. Without one the lanes may be in another branch, which runs before the wait."""
        warp = thread // LANES
        reads = verb(self._names.actions[number], in_global=True) == "reads"
        if self._unchanged.holds(address, reads=reads):
            return
        waited = self._follows(warp)
        if waited is None:
            self._shadow.has_waited(warp)
            return
        block = self._worker.field("block")
        if block != self._block:
            self._block, self._alike, self._seen = block, {}, set()
        key = self._collection.add(
            self._finding(number, thread, address, block, apart=waited and together), block
        )
        if key in self._seen:
            self._alike[warp] = self._alike.get(warp, 0) + 1
            if self._alike[warp] == _MOST_ALIKE:
                self._shadow.has_waited(warp)
        self._seen.add(key)

    def issued(self, number: int, thread: int, address: int) -> None:
        """A thread issues a copy from, or to, global memory."""
        if self._shadow.ahead(thread // LANES) >> thread % LANES & 1:
            self.access(number, thread, address, together=False)

    def _follows(self, warp: int) -> bool | None:
        """None if something orders what a warp does now after a wait; else whether other lanes of
        this warp have waited."""
        shadow, order = self._shadow, self._order
        if order is not None:
            first = self._worker.rank * self._worker.warps
            times, earlier = order.launch_waits_in_cluster(), order.earlier_in_cluster(warp)
            others = (
                0 < time <= known
                for other, (time, known) in enumerate(zip(times, earlier, strict=True))
                if other != first + warp
            )
        else:
            times = shadow.launch_waits()
            others = (
                time > 0 and shadow.barrier_between(warp, other, time)
                for other, time in enumerate(times)
                if other != warp
            )
        own = shadow.launch_waits()[warp]
        if any(others) or 0 < own < shadow.step_time(warp):
            return None
        return own > 0

    def _finding(
        self, number: int, thread: int, address: int, block: int, *, apart: bool
    ) -> Finding:
        names = self._names
        action, here = names.actions[number], names.site(number, names.thread(thread))
        array, offset = names.device(address)
        does = verb(action, in_global=True)
        who = "the bulk copy by " * is_bulk(action)
        where = f"byte {offset} of '{array}'" if array else f"byte {offset} of an array"
        wait = self._waits[0] if len(self._waits) == 1 else None
        at = f" at {wait}" if wait is not None else ""
        kind = APART if apart else NOT_WAITED
        missing = (
            f"and only another lane of this warp has executed {_WAIT}{at}, with no __syncwarp() "
            "after it"
            if apart
            else "and neither it nor a thread that it has synchronized with has executed "
            f"{_WAIT}{at}"
        )
        forgiven = TOGETHER if apart else ""
        return Finding(
            check="racecheck",
            kind=kind,
            message=(
                f"{kind}: {who}thread {here.thread} of block {names.block(block)} {does} {where} "
                f"at {here}, {missing}: an earlier launch {_HARM[does]}{forgiven_text(forgiven)}"
            ),
            block=names.block(block),
            here=here,
            other=wait,
            array=array,
            offset=offset,
            forgiven_by=forgiven,
            cause="/".join(("no-launch-wait", *map(str, self._waits))),
        )


def wait_sites(names: Names) -> list[AccessSite]:
    """Where the kernel waits for earlier launches."""
    waits = (each for each in names.actions if each.form.opcode == LAUNCH_WAIT)
    return list(dict.fromkeys(names.site(each.number, None) for each in waits))


def never_waited(names: Names) -> Finding:
    """The finding that no thread of a launch has waited, though the kernel has the instruction."""
    here = wait_sites(names)[0]
    return Finding(
        check="synccheck",
        kind=NEVER_WAITED,
        message=(
            f"{NEVER_WAITED}: no thread of the launch executes {_WAIT} at {here}: it may end "
            "before the launches before it, so that a later one that waits for this launch does "
            "not wait for them"
        ),
        block=names.block(0),
        here=here,
    )
