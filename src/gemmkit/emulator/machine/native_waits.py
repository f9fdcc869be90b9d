"""What warps wait for while native code executes mbarriers, handed to Python and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gemmkit.emulator.codegen.layout import WAITS_IN_PYTHON, WAITS_NATIVELY, WARP
from gemmkit.emulator.machine.asynchronous import Wait
from gemmkit.emulator.machine.worker import Worker

_MASK, _INSTRUCTION, _AWAITED = (WARP[name] // 4 for name in ("mask", "instruction", "awaited"))


def adopt(worker: Worker, waits: Sequence[list[Wait]]) -> None:
    """Add the waits of which only native code knows to the lists of the warps."""
    known = worker.warp_fields("waits")
    for warp, how in enumerate(known.tolist()):
        if how != WAITS_NATIVELY:
            continue
        header = worker.header(warp)
        awaited, lanes = int(header[_AWAITED]), int(header[_MASK])
        phase = {awaited & ~1: awaited & 1}
        waits[warp].append(Wait(lanes, int(header[_INSTRUCTION]), phase, polls=False))
        known[warp] = WAITS_IN_PYTHON


def publish(
    worker: Worker, waits: Sequence[list[Wait]], expired: Sequence[Collection[int]]
) -> None:
    """Tell native code which warps wait, or have waited in vain, for what only Python knows."""
    worker.warp_fields("waits")[:] = [
        WAITS_IN_PYTHON if some or vain else 0 for some, vain in zip(waits, expired, strict=True)
    ]
