"""The findings about bulk copies and other accesses to global memory in one block, in words."""

from __future__ import annotations

from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.cross_block_races import Actor
from gemmkit.emulator.sanitizer.sites import actor_text, verb
from gemmkit.emulator.sanitizer.worded_findings import WordedFindings
from gemmkit.findings import Finding

NOT_WAITED = "with no completed wait for that copy between"
_UNORDERED = "with no barrier, and no arrival and wait at an mbarrier, between"
_FENCE = "with no fence.proxy.async, or fence.proxy.async.global, between"


class GlobalFindings(WordedFindings):
    """Adds findings to a collection."""

    def add(self, finding: Finding, block: int) -> None:
        """Add one that is complete, in a block."""
        self._collection.add(finding, block)

    def copy_after(
        self, copy: Copy, address: int, other: Actor, kind: str, worker: Worker, *, waits: bool
    ) -> None:
        """A bulk copy is not ordered after an earlier access, of a kind ("writer", "reader"); if
        `waits`, after a bulk copy."""
        does = verb(copy.action, in_global=True)
        before = {"writer": "write", "reader": "read"}[kind]
        name = f"{'read' if does == 'reads' else 'write'} after {before}"
        between = NOT_WAITED if waits else _UNORDERED
        self._between(copy, address, other, worker, name, kind, between)

    def no_proxy_fence(self, copy: Copy, address: int, other: Actor, worker: Worker) -> None:
        """A bulk copy reads or overwrites what an ordinary write may not have made visible."""
        cause = self._names.missing_fences.cause(other.number)
        self._between(copy, address, other, worker, "missing proxy fence", "writer", _FENCE, cause)

    def _between(
        self,
        copy: Copy,
        address: int,
        other: Actor,
        worker: Worker,
        name: str,
        kind: str,
        between: str,
        cause: str = "",
    ) -> None:
        names, block = self._names, worker.number
        here = names.site(copy.action.number, names.thread(copy.thread))
        met = names.site(other.number, names.thread(other.thread))
        array, offset = names.device(address)
        where = f"byte {offset} of '{array}'" if array else f"byte {offset} of an array"
        did = "reads" if kind == "reader" else verb(names.actions[other.number], in_global=True)
        its = ""
        if names.member_number(other.block, other.rank) != block:
            its = f" of block {names.member(other.block, other.rank)}"
        text = (
            f"{actor_text(copy.action, here, f' of block {names.block(block)}')} "
            f"{verb(copy.action, in_global=True)} {where}, which "
            f"{actor_text(names.actions[other.number], met, its)} {did}, {between}"
        )
        self._add(block, "racecheck", name, text, here, met, array, offset, cause=cause)
