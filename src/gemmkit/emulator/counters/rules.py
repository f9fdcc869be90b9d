"""How the memory units of an SM count one request of one warp.

The rules were read off an H100 with micro kernels of one warp; the rows they reproduce are test
data. Other architectures are taken to follow them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SECTOR_BYTES = 32
LINE_BYTES = 128
BANKS = 32
LANES = 32
WORD_BYTES = 4


def global_sectors(addresses: Sequence[int], nbytes: int) -> int:
    """Distinct 32-byte sectors of a request.

    Args:
        addresses: byte addresses of the active lanes.
        nbytes: bytes a lane reads or writes.
    """
    return _distinct(addresses, nbytes, SECTOR_BYTES)


def global_lines(addresses: Sequence[int], nbytes: int) -> int:
    """Distinct 128-byte cache lines of a request: its accesses to the tag stage of the L1."""
    return _distinct(addresses, nbytes, LINE_BYTES)


def local_sectors(offsets: Mapping[int, int], nbytes: int) -> int:
    """Distinct 32-byte sectors of a request to local memory, which interleaves the lanes.

    Word w of lane l lies at word 32 w + l of the warp's local memory, so that equal offsets in all
    lanes fill whole lines.

    Args:
        offsets: active lane to its byte offset in its own local memory.
        nbytes: bytes a lane reads or writes.
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
    return len(
        {
            piece
            for address in addresses
            for piece in range(address // unit, (address + nbytes - 1) // unit + 1)
        }
    )


def shared_phases(
    addresses: Sequence[int], active: Sequence[bool], nbytes: int, store: bool
) -> list[list[int]]:
    """The lanes of each phase in which a shared-memory request is served, empty phases left out.

    32 bits a lane (or less) take one phase of 32 lanes, 64 bits two of 16, 128 bits four of 8. A
    load takes half as many where lanes i and i^1, or lanes i and i^2, read one address throughout
    the warp; a lane that is not active agrees with any other.

    Args:
        addresses: byte addresses of all 32 lanes; those of inactive lanes are not looked at.
        active: which lanes take part.
        nbytes: bytes a lane reads or writes: 1 to 16.
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
    """Passes over the banks of shared memory that a request takes: all, and those by conflicts.

    Each phase takes as many as the most distinct 4-byte words that fall into one of the 32 banks;
    lanes that read or write the same word cost nothing more. Passes beyond one for each phase
    that has an active lane are bank conflicts. Arguments as for `shared_phases`.
    """
    phases = shared_phases(addresses, active, nbytes, store)
    wavefronts = sum(_deepest_bank([addresses[lane] for lane in lanes], nbytes) for lanes in phases)
    return wavefronts, wavefronts - len(phases)


def _deepest_bank(addresses: Sequence[int], nbytes: int) -> int:
    words = {
        word
        for address in addresses
        for word in range(address // WORD_BYTES, (address + nbytes - 1) // WORD_BYTES + 1)
    }
    depth = [0] * BANKS
    for word in words:
        depth[word % BANKS] += 1
    return max(depth)
