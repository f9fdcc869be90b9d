"""Operands and results of instructions without native code, in a worker's scratch memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.machine.worker import Worker

# Where the values of a warp's lanes begin, and the bits of each; predicates are one word.
Place = tuple[int, int]

_LANE = np.arange(LANES, dtype=np.uint32)


def lanes_of(mask: int) -> NDArray[np.bool_]:
    """Which lanes are in a mask."""
    return (mask >> _LANE & 1).astype(bool)


def raw(worker: Worker, offset: int, bits: int) -> NDArray[np.uint8]:
    """The bytes of an operand."""
    return worker.scratch[offset : offset + LANES * bits // 8]


def read(worker: Worker, offset: int, bits: int) -> NDArray[Any]:
    """An operand, by lane."""
    data = raw(worker, offset, bits)
    return lanes_of(int(data.view(np.uint32)[0])) if bits == 1 else data.view(f"u{bits // 8}")


def write(
    worker: Worker, offset: int, bits: int, values: NDArray[Any], active: NDArray[np.bool_]
) -> None:
    """Set a result in the active lanes."""
    data = raw(worker, offset, bits)
    if bits == 1:
        chosen = np.broadcast_to(values, LANES) & active
        word = int((chosen.astype(np.uint64) << _LANE.astype(np.uint64)).sum())
        data.view(np.uint32)[0] = word
        return
    np.copyto(data.view(f"u{bits // 8}"), np.broadcast_to(values, LANES), where=active)
