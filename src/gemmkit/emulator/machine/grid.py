"""`SharedGrid`: what all workers of a launch share."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.machine.memory import aligned_bytes


class SharedGrid:
    """What all workers of a launch share: regions of memory, parameters, the next block.

    `blocks` is the number behind the last block, or cluster of several blocks, to run.
    """

    def __init__(
        self,
        request: LaunchRequest,
        regions: NDArray[np.int64],
        globals_at: int,
        warp_seed: int = 0,
        only: range | None = None,
        *,
        through_python: bool = False,
    ) -> None:
        self.request = request
        self.warp_seed = warp_seed
        # A seed delays copies, and a schedule holds them back.
        self.through_python = through_python or warp_seed != 0
        self.regions = regions
        self.globals_at = globals_at
        self._parameters = aligned_bytes(max(len(request.parameters), 1))
        self._parameters[: len(request.parameters)] = np.frombuffer(request.parameters, np.uint8)
        self.parameters_at = request.parameters_at or self._parameters.ctypes.data
        self.next_block = np.zeros(8, np.int64)
        self._lock = threading.Lock()
        self.blocks = request.grid[0] * request.grid[1] * request.grid[2]
        # Of a cluster of several blocks the workers take the number, not those of its blocks.
        self.blocks //= request.cluster_blocks
        if only is not None:
            self.next_block[0], self.blocks = only.start, min(only.stop, self.blocks)

    def take(self) -> int | None:
        """The number of the next cluster to run, if there is one."""
        with self._lock:
            number = int(self.next_block[0])
            self.next_block[0] += 1
        return number if number < self.blocks else None

    @property
    def left(self) -> int:
        """How many blocks or clusters have not begun."""
        return self.blocks - int(self.next_block[0])

    def stop(self) -> None:
        """Hand out no more blocks."""
        self.next_block[0] = self.blocks
