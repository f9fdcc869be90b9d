"""`Products`: the wgmma that were found valid, which native code enters into the log by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gemmkit.emulator.codegen.runtime.granules import STRIP
from gemmkit.emulator.codegen.shadow_layout import (
    PRODUCT,
    PRODUCT_FACTORS,
    PRODUCT_PROBES,
    PRODUCTS_LOG2,
)
from gemmkit.emulator.isa.matrix_descriptors import CHUNK_BYTES, chunks_of
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.machine.memory import aligned_bytes
from gemmkit.emulator.sanitizer.agreement import Identities
from gemmkit.emulator.sanitizer.granules import Numbers
from gemmkit.emulator.sanitizer.shadow import BlockShadow

_KEY = PRODUCT["key"] // 8
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Footprint:
    """The granules of shared memory that a warp's product reads; the same as pairs, a word of a
    bitmap and the bits there, and as strips by their first granules, if they are strips."""

    granules: Numbers
    words: Numbers
    strips: Numbers

    @property
    def place(self) -> tuple[int, int]:
        """Where the granules are in memory, and how many."""
        return self.granules.ctypes.data, len(self.granules)


@dataclass(frozen=True, slots=True)
class Known:
    """A valid wgmma: the instruction's number, the product, its descriptors."""

    number: int
    product: WarpgroupProduct
    descriptors: tuple[int, ...]


class Products:
    """The valid wgmma of one worker; the same memory serves all of its blocks."""

    def __init__(self, shadow: BlockShadow) -> None:
        self._shadow = shadow
        self.identities = Identities()
        self._table: Numbers | None = None
        # By the place in the table; what it refers to must stay in memory.
        self._known: dict[int, tuple[Known, Footprint]] = {}

    def add(self, warp: int, known: Known) -> None:
        """A warp's wgmma is valid. The log must not refer to any of the others."""
        key = (known.number << 2 | warp % WARPS) + 1
        left, right = (0, *known.descriptors)[-2:]
        record = [key, _signed(left), _signed(right)]
        if self._table is None:
            self._table = aligned_bytes(8 * len(PRODUCT) << PRODUCTS_LOG2).view(np.int64)
            self._table = self._table.reshape(-1, len(PRODUCT))
            self._shadow.set_field("products", self._table.ctypes.data)
        mixed = key + left * PRODUCT_FACTORS[0] + right * PRODUCT_FACTORS[1]
        first = (mixed * PRODUCT_FACTORS[2] & _WORD) >> 64 - PRODUCTS_LOG2
        places = [(first + each) % len(self._table) for each in range(PRODUCT_PROBES)]
        if any(self._table[place, : _KEY + 3].tolist() == record for place in places):
            return
        place = next((each for each in places if not self._table[each, _KEY]), places[0])
        read = footprint(known.product, known.descriptors, warp % WARPS, self._shadow.shift)
        record += [*read.place, read.words.ctypes.data, len(read.words)]
        record += [self.identities.of(known.number, known.descriptors), known.number]
        record += [read.strips.ctypes.data, len(read.strips)]
        self._table[place] = record
        self._known[place] = known, read

    def at(self, address: int) -> Known:
        """The wgmma whose record is at an address."""
        assert self._table is not None
        place = (address - self._table.ctypes.data) // self._table.strides[0]
        return self._known[place][0]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@lru_cache(maxsize=4096)
def footprint(
    product: WarpgroupProduct, descriptors: tuple[int, ...], rank: int, shift: int
) -> Footprint:
    """What the warp of a rank reads; a granule has 2^shift bytes."""
    found = []
    for operand, word in zip(product.in_shared, descriptors, strict=True):
        rows, transposed = product.rows_of(operand, rank)
        chunks = chunks_of(word, rows.start, len(rows), transposed)
        first, last = chunks >> shift, chunks + CHUNK_BYTES - 1 >> shift
        most = int((last - first).max()) + 1
        found.append(np.minimum(first[:, None] + np.arange(most), last[:, None]).reshape(-1))
    every = np.unique(np.concatenate(found))
    numbers, starts = np.unique(every >> 6, return_index=True)
    bits = np.bitwise_or.reduceat(np.uint64(1) << (every & 63).astype(np.uint64), starts)
    return Footprint(every, np.stack([numbers, bits.view(np.int64)], axis=1), _strips(every))


def _strips(granules: Numbers) -> Numbers:
    """The first granules of strips; none if not all granules are in strips."""
    if len(granules) % STRIP:
        return granules[:0]
    strips = granules.reshape(-1, STRIP)
    whole = strips[:, -1] - strips[:, 0] == STRIP - 1
    return strips[:, 0].copy() if whole.all() else granules[:0]
