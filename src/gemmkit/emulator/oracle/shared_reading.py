"""`SharedReading`: runs a block up to a barrier, and takes the content of its shared memory."""

from __future__ import annotations

from collections import Counter

from gemmkit.emulator.oracle.chunk import Chunk, Watcher
from gemmkit.emulator.oracle.control import Rows


class Reached(Exception):
    """The barrier that was asked for: the rest of the block need not run."""


class SharedReading(Watcher):
    """The shared memory of a block.

    Args:
        block: its number in the grid. With it runs its cluster.
        barriers: where to read: once every warp has arrived at so many barriers. A block with
            fewer is read at its end.
    """

    def __init__(self, block: int, barriers: int) -> None:
        self._block = block
        self._wanted = barriers
        self._seen: Counter[int] = Counter()
        self._chunk: Chunk | None = None

    def begin(self, chunk: Chunk) -> None:
        """The block that runs."""
        self._chunk = chunk

    def barrier(self, rows: Rows) -> None:
        """Each of these warps arrives at a barrier.

        Raises:
            Reached: the last one has arrived at the last barrier.
        """
        self._seen.update(rows.tolist())
        size = self._size
        warps = range(self._owner * size, (self._owner + 1) * size)
        if self._wanted and all(self._seen[warp] >= self._wanted for warp in warps):
            raise Reached

    @property
    def data(self) -> bytes:
        """What the block's shared memory holds, from its first byte on."""
        assert self._chunk is not None
        shared = self._chunk.spaces["shared"]
        return shared.text(self._owner, shared.base, shared.nbytes)

    @property
    def _size(self) -> int:
        assert self._chunk is not None
        return self._chunk.warps_per_block

    @property
    def _owner(self) -> int:
        """The place of the block in the chunk."""
        assert self._chunk is not None
        numbers: list[int] = self._chunk.block[:: self._size, 0].tolist()
        return numbers.index(self._block)
