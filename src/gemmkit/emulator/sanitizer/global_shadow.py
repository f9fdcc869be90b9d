"""`GlobalShadow`: the shadow of global memory, in which native code records accesses."""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.shadow_layout import ROW, ROW_BYTES
from gemmkit.emulator.machine.memory import DeviceMemory, aligned_bytes

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]


class GlobalShadow:
    """The shadow of global memory during a launch: unwritten bytes, cross-block races.

    Args:
        memory: where the kernel runs; bytes that count as never written are recorded there.
        regions: (first byte, size) of each allocation.
        granule: bytes of the smallest access.
        ordered: whether blocks run one at a time, since they synchronize with each other or share
            memory by atomics.
        readers: regions (by first byte) whose loads are recorded too.
        read_only: whether the kernel has read-only loads (`ld.global.nc`).
        strong: whether plain accesses may race with strong ones there, or it has volatile or
            relaxed loads of data.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        regions: Numbers,
        granule: int,
        *,
        ordered: bool,
        readers: frozenset[int],
        read_only: bool = False,
        strong: bool = False,
    ) -> None:
        self.granule = granule
        self.rows: Words = aligned_bytes(max(len(regions), 1) * ROW_BYTES).view(np.uint64)
        self.rows = self.rows.reshape(-1, ROW_BYTES // 8)
        self.regions = regions
        self._starts: list[int] = regions[:, 0].tolist()
        self.actors: dict[tuple[int, str], Words] = {}
        self._kept: list[NDArray[np.uint8]] = []
        for row, (start, size) in zip(self.rows, regions.tolist(), strict=False):
            row[ROW["start"] // 8] = start
            written = memory.written(start)
            if written is not None:
                self._kept.append(written)
                row[ROW["written"] // 8] = written.ctypes.data
            kinds = ["writer", "reader"] if start in readers else ["writer"]
            maps = ("last_{}", "{}_time") if ordered else ("last_{}", "first_{}")
            names = [each.format(kind) for kind in kinds for each in (*maps, "{}", "{}_at")]
            if start in readers:
                names += ["other_reader", "other_reader_at"]
            if read_only and start in readers:
                names.append("nc_reader")
            if ordered and strong:
                names += ["last_strong", "strong_time", "seen_strong"]
            for name in names:
                actors = np.zeros(-(-size // granule), np.uint64)
                self.actors[start, name] = actors
                row[ROW[name] // 8] = actors.ctypes.data

    def at(self, address: int, kind: str) -> tuple[int, int]:
        """If blocks synchronize with each other: the last writer or reader of a granule, and the
        time."""
        start = self.region(address)
        place = (address - start) // self.granule
        who, time = (self.actors[start, name][place] for name in (f"last_{kind}", f"{kind}_time"))
        return int(who), int(time)

    def was_stored(self, address: int) -> bool:
        """Whether ordinary stores may have written a granule, as far as that is recorded."""
        start = self.region(address)
        writers = self.actors.get((start, "last_writer"))
        return writers is None or bool(writers[(address - start) // self.granule])

    def region(self, address: int) -> int:
        """The first byte of the region that holds an address."""
        return self._starts[bisect.bisect_right(self._starts, address) - 1]

    def row(self, start: int) -> Words:
        """The row of the region with a first byte."""
        found: Words = self.rows[bisect.bisect_left(self._starts, start)]
        return found

    def stored(self) -> list[int]:
        """Regions (their first bytes) that the launch stored to."""
        rows = zip(self.regions.tolist(), self.rows, strict=False)
        return [start for (start, _), row in rows if row[ROW["stored"] // 8]]
