"""`Tally`: the raw counts of one launch, per PTX instruction; all metrics are sums over it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Counts over a whole launch; every array has one element per instruction of the kernel.

    An instruction whose guard is false in all lanes is executed but makes no request, as on the
    hardware. Requests are those to global, local and shared memory; parameters and constants make
    none. Accesses to shared memory that ptxas merges make one request together, which is counted at
    the access with the lowest address. For cp.async, `requests`, `sectors` and `data_bytes` count
    what it reads; it has wavefronts also if it only writes zeros. Atomics count as stores do.

    The shared memory of another block of the cluster is a peer's. Of an access whose lanes address
    both, those in the block's own memory have wavefronts, the others sectors.
    """

    executed: Counts  # times a warp executed it
    lanes: Counts  # active lanes, guard applied, summed over those times
    requests: Counts  # memory requests: executions with an active lane
    # Global and local: distinct 32-byte sectors, summed over requests; of bulk and tensor copies
    # from or to global memory those of each piece.
    sectors: Counts
    ideal_sectors: Counts  # global: the fewest sectors that could hold each request's bytes
    tag_wavefronts: Counts  # global: wavefronts of the L1's tag stage, lines cached
    wavefronts: Counts  # shared, and cp.async: wavefronts, summed over requests
    conflicts: Counts  # those of the wavefronts that bank conflicts cost
    peer_requests: Counts  # requests with a lane that accesses a peer's shared memory
    # Distinct 32-byte sectors of peers' memory, summed over requests; of bulk copies those of each
    # piece.
    peer_sectors: Counts
    data_bytes: Counts  # bytes requested by lanes
    divergent: Counts  # branches at which the lanes of a warp diverged

    @classmethod
    def zeros(cls, instructions: int) -> Tally:
        """An empty tally for a kernel of that many instructions."""
        return cls(*(np.zeros(instructions, np.int64) for _ in fields(cls)))

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )

    def differences(self, other: Tally) -> dict[str, list[int]]:
        """The instruction numbers at which two tallies differ, per count."""
        found = {
            each.name: np.flatnonzero(getattr(self, each.name) != getattr(other, each.name))
            for each in fields(self)
        }
        return {name: numbers.tolist() for name, numbers in found.items() if numbers.size}
