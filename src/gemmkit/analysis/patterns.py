"""How a request of a warp maps to cache lines, to shared-memory banks, and to tiles."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.trace import Trace, bank_addresses
from gemmkit.emulator.counters.rules import (
    BANKS,
    LINE_BYTES,
    SECTOR_BYTES,
    WORD_BYTES,
    shared_phases,
)
from gemmkit.emulator.watching import WatchedAccess
from gemmkit.errors import UsageError

WORDS_PER_LINE = LINE_BYTES // WORD_BYTES
WORDS_PER_SECTOR = SECTOR_BYTES // WORD_BYTES

Lanes = tuple[int, ...]

_STORES = ("store", "atomic")


@dataclass(frozen=True, slots=True)
class Line:
    """A 128-byte cache line: its byte offset in the array, and the lanes that access each word."""

    offset: int
    words: tuple[Lanes, ...]


def lines_of(access: WatchedAccess) -> tuple[Line, ...]:
    """The lines that a request accesses, by address."""
    touched: defaultdict[int, list[int]] = defaultdict(list)
    for lane, offset in enumerate(access.offsets):
        if offset is not None:
            for word in _words(offset, access.bytes_per_lane):
                touched[word].append(lane)
    lines = sorted({word // WORDS_PER_LINE for word in touched})
    return tuple(
        Line(
            line * LINE_BYTES,
            tuple(
                tuple(touched.get(line * WORDS_PER_LINE + word, ()))
                for word in range(WORDS_PER_LINE)
            ),
        )
        for line in lines
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a shared-memory request: for each bank, the lanes of each word that it serves."""

    banks: tuple[tuple[Lanes, ...], ...]

    @property
    def lanes(self) -> int:
        """The number of lanes that the phase serves."""
        return len({lane for words in self.banks for lanes in words for lane in lanes})

    @property
    def wavefronts(self) -> int:
        """Wavefronts of the phase: the maximum number of words in one bank."""
        return max(len(words) for words in self.banks)


def phases_of(access: WatchedAccess) -> tuple[Phase, ...]:
    """The phases in which shared memory serves a request.

    For a cp.async, the side that writes to shared memory.
    """
    addresses = bank_addresses(access)
    active = [offset is not None for offset in access.offsets]
    phases = []
    for lanes in shared_phases(addresses, active, access.bytes_per_lane, access.apart):
        served: defaultdict[int, list[int]] = defaultdict(list)
        for lane in lanes:
            for word in _words(addresses[lane], access.bytes_per_lane):
                served[word].append(lane)
        phases.append(
            Phase(
                tuple(
                    tuple(tuple(served[word]) for word in sorted(served) if word % BANKS == bank)
                    for bank in range(BANKS)
                )
            )
        )
    return tuple(phases)


def _words(address: int, nbytes: int) -> range:
    return range(address // WORD_BYTES, (address + nbytes - 1) // WORD_BYTES + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Ownership:
    """The thread map of a block's elements of A, B or C.

    `threads[i, j]` is the lowest thread that accesses element (row + i, col + j), -1 if none does;
    `sharers` is the maximum number of threads that access one element.
    """

    array: str
    row: int
    col: int
    threads: NDArray[np.int64]
    sharers: int


def has_tiles(trace: Trace) -> bool:
    """Whether the block stores elements of C, and loads elements of A and B before a barrier.

    If blocks share a tile, only the last one stores it; without α or k nothing is loaded.
    """
    loaded = {
        each.array for each in trace.accesses if each.kind in ("load", "copy") and not each.barriers
    }
    stored = {each.array for each in trace.accesses if each.kind in _STORES}
    return {"A", "B"} <= loaded and "C" in stored


def ownership(trace: Trace, array: str, *, deepest: int = 8) -> Ownership:
    """The threads that store C, or that load A or B before the block's first barrier.

    For a kernel without barriers, only the first `deepest` columns of A and rows of B count.

    Raises:
        UsageError: the block never accesses that matrix.
    """
    kinds = _STORES if array == "C" else ("load", "copy")
    touched: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    if any(access.barriers for access in trace.accesses):
        deepest = trace.problem.k
    for access in trace.accesses:
        if access.array != array or access.space != "global" or access.kind not in kinds:
            continue
        if array != "C" and access.barriers:
            continue
        for lane, offset in enumerate(access.offsets):
            for word in _words(offset, access.bytes_per_lane) if offset is not None else ():
                place = trace.element(array, word * WORD_BYTES)
                if place is not None and {"A": place[1], "B": place[0]}.get(array, 0) < deepest:
                    touched[place].add(32 * access.warp + lane)
    if not touched:
        raise UsageError(f"block 0 of '{trace.kernel}' does not access {array}")
    places = np.array(sorted(touched))
    (row, col), (last_row, last_col) = places.min(axis=0), places.max(axis=0)
    threads = np.full((last_row - row + 1, last_col - col + 1), -1, np.int64)
    for (i, j), who in touched.items():
        threads[i - row, j - col] = min(who)
    return Ownership(array, int(row), int(col), threads, max(map(len, touched.values())))
