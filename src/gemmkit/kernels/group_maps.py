"""`MappedGroupTable`: a table of products with the tensor maps by which a kernel loads and stores
their matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemmkit.kernels.group_table import GROUP, Addresses, GroupTable
from gemmkit.kernels.plan import MAP_ARGUMENTS
from gemmkit.kernels.tensor_maps import OPERANDS, PlannedMap
from gemmkit.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, MapFormat

# 64-bit words of a map.
_WORDS = MAP_BYTES // 8

# `MappedGroup` of mapped_groups.cuh.
MAPPED_GROUP = np.dtype(
    [
        *((name, GROUP[name]) for name in GROUP.names or ()),
        ("none", np.uint8, -GROUP.itemsize % MAP_ALIGNMENT),
        *((name, np.uint64, _WORDS) for name in MAP_ARGUMENTS),
    ]
)

# Stands for the address of a matrix that is not known yet; aligned as any may have to be.
SOME_ADDRESS = 1 << 20
# Maps that are remembered: numbers of rows of an expert come again, and the driver takes some 10 µs
# for one.
_MOST_KEPT = 1 << 14


@dataclass(frozen=True)
class MappedGroupTable(GroupTable):
    """The table of products with tensor maps, as `planned`: a product has those of the matrices
    that it reads or writes.

    In a table without addresses they are of `SOME_ADDRESS`.
    """

    planned: tuple[PlannedMap, ...] = ()

    dtype: ClassVar[np.dtype[np.void]] = MAPPED_GROUP

    def sized(
        self, maps: MapFormat | None = None, *, ldr: ArrayLike = 0, ldx: ArrayLike = 0
    ) -> NDArray[np.void]:
        """As `GroupTable.sized`; `maps` must be given."""
        assert maps is not None
        table = super().sized(maps, ldr=ldr, ldx=ldx)
        written = (table["M"] > 0) & (table["N"] > 0)
        read = written & (table["K"] > 0) & bool(self.problem.alpha)
        for each in self.planned:
            rows, columns, ld, _ = OPERANDS[each.rule.operand]
            has_one = np.flatnonzero(written if each.rule.operand == "C" else read)
            sizes = np.stack([table[name][has_one] for name in (rows, columns, ld)], axis=1)
            unlike, which = np.unique(sizes, axis=0, return_inverse=True)
            encoded = b"".join(_encoded(maps, each, *own) for own in unlike.tolist())
            words = np.frombuffer(encoded, np.uint64).reshape(-1, _WORDS)
            table[each.rule.name][has_one] = words[which.reshape(-1)]
        return table

    def at(
        self,
        addresses: Mapping[str, Addresses],
        sized: NDArray[np.void],
        maps: MapFormat | None = None,
    ) -> NDArray[np.void]:
        """As `GroupTable.at`; `maps` must be given."""
        assert maps is not None
        table = super().at(addresses, sized, maps)
        for each in self.planned:
            maps.move(table[each.rule.name], table[each.rule.operand])
        return table


@lru_cache(maxsize=_MOST_KEPT)
def _encoded(maps: MapFormat, planned: PlannedMap, rows: int, columns: int, ld: int) -> bytes:
    """The map of a matrix of these sizes at `SOME_ADDRESS`."""
    names = OPERANDS[planned.rule.operand][:3]
    sizes = dict(zip(names, (rows, columns, ld), strict=True))
    return maps.encoded(planned.at(SOME_ADDRESS, sizes))
