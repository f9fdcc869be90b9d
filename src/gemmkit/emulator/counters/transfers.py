"""The sectors of global or distributed shared memory that bulk copies and tensor copies touch.

The Tensor Memory Accelerator cuts what is contiguous into pieces of 128 bytes, from its start on
and not from a multiple of 128, and each piece counts the 32-byte sectors that it touches. The rules
were derived from measurements on an H100, which are test data.
"""

from __future__ import annotations

from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.isa.bulk_copies import UNIT
from gemmkit.emulator.isa.tensor_copies import Box

PIECE_BYTES = 128


def transfer_sectors(address: int, nbytes: int) -> int:
    """Sectors that a transfer of contiguous bytes touches, summed over its pieces."""
    pieces, rest = divmod(nbytes, PIECE_BYTES)
    return pieces * _touched(address, PIECE_BYTES) + (_touched(address, rest) if rest else 0)


def box_sectors(box: Box, *, loads: bool) -> int:
    """Sectors that a tensor copy touches: each row of the box is a transfer.

    A load counts all rows, with all of their bytes, also where they are outside of the tensor; a
    store or a reduction what is in the tensor, up to a multiple of 16 bytes.
    """
    each = box.map
    low, high = ((0,) * each.rank, each.counts) if loads else (box.low, box.high)
    if any(first >= last for first, last in zip(low, high, strict=True)):
        return 0
    start = each.address + (box.coordinates[0] + low[0]) * each.item_bytes
    nbytes = -(-(high[0] - low[0]) * each.item_bytes // UNIT) * UNIT
    # Strides are multiples of 16 bytes: a row begins where the first one does, or in the other half
    # of a sector.
    same, other = 1, 0
    for index, stride in enumerate(each.strides, 1):
        start += (box.coordinates[index] + low[index] * each.steps[index]) * stride
        rows = high[index] - low[index]
        odd = rows // 2 if stride * each.steps[index] % SECTOR_BYTES else 0
        even = rows - odd
        same, other = same * even + other * odd, same * odd + other * even
    return same * transfer_sectors(start, nbytes) + other * transfer_sectors(start + UNIT, nbytes)


def _touched(address: int, nbytes: int) -> int:
    return -(-(address % SECTOR_BYTES + nbytes) // SECTOR_BYTES)
