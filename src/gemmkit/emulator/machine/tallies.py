"""The counts of a worker, as native code keeps them, for each instruction."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.layout import SITE, SITE_BYTES, TRANSFER_BYTES, WORKER_COUNTERS
from gemmkit.emulator.codegen.operands import Action, access_bytes
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import bytes_moved, is_matrix, pieces
from gemmkit.emulator.machine.memory import Bytes

_COUNTS = ("sectors", "ideal_sectors", "wavefronts", "conflicts")


def tally_of(buffer: Bytes, kernel: LoadedKernel) -> Tally:
    """The counts that native code has left in a worker's memory, for each instruction."""
    areas, flow = kernel.areas, kernel.flow
    tally = Tally.zeros(len(flow.forms))
    start = WORKER_COUNTERS
    counters = buffer[start : start + 16 * areas.counters].view(np.int64).reshape(-1, 2)
    lengths = [block.end - block.start for block in flow.blocks]
    executed, lanes = (np.repeat(counters[: len(lengths), each], lengths) for each in (0, 1))
    tally.executed[:], tally.lanes[:] = executed, lanes
    acting = tally.executed.copy()
    for number, index in areas.apart.items():
        acting[number] = counters[index, 0]
        if kernel.actions[number].guard is not None:
            tally.lanes[number] = counters[index, 1]
        if flow.forms[number].operation == "branch":
            tally.divergent[number] = counters[index, 0]
    end = areas.sites_start + SITE_BYTES * len(areas.sites)
    sites = buffer[areas.sites_start : end].view(np.int64).reshape(-1, SITE_BYTES // 8)
    copied = sites[:, SITE["bytes_copied"] // 8].tolist()
    counted: list[int] = []
    in_global: list[int] = []
    for number, index in areas.sites.items():
        action = kernel.actions[number]
        if action.form.modifiers.get("S") == "const":
            continue
        if number not in areas.merging.silent:
            counted.append(number)
            if surely_global(action):
                in_global.append(number)
        if action.operation == "copy_async" and len(action.sources) > 1:
            tally.data_bytes[number] = copied[index]
        else:
            whole = is_matrix(action.form)
            size = bytes_moved(action.form) if whole else access_bytes(action)
            tally.data_bytes[number] = tally.lanes[number] * size
    for number in counted:
        if is_matrix(flow.forms[number]):
            acting[number] *= len(pieces(flow.forms[number]))
    rows = sites[[areas.sites[number] for number in counted]]
    tally.requests[counted] = acting[counted]
    for name in _COUNTS:
        getattr(tally, name)[counted] = rows[:, SITE[name] // 8]
    tally.tag_wavefronts[counted] = rows[:, SITE["more_tags"] // 8]
    tally.tag_wavefronts[in_global] += acting[in_global]
    peers = [number for number in counted if flow.forms[number].operation != "copy_async"]
    rows = sites[[areas.sites[number] for number in peers]]
    for name in ("peer_requests", "peer_sectors"):
        getattr(tally, name)[peers] = rows[:, SITE[name] // 8]
    end = areas.transfer_start + TRANSFER_BYTES * len(areas.transfers)
    transfers = buffer[areas.transfer_start : end].view(np.int64).reshape(-1, 2)
    for number, (requests, sectors) in zip(areas.transfers, transfers.tolist(), strict=True):
        tally.peer_requests[number] = requests
        between = _between_blocks(flow.forms[number])
        (tally.peer_sectors if between else tally.sectors)[number] = sectors
    return tally


def _between_blocks(form: Form) -> bool:
    """Whether a bulk copy, `st.async` or `red.async` writes from one block to another."""
    return form["D"] == "shared" and form.modifiers.get("F", "shared") == "shared"


def surely_global(action: Action) -> bool:
    """Whether all requests of a memory instruction go to global memory."""
    return action.operation == "copy_async" or action.form["S"] == "global"
