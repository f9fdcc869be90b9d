"""`Swizzles`: whether wgmma reads a tile with the swizzle with which tensor copies wrote it.

Both exchange chunks of 16 bytes by bits of the address, so the start of an operand may be anywhere
within the repeating pattern. They disagree if the pattern is another, or begins elsewhere: for a
tensor copy it begins at multiples of 256, 512 or 1024 bytes, as for a descriptor of base offset 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmkit.emulator.isa.matrix_descriptors import CHUNK_BYTES, Descriptor, chunks_of
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.sanitizer.granules import Granules, Numbers
from gemmkit.emulator.sanitizer.products import Known

# Where the number of a line of the pattern begins in an address.
_LINE = 7


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An operand of a wgmma, the first chunk that it takes for another one, who wrote that, and the
    bytes of that swizzle."""

    operand: str
    descriptor: Descriptor
    address: int
    writer: int
    swizzle: int


class Swizzles:
    """The swizzle by which each granule of a block's shared memory was written last, as far as a
    copy wrote it: 0 for none."""

    def __init__(self, granules: Granules, shift: int, count: int) -> None:
        self._granules, self._shift = granules, shift
        self._written = np.zeros(count, np.int16)
        self._any = False

    def wrote(self, where: Numbers | range, swizzle: int) -> None:
        """A copy writes these granules."""
        if swizzle or self._any:
            self._any = True
            part = slice(where.start, where.stop) if isinstance(where, range) else where
            self._written[part] = swizzle

    def mismatch(self, warp: int, known: Known, copies: range) -> Mismatch | None:
        """What a warp's wgmma reads in another order than a copy wrote it; `copies` are the actors
        that stand for bulk copies."""
        if not self._any:
            return None
        for operand, word in zip(known.product.in_shared, known.descriptors, strict=True):
            rows, transposed = known.product.rows_of(operand, warp % WARPS)
            chunks = chunks_of(word, rows.start, len(rows), transposed)
            first = chunks >> self._shift
            swizzles = self._written[first].astype(np.int64)
            writers = self._granules.writer[first]
            by_copy = (swizzles > 0) & (writers >= copies.start) & (writers < copies.stop)
            if not by_copy.any():
                continue
            descriptor, lines = Descriptor.of(word), chunks >> _LINE
            across = np.maximum(swizzles // CHUNK_BYTES, 1)
            moved = lines - descriptor.base & (1 << descriptor.chunks_log2) - 1
            differ = by_copy & (moved != lines & across - 1)
            if differ.any():
                at = int(differ.argmax())
                writer = int(self._granules.who[first[at]])
                return Mismatch(operand, descriptor, int(chunks[at]), writer, int(swizzles[at]))
        return None
