"""Atomic additions of 16-bit numbers, for which processors have no instruction.

They run one at a time (see `operations`), which suffices: no other operation may update such a
number in between.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES, WINDOW_BYTES, WINDOWS
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.counters.rules import (
    global_sectors,
    ideal_sectors,
    shared_wavefronts,
    tag_wavefronts,
)
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import form_of
from gemmkit.emulator.machine.errors import outside_error
from gemmkit.emulator.machine.memory import Bytes, DeviceMemory
from gemmkit.emulator.machine.tallies import surely_global
from gemmkit.emulator.machine.worker import Worker
from gemmkit.errors import DeviceError


class RefusedAccess(Exception):
    """One thread's access that is not allowed; `error` describes it."""

    def __init__(self, error: DeviceError, thread: int, address: int) -> None:
        super().__init__(str(error))
        self.error, self.thread, self.address = error, thread, address


def atomic(
    worker: Worker,
    memory: DeviceMemory,
    warp: int,
    action: Action,
    operands: list[NDArray[Any]],
    active: NDArray[np.bool_],
) -> NDArray[Any]:
    """Add one lane after the other; returns the previous values.

    Raises:
        RefusedAccess: an address where the kernel has no memory, or a misaligned one. Lanes before
            it have added.
    """
    added, addresses = operands
    form = form_of(f"{action.form['O']}.{action.form['T']}")
    assert form is not None
    size = action.form.type.bytes
    before = np.zeros_like(added)
    shared = np.zeros(LANES, bool)
    offsets = np.zeros(LANES, np.int64)
    numbers: dict[int, NDArray[Any]] = {}
    # The lanes that are the first, the second and so on to add at their address.
    turns: list[list[int]] = []
    earlier: Counter[int] = Counter()
    refused: RefusedAccess | None = None
    for lane in np.flatnonzero(active).tolist():
        address = int(addresses[lane])
        shared[lane], offsets[lane], data = _locate(worker, memory, action, address)
        if not 0 <= offsets[lane] <= len(data) - size or address % size:
            thread = warp * LANES + lane
            error = outside_error(worker, memory, action.number, thread, address)
            refused = RefusedAccess(error, thread, address)
            break
        numbers[lane] = data[offsets[lane] : offsets[lane] + size].view(added.dtype)
        if earlier[address] == len(turns):
            turns.append([])
        turns[earlier[address]].append(lane)
        earlier[address] += 1
    for lanes in turns:
        before[lanes] = np.concatenate([numbers[lane] for lane in lanes])
        sums = evaluate(form, [before[lanes], added[lanes]])[0]
        for lane, total in zip(lanes, sums, strict=True):
            numbers[lane][0] = total
    if refused is not None:
        raise refused
    _count(worker, action, addresses, offsets, active & shared, active & ~shared)
    return before


def _locate(
    worker: Worker, memory: DeviceMemory, action: Action, address: int
) -> tuple[bool, int, Bytes]:
    """Whether an address is in shared memory; and the offset in the bytes that hold it."""
    space, base = action.form["S"].removesuffix("::cta"), worker.shared_base
    if not space and 0 <= address - WINDOWS["shared"] < WINDOW_BYTES:
        space, address = "shared", address - WINDOWS["shared"]
    if space == "shared":
        return True, address - base, worker.shared[base : worker.shared_end]
    found = memory.find(address)
    if found is None:
        return False, -1, np.zeros(0, np.uint8)
    return False, address - found.address, memory.view(found.address, found.nbytes)


def _count(
    worker: Worker,
    action: Action,
    addresses: NDArray[Any],
    offsets: NDArray[np.int64],
    in_shared: NDArray[np.bool_],
    in_global: NDArray[np.bool_],
) -> None:
    size = action.form.type.bytes
    if in_global.any():
        there = addresses[in_global].tolist()
        # The first wavefront of a request is not recorded if all its requests go to global memory.
        tags = tag_wavefronts(there, size) - surely_global(action)
        worker.add_to_site(action.number, "sectors", global_sectors(there, size))
        worker.add_to_site(action.number, "ideal_sectors", ideal_sectors(there, size))
        worker.add_to_site(action.number, "more_tags", tags)
    if in_shared.any():
        lanes = in_shared.tolist()
        wavefronts, conflicts = shared_wavefronts(offsets.tolist(), lanes, size, store=True)
        worker.add_to_site(action.number, "wavefronts", wavefronts)
        worker.add_to_site(action.number, "conflicts", conflicts)
