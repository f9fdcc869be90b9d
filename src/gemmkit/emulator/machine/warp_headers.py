"""What the memory of a block's warps holds for all blocks of one shape."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.codegen.layout import LANES, WARP, WARP_REGISTERS, vector_bytes
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.machine.memory import Bytes

# Where the registers begin after the coordinates of the threads.
FIRST_REGISTER = WARP_REGISTERS + 3 * vector_bytes(32)


def write_headers(memory: Bytes, request: LaunchRequest) -> None:
    """Set the warps' numbers, which of their lanes exist, and their threads' coordinates; `memory`
    has a row for each warp."""
    warps, (x, y, z) = len(memory), request.block
    number = np.arange(warps * LANES, dtype=np.int64).reshape(warps, LANES)
    exists = ((number < x * y * z) << np.arange(LANES)).sum(axis=1)
    header = memory[:, :WARP_REGISTERS].view(np.uint32)
    header[:, WARP["index"] // 4] = np.arange(warps)
    header[:, WARP["initial"] // 4] = exists
    for index, axis in enumerate((number % x, number // x % y, number // (x * y))):
        start = WARP_REGISTERS + index * vector_bytes(32)
        target = memory[:, start : start + vector_bytes(32)].view(np.uint32)
        target[...] = axis
