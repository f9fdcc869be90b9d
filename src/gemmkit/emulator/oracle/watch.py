"""`Watch`: collects every memory request of the warps that the oracle runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gemmkit.emulator.oracle.control import Rows
from gemmkit.emulator.oracle.memory import Addresses, Lanes


@dataclass(frozen=True, slots=True)
class Touch:
    """One request of one warp to memory, by instruction `number`.

    `row` is the warp, counted over the blocks that run. `addresses` are in bytes, in their space,
    for all 32 lanes; those of inactive lanes mean nothing. `barriers` is the number of barriers
    that the warp has waited at before. A cp.async makes two touches: its global side and its shared
    side.
    """

    number: int
    space: str
    row: int
    barriers: int
    nbytes: int
    addresses: tuple[int, ...]
    active: tuple[bool, ...]


class Watch:
    """Records `touches` in the order in which the warps run."""

    def __init__(self) -> None:
        self.touches: list[Touch] = []
        self._barriers: Counter[int] = Counter()

    def access(
        self,
        number: int,
        space: str,
        rows: Rows,
        addresses: Addresses,
        lanes: Lanes,
        nbytes: int,
    ) -> None:
        """Record one touch for each warp that has an active lane; arrays are (warps, 32)."""
        for index, row in enumerate(rows.tolist()):
            if lanes[index].any():
                self.touches.append(
                    Touch(
                        number,
                        space,
                        row,
                        self._barriers[row],
                        nbytes,
                        tuple(addresses[index].tolist()),
                        tuple(lanes[index].tolist()),
                    )
                )

    def barrier(self, rows: Rows) -> None:
        """Each of these warps arrives at a barrier."""
        self._barriers.update(rows.tolist())
