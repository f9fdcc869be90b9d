"""Counts the bulk copies, tensor copies, `st.async` and `red.async` that Python executes."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.counters.transfers import box_sectors, transfer_sectors
from gemmkit.emulator.isa.cluster import cluster_address, divided
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.worker import Worker


def count_transfers(worker: Worker, action: Action, copies: Sequence[Copy]) -> None:
    """Count the copies that some lanes of a warp issue by one instruction; a multicast counts in
    each block that it goes to."""
    if action.operation == "bulk_store":
        places = (divided(copy.to, worker.rank) for copy in copies)
        sectors = {cluster_address(*each) // SECTOR_BYTES for each in places}
        worker.count_transfer(action.number, 1, len(sectors))
    else:
        worker.count_transfer(action.number, 0, sum(map(_sectors, copies)))


def _sectors(copy: Copy) -> int:
    form = copy.action.form
    if copy.box is not None:
        return box_sectors(copy.box, loads=form["D"] == "shared")
    return transfer_sectors(copy.start if form["F"] == "global" else copy.to, copy.nbytes)
