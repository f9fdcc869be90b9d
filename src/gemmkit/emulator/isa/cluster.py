"""Clusters of one block: what addresses of a peer's shared memory may name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.ptx.module import Instruction
from gemmkit.errors import DeviceError


def check_ranks(instruction: Instruction, ranks: NDArray[Any]) -> None:
    """Check the ranks that active lanes give to `mapa`.

    Raises:
        DeviceError: the cluster has no such block.
    """
    others = ranks[ranks != np.uint32(0)]
    if others.size:
        raise DeviceError(
            f"'{instruction.text}' at {instruction.where} asks for rank {int(others[0])} of a "
            "cluster of one block, whose only rank is 0"
        )
