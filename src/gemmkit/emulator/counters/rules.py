"""How the memory units of an SM count one request of one warp.

The rules were derived from measurements of one-warp micro kernels on an H100; the rows that they
reproduce are test data. Other architectures are assumed to follow them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SECTOR_BYTES = 32
LINE_BYTES = 128
BANKS = 32
LANES = 32
WORD_BYTES = 4
MATRIX_ROWS = 8
MATRIX_ROW_BYTES = 16

# Address bits whose parity is a bit of the number of a line's tag bank; there are four banks.
TAG_BANK_BITS = ((7, 9, 11, 12, 14, 16, 18), (8, 10, 11, 13, 14, 15, 17))
TAG_BANK_MASKS = tuple(sum(1 << bit for bit in bits) for bits in TAG_BANK_BITS)


def global_sectors(addresses: Sequence[int], nbytes: int) -> int:
    """Distinct 32-byte sectors of a request.

    Args:
        addresses: byte addresses of the active lanes.
        nbytes: bytes read or written per lane.
    """
    return _distinct(addresses, nbytes, SECTOR_BYTES)


def global_lines(addresses: Sequence[int], nbytes: int) -> int:
    """Distinct 128-byte cache lines of a request: its accesses to the tag stage of the L1."""
    return _distinct(addresses, nbytes, LINE_BYTES)


def tag_wavefronts(addresses: Sequence[int], nbytes: int) -> int:
    """Wavefronts of a global request in the tag stage of the L1: the most lines in one tag bank.

    This is the cost of a request whose lines are cached; the first requests for 16 lines or more
    were measured to take more. Arguments as for `global_sectors`.
    """
    depth = Counter(map(tag_bank, _units(addresses, nbytes, LINE_BYTES)))
    return max(depth.values(), default=0)


def tag_bank(line: int) -> int:
    """The tag bank, 0 to 3, of a cache line by its number (address over 128)."""
    address = line * LINE_BYTES
    return sum(
        ((address & mask).bit_count() & 1) << index for index, mask in enumerate(TAG_BANK_MASKS)
    )


def ideal_sectors(addresses: Sequence[int], nbytes: int) -> int:
    """The fewest 32-byte sectors that could hold the distinct bytes of a request.

    Arguments as for `global_sectors`. Accesses are aligned to their size, so any two are the same
    bytes or disjoint.
    """
    return -(-len(set(addresses)) * nbytes // SECTOR_BYTES)


def local_sectors(offsets: Mapping[int, int], nbytes: int) -> int:
    """Distinct 32-byte sectors of a request to local memory, which interleaves the lanes.

    Word w of lane l is word 32 w + l of the warp's local memory, so that equal offsets in all lanes
    fill whole lines.

    Args:
        offsets: active lane to its byte offset in its own local memory.
        nbytes: bytes read or written per lane.
    """
    words = SECTOR_BYTES // WORD_BYTES
    return len(
        {
            (word * LANES + lane) // words
            for lane, offset in offsets.items()
            for word in range(offset // WORD_BYTES, (offset + nbytes - 1) // WORD_BYTES + 1)
        }
    )


def _distinct(addresses: Sequence[int], nbytes: int, unit: int) -> int:
    return len(_units(addresses, nbytes, unit))


def _units(addresses: Iterable[int], nbytes: int, unit: int) -> set[int]:
    """Numbers of the aligned units of memory that accesses touch."""
    return {
        piece
        for address in addresses
        for piece in range(address // unit, (address + nbytes - 1) // unit + 1)
    }


def shared_phases(
    addresses: Sequence[int], active: Sequence[bool], nbytes: int, store: bool
) -> list[list[int]]:
    """The lanes of each phase in which a shared-memory request is served, without empty phases.

    Up to 32 bits per lane take one phase of 32 lanes, 64 bits two of 16, 128 bits four of 8. A load
    takes half as many if lanes i and i^1, or lanes i and i^2, read the same address throughout the
    warp; an inactive lane agrees with any other.

    Args:
        addresses: byte addresses of all 32 lanes; those of inactive lanes are ignored.
        active: the lanes that take part.
        nbytes: bytes read or written per lane: 1 to 16.
        store: a store never merges lanes.
    """
    phases = max(1, nbytes // WORD_BYTES)
    if phases > 1 and not store and any(_pairs_agree(addresses, active, bit) for bit in (1, 2)):
        phases //= 2
    width = len(addresses) // phases
    split = [
        [lane for lane in range(start, start + width) if active[lane]]
        for start in range(0, len(addresses), width)
    ]
    return [lanes for lanes in split if lanes]


def _pairs_agree(addresses: Sequence[int], active: Sequence[bool], bit: int) -> bool:
    return all(
        addresses[lane] == addresses[lane ^ bit]
        for lane in range(len(addresses))
        if active[lane] and active[lane ^ bit]
    )


def shared_wavefronts(
    addresses: Sequence[int], active: Sequence[bool], nbytes: int, store: bool
) -> tuple[int, int]:
    """Wavefronts of a shared-memory request: all, and those due to bank conflicts.

    Each phase takes as many as the most distinct 4-byte words in one of the 32 banks; lanes that
    access the same word cost nothing more. Wavefronts beyond one per phase with an active lane are
    bank conflicts. Arguments as for `shared_phases`.
    """
    phases = shared_phases(addresses, active, nbytes, store)
    wavefronts = sum(_deepest_bank([addresses[lane] for lane in lanes], nbytes) for lanes in phases)
    return wavefronts, wavefronts - len(phases)


def _deepest_bank(addresses: Sequence[int], nbytes: int) -> int:
    words = _units(addresses, nbytes, WORD_BYTES)
    return max(Counter(word % BANKS for word in words).values())


def matrix_wavefronts(rows: Sequence[int]) -> tuple[int, int]:
    """Wavefronts of `ldmatrix` or `stmatrix`, and those of them due to bank conflicts.

    Each 8×8 matrix is a phase of its own.

    Args:
        rows: shared-memory addresses of the 16-byte rows, eight per matrix.
    """
    phases = [rows[start : start + MATRIX_ROWS] for start in range(0, len(rows), MATRIX_ROWS)]
    wavefronts = sum(_deepest_bank(phase, MATRIX_ROW_BYTES) for phase in phases)
    return wavefronts, wavefronts - len(phases)


def copy_wavefronts(
    to: Sequence[int],
    start: Sequence[int],
    active: Sequence[bool],
    nbytes: int,
    reading: Sequence[bool] | None = None,
) -> tuple[int, int]:
    """Wavefronts of `cp.async.ca` in shared memory, and those of them due to bank conflicts.

    The phases are those of a store. Within a phase lanes are served in order at every bank that
    they read (the L1 holds the source in the same banks) or write, even if they access the same
    word: a lane takes the wavefront after the last earlier lane that shares a bank with it.

    Args:
        to: shared-memory addresses of all 32 lanes; those of inactive lanes are ignored.
        start: global-memory addresses, likewise.
        active: the lanes that take part.
        nbytes: bytes copied per lane: 4, 8 or 16.
        reading: the lanes that read; the others write zeros. By default all.
    """
    phases = shared_phases(to, active, nbytes, store=True)
    reads = active if reading is None else reading
    wavefronts = sum(_longest_queue(lanes, to, start, reads, nbytes) for lanes in phases)
    return wavefronts, wavefronts - len(phases)


def _longest_queue(
    lanes: Sequence[int],
    to: Sequence[int],
    start: Sequence[int],
    reading: Sequence[bool],
    nbytes: int,
) -> int:
    last: dict[tuple[int, int], int] = {}
    for lane in lanes:
        words = range(nbytes // WORD_BYTES)
        banks = [
            (side, (addresses[lane] // WORD_BYTES + word) % BANKS)
            for side, addresses in enumerate((to, start) if reading[lane] else (to,))
            for word in words
        ]
        wavefront = 1 + max(last.get(bank, 0) for bank in banks)
        last |= dict.fromkeys(banks, wavefront)
    return max(last.values())


def bypass_wavefronts(
    to: Sequence[int],
    start: Sequence[int],
    active: Sequence[bool],
    nbytes: int,
    reading: Sequence[bool],
) -> tuple[int, int]:
    """The same for `cp.async.cg`, past the L1: one per pair of lines that data moves between.

    The pairs are counted per phase: a line that lanes read and a line that they write. A phase
    whose lanes all write zeros takes one. Arguments as for `copy_wavefronts`.
    """
    phases = shared_phases(to, active, nbytes, store=True)
    pairs = [
        {(start[lane] // LINE_BYTES, to[lane] // LINE_BYTES) for lane in lanes if reading[lane]}
        for lanes in phases
    ]
    wavefronts = sum(max(len(each), 1) for each in pairs)
    return wavefronts, wavefronts - len(phases)


def bypass_sectors(to: Sequence[int], start: Sequence[int], reading: Sequence[bool]) -> int:
    """Sectors of `cp.async.cg`: one that goes to two lines of shared memory is fetched twice.

    Arguments as for `copy_wavefronts`; a lane copies within one sector.
    """
    return len(_pairs(to, start, reading, SECTOR_BYTES))


def bypass_tag_wavefronts(to: Sequence[int], start: Sequence[int], reading: Sequence[bool]) -> int:
    """Wavefronts of `cp.async.cg` in the tag stage: the most pairs of lines in one tag bank.

    A pair is the line read and the line written. Arguments as for `copy_wavefronts`.
    """
    depth = Counter(tag_bank(line) for line, _ in _pairs(to, start, reading, LINE_BYTES))
    return max(depth.values(), default=0)


def _pairs(
    to: Sequence[int], start: Sequence[int], reading: Sequence[bool], unit: int
) -> set[tuple[int, int]]:
    """Aligned units of global memory that lanes read, with the line of shared memory they go to."""
    return {
        (source // unit, target // LINE_BYTES)
        for source, target, reads in zip(start, to, reading, strict=True)
        if reads
    }
