"""`WarpStores`: what the lanes of a warp store by one `st.async` or `red.async`, taken together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import WINDOW_BYTES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.isa.bulk_copies import combined, is_reduction
from gemmkit.emulator.isa.cluster import divided
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.machine.memory import Bytes

Numbers = NDArray[np.int64]


class Sender(Protocol):
    """What is asked of the block that stores."""

    @property
    def rank(self) -> int:
        """Its rank in its cluster."""

    @property
    def peers(self) -> Sequence[Any]:
        """The blocks of its cluster, by rank."""

    @property
    def shared_base(self) -> int:
        """Where its shared memory begins."""

    @property
    def shared_end(self) -> int:
        """Where that ends."""


@dataclass(frozen=True, slots=True, eq=False)
class WarpStores:
    """Lanes of a warp, in ascending order, store a row of `data` each: at the addresses `to` in the
    shared memory of the block of a rank, and all count at the mbarrier at the address `barrier`
    there.

    They are within that memory, aligned, and do not change the mbarrier. If they are in one piece,
    each begins where the one before ends.
    """

    action: Action
    warp: int
    lanes: Numbers
    rank: int
    to: Numbers
    barrier: int
    data: Bytes
    in_one_piece: bool

    @property
    def nbytes(self) -> int:
        """What each lane stores."""
        nbytes: int = self.data.shape[1]
        return nbytes

    @property
    def sectors(self) -> int:
        """The distinct sectors that the lanes write to."""
        if self.in_one_piece:
            first, end = int(self.to[0]), int(self.to[-1]) + self.nbytes
            return (end - 1) // SECTOR_BYTES - first // SECTOR_BYTES + 1
        return len(set((self.to // SECTOR_BYTES).tolist()))

    @classmethod
    def of(
        cls,
        worker: Sender,
        warp: int,
        action: Action,
        operands: Sequence[NDArray[Any]],
        active: NDArray[np.bool_],
    ) -> WarpStores | None:
        """The stores of the active lanes; None if they are of another kind, or not valid."""
        lanes = np.flatnonzero(active)
        *values, addresses, barriers = operands
        at = addresses[lanes].astype(np.int64)
        first, barrier = int(at[0]), int(barriers[lanes[0]])
        own = worker.rank
        (rank, start), (barrier_rank, barrier_at) = (
            divided(each, own) for each in (first, barrier)
        )
        if rank != barrier_rank or rank >= len(worker.peers):
            return None
        if not (0 <= first < WINDOW_BYTES and (barriers[lanes] == barriers[lanes[0]]).all()):
            return None
        unit = TYPES[action.form["T"]].bytes
        nbytes = unit * len(values)
        # Relative addresses of one block differ by less than its memory.
        to = at - (first - start)
        low, high = int(to.min()), int(to.max()) + nbytes
        base, end = worker.shared_base, worker.shared_end
        inside = base <= low and high <= end and high <= WINDOW_BYTES
        has_barrier = barrier_at % OBJECT_BYTES == 0 and base <= barrier_at <= end - OBJECT_BYTES
        if not inside or not has_barrier or (to % nbytes).any():
            return None
        if low < barrier_at + OBJECT_BYTES and barrier_at < high:
            clear = (to + nbytes <= barrier_at) | (barrier_at + OBJECT_BYTES <= to)
            if not clear.all():
                return None
        in_one_piece = bool((to[1:] - to[:-1] == nbytes).all())
        if not in_one_piece and is_reduction(action.form) and len(set(to.tolist())) < len(to):
            return None
        data = np.stack([each[lanes] for each in values], axis=1).astype(f"u{unit}").view(np.uint8)
        return cls(action, warp, lanes, rank, to, barrier_at, data, in_one_piece)

    def perform(self, memory: Bytes) -> None:
        """Store in a block's shared memory."""
        start, form = int(self.to[0]), self.action.form
        part: slice | Numbers = slice(start, start + self.data.size)
        if not self.in_one_piece:
            part = (self.to[:, None] + np.arange(self.nbytes)).reshape(-1)
        data = self.data.reshape(-1)
        memory[part] = combined(form, memory[part], data) if is_reduction(form) else data
