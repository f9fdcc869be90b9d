"""The sectors of bulk and tensor copies in the oracle: piece by piece, row by row."""

from __future__ import annotations

import itertools

from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.counters.transfers import PIECE_BYTES
from gemmkit.emulator.isa.bulk_copies import UNIT
from gemmkit.emulator.isa.tensor_copies import Box


def sectors_of_bytes(address: int, nbytes: int) -> int:
    """Sectors that the pieces of a contiguous transfer touch."""
    pieces = range(address, address + nbytes, PIECE_BYTES)
    found = 0
    for start in pieces:
        last = min(start + PIECE_BYTES, address + nbytes) - 1
        found += last // SECTOR_BYTES - start // SECTOR_BYTES + 1
    return found


def sectors_of_box(box: Box, *, loads: bool) -> int:
    """The same of a tensor copy. A load has all rows of the box, as they would lie in memory; other
    copies those in the tensor, whose ends they round up to 16 bytes."""
    each = box.map
    size, (first, *outer) = each.item_bytes, box.coordinates
    found = 0
    for place in itertools.product(*map(range, each.counts[1:])):
        index = [
            start + number * step
            for start, number, step in zip(outer, place, each.steps[1:], strict=True)
        ]
        row = each.address + sum(map(int.__mul__, index, each.strides))
        begin, end = first, first + each.counts[0]
        if not loads:
            begin, end = max(begin, 0), min(end, each.sizes[0])
            rows = zip(index, each.sizes[1:], strict=True)
            if begin >= end or not all(0 <= number < count for number, count in rows):
                continue
        nbytes = -(-(end - begin) * size // UNIT) * UNIT
        found += sectors_of_bytes(row + begin * size, nbytes)
    return found
