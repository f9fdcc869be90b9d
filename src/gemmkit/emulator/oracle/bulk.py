"""Bulk copies in the oracle: they take effect when they are issued."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.isa.bulk_copies import check_copy, combined, is_reduction
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.memory import SHARED_WINDOW, Bytes, Fault
from gemmkit.emulator.oracle.phases import Phases
from gemmkit.emulator.oracle.steps import Step


def copy(group: Group, step: Step, lanes: Mask, phases: Phases) -> None:
    """`cp.async.bulk` and `cp.reduce.async.bulk`, one lane after the other."""
    sizes = np.broadcast_to(group.read(*step.sources[0]), lanes.shape)
    addresses = [np.broadcast_to(group.address(each), lanes.shape) for each in step.addresses]
    form = step.form
    for row, lane in np.argwhere(lanes).tolist():
        nbytes = int(sizes[row, lane])
        to, start, *barrier = (int(each[row, lane]) for each in addresses)
        if barrier:
            phases.check(group, step, row, lane, barrier[0])
        one = np.zeros_like(lanes)
        one[row, lane] = True
        to, start = (
            address % SHARED_WINDOW if space == "shared" else address
            for space, address in ((form["D"], to), (form["F"], start))
        )
        try:
            check_copy(form, to, start, nbytes)
        except Misuse as misuse:
            raise Fault(f"{misuse.kind}: it {misuse.what}", to, one) from None
        target = _bytes(group, form["D"], to, nbytes, one) if nbytes else None
        source = _bytes(group, form["F"], start, nbytes, one) if nbytes else None

        def effect(
            shared: Bytes,
            *,
            target: Bytes | None = target,
            source: Bytes | None = source,
            start: int = start - group.chunk.spaces["shared"].base,
            nbytes: int = nbytes,
            place: tuple[int, int] = (row, lane),
            barrier: list[int] = barrier,
        ) -> None:
            if target is not None and source is not None:
                data = shared[start : start + nbytes] if form["F"] == "shared" else source
                target[:] = combined(form, target, data) if is_reduction(form) else data.copy()
            if barrier:
                phases.deliver(group, step, *place, barrier[0], nbytes)

        phases.perform(group, row, lane, effect, grouped=not barrier)


def _bytes(group: Group, space: str, address: int, nbytes: int, one: Mask) -> Bytes:
    """Bytes in memory, readable and writable.

    Raises:
        Fault: there are none.
    """
    if space == "shared":
        shared = group.chunk.spaces["shared"]
        if not shared.base <= address <= shared.base + shared.nbytes - nbytes:
            raise Fault("out of bounds in shared memory", address, one)
        return shared.view(0, address, nbytes)
    memory = group.chunk.memory
    found = memory.find(address)
    if found is None or address + nbytes > found.address + found.nbytes:
        raise Fault("out of bounds in global memory", address, one)
    return memory.view(address, nbytes)
