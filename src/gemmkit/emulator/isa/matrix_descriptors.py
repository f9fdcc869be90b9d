"""Matrix descriptors of `wgmma.mma_async`: where the elements of A or B are in shared memory.

The fields, strides and canonical layouts are those of the PTX ISA ("Asynchronous Warpgroup Level
Matrix Shared Memory Layout", "Matrix Descriptor Format"). A chunk is 16 bytes that lie together. An
instruction reads 32 bytes of each row of A and each column of B along k. Swizzling changes address
bits 4 to 6 by bits 7 to 9 of the address itself, so that a start address within the repeating
pattern reads the right chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.cluster import RANK_SHIFT
from gemmkit.emulator.isa.mbarriers import Misuse

CHUNK_BYTES = 16
ROW_BYTES = 32
# Rows of a core matrix.
ROWS = 8
# Where the fields begin. An address or a distance has 14 bits, in units of 16 bytes.
START, LEADING, STRIDE, BASE, SWIZZLE = 0, 16, 32, 49, 62
FIELD_BITS = 14
# The bits of no field.
RESERVED = ((1 << 64) - 1) & ~(
    sum((1 << FIELD_BITS) - 1 << at for at in (START, LEADING, STRIDE)) | 7 << BASE | 3 << SWIZZLE
)
# By the swizzle field: how many chunks a line of the pattern has, as a power of two.
CHUNKS_LOG2 = (0, 3, 2, 1)
# Where the rank of a block is in the leading offset's field if an address in the window of the
# cluster is shifted into a descriptor as it is.
RANK_PLACE = RANK_SHIFT - (CHUNK_BYTES.bit_length() - 1) - LEADING
# Where the number of a line of the pattern begins in an address: a line of banks is 128 bytes.
_LINE = 7

Addresses = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor's fields: distances in bytes, `chunks_log2` 0 (no swizzle) to 3 (128 bytes)."""

    start: int
    leading: int
    stride: int
    base: int
    chunks_log2: int

    @classmethod
    def of(cls, word: int) -> Descriptor:
        """The fields of a descriptor.

        Raises:
            Misuse: bits that must be zero are not.
        """
        if word & RESERVED:
            raise Misuse(
                "invalid descriptor",
                f"uses the matrix descriptor {word:#018x}, of which {_bits(word & RESERVED)} must "
                "be zero",
            )
        start, leading, stride = (
            CHUNK_BYTES * (word >> at & (1 << FIELD_BITS) - 1) for at in (START, LEADING, STRIDE)
        )
        return cls(start, leading, stride, word >> BASE & 7, CHUNKS_LOG2[word >> SWIZZLE & 3])

    @property
    def layout(self) -> str:
        """The swizzling mode in words."""
        return (
            f"a {CHUNK_BYTES << self.chunks_log2}-byte swizzle"
            if self.chunks_log2
            else "no swizzle"
        )

    def chunks(self, rows: range, *, transposed: bool) -> Addresses:
        """The addresses of the chunks of some rows of A, or columns of B; eight at least.

        K-major, the chunks of a row: (rows, 2). Transposed, those of eight rows at each k:
        (rows / 8, 16), for elements of 16 bits.
        """
        across = 1 << self.chunks_log2
        wide = CHUNK_BYTES * across
        if transposed:
            outer, inner = (
                (self.leading, self.stride) if self.chunks_log2 else (self.stride, self.leading)
            )
            group = np.arange(rows.start // ROWS, rows.stop // ROWS)[:, None]
            k = np.arange(ROW_BYTES // 2)
            along = group % across * CHUNK_BYTES + group // across * outer
            offsets = along + k % ROWS * wide + k // ROWS * inner
        else:
            row, chunk = np.array(rows)[:, None], np.arange(ROW_BYTES // CHUNK_BYTES)
            step = CHUNK_BYTES if self.chunks_log2 else self.leading
            offsets = row % ROWS * wide + row // ROWS * self.stride + chunk * step
        addresses = self.start + offsets
        line = (addresses >> _LINE) - self.base & across - 1
        swizzled: Addresses = addresses ^ line * CHUNK_BYTES
        return swizzled


def holds_rank(word: int, rank: int) -> bool:
    """Whether the rank of a block may have come into a descriptor's leading offset, with the upper
    bits of the address."""
    bits = rank << RANK_PLACE
    return bits != 0 and word >> LEADING & bits == bits


@lru_cache(maxsize=4096)
def chunks_of(word: int, first: int, count: int, transposed: bool) -> Addresses:
    """The addresses of all chunks of `count` rows from `first` on, in one dimension.

    Raises:
        Misuse: the descriptor is not valid.
    """
    rows = range(first, first + count)
    return Descriptor.of(word).chunks(rows, transposed=transposed).reshape(-1)


def check(word: int, operand: str, rows: range, *, transposed: bool, memory: range) -> None:
    """Check that a descriptor is valid and that all it describes is in shared memory.

    Args:
        word: the descriptor.
        operand: "A" or "B".
        rows: rows of A, or columns of B.
        transposed: whether the elements are adjacent along these rows, not along k.
        memory: the addresses of the block's shared memory.

    Raises:
        Misuse: it is not.
    """
    found = chunks_of(word, rows.start, len(rows), transposed)
    outside = (found < memory.start) | (found + CHUNK_BYTES > memory.stop)
    if outside.any():
        of = Descriptor.of(word)
        raise Misuse(
            "out of bounds",
            f"reads {operand} at {int(found[outside][0]):#x} of shared memory, out of bounds: its "
            f"descriptor says start {of.start:#x}, leading offset {of.leading:,}, stride offset "
            f"{of.stride:,} and {of.layout}",
        )


def _bits(word: int) -> str:
    bits = [str(bit) for bit in range(word.bit_length()) if word >> bit & 1]
    return f"bit{'s' * (len(bits) > 1)} {', '.join(bits)}"
