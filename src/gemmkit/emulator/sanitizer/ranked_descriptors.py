"""`RankedDescriptors`: descriptors of wgmma that hold bits of the block's rank in its cluster.

In a cluster the rank is in the upper bits of an address of shared memory. Where that is shifted
into a descriptor without a mask, the rank is added to the leading offset. Such a descriptor is
known by that of the same instruction in a block of a lower rank.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gemmkit.emulator.isa.matrix_descriptors import (
    CHUNK_BYTES,
    FIELD_BITS,
    LEADING,
    RANK_PLACE,
    chunks_of,
)
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.sanitizer.products import Known

_FIELD = (1 << FIELD_BITS) - 1


@dataclass(frozen=True, slots=True)
class RankedDescriptor:
    """A warp, the first one of the lowest block, gives a descriptor with the rank in it for an
    operand; leading offsets are in bytes: this one, and `other` without the rank. `used` says
    whether the product reads other bytes because of that."""

    number: int
    operand: str
    block: int
    warp: int
    rank: int
    leading: int
    other: int
    used: bool


@dataclass(slots=True)
class _Uses:
    """What the blocks of one rank gave: by leading offset, the first (block, warp); and, by leading
    offset, a descriptor for each warp of a warpgroup, with the operation."""

    first: dict[int, tuple[int, int]] = field(default_factory=dict)
    words: dict[tuple[int, int], tuple[int, Known]] = field(default_factory=dict)


class RankedDescriptors:
    """The leading offsets of one launch, by instruction, operand and rank."""

    def __init__(self) -> None:
        self._uses: dict[tuple[int, str], dict[int, _Uses]] = {}
        # Workers run on several host threads.
        self._lock = threading.Lock()

    def given(self, rank: int, block: int, warp: int, known: Known) -> None:
        """A warp of a block of a cluster executes a wgmma."""
        with self._lock:
            for operand, word in zip(known.product.in_shared, known.descriptors, strict=True):
                by_rank = self._uses.setdefault((known.number, operand), {})
                uses = by_rank.setdefault(rank, _Uses())
                leading = word >> LEADING & _FIELD
                place = (block, warp)
                uses.first[leading] = min(place, uses.first.get(leading, place))
                uses.words.setdefault((leading, warp % WARPS), (word, known))

    def found(self) -> Iterator[RankedDescriptor]:
        """The descriptors that hold a rank, in the order of the instructions; one for each."""
        for (number, operand), by_rank in sorted(self._uses.items()):
            each = next(_in(number, operand, by_rank), None)
            if each is not None:
                yield each


def _in(number: int, operand: str, by_rank: dict[int, _Uses]) -> Iterator[RankedDescriptor]:
    for rank, uses in sorted(by_rank.items()):
        for lower, others in sorted(by_rank.items()):
            for leading, (block, warp) in sorted(uses.first.items()):
                without = leading - (rank - lower << RANK_PLACE)
                if rank <= lower or leading in others.first or without in uses.first:
                    continue
                if without in others.first:
                    used = _used(uses, operand, leading, without)
                    offsets = (CHUNK_BYTES * leading, CHUNK_BYTES * without)
                    yield RankedDescriptor(number, operand, block, warp, rank, *offsets, used)


def _used(uses: _Uses, operand: str, leading: int, without: int) -> bool:
    """Whether a product reads other chunks than with another leading offset."""
    for (given, warp), (word, known) in uses.words.items():
        if given == leading:
            rows, transposed = known.product.rows_of(operand, warp)
            plain = word & ~(_FIELD << LEADING) | without << LEADING
            read, meant = (
                chunks_of(each, rows.start, len(rows), transposed) for each in (word, plain)
            )
            if not np.array_equal(read, meant):
                return True
    return False
