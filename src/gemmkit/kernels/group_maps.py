"""`MappedGroupTable`: a table of products with the tensor maps by which a kernel loads and stores
their matrices."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemmkit.groups import Sizes
from gemmkit.kernels.group_table import (
    GROUP,
    NO_PITCHES,
    SCALED_GROUP,
    Addresses,
    GroupTable,
    Pitches,
)
from gemmkit.kernels.plan import MAP_ARGUMENTS
from gemmkit.kernels.tensor_maps import OPERANDS, SOME_ADDRESS, PlannedMap
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

# `ScaledMappedGroup` of scaled_groups.cuh, whose maps lie where those of `MAPPED_GROUP` do.
SCALED_MAPPED_GROUP = np.dtype(
    [
        *((name, SCALED_GROUP[name]) for name in SCALED_GROUP.names or ()),
        *((name, np.uint64, _WORDS) for name in MAP_ARGUMENTS),
    ]
)

# Maps that are remembered: numbers of rows of an expert come again, and the driver takes some 10 µs
# for one.
_MOST_KEPT = 1 << 14
# Kinds of matrices with a place for each number of rows, up to `_MOST_KEPT`: 2 MB each.
_MOST_TABLES = 64

Numbers = NDArray[np.int32]


@dataclass(frozen=True)
class MappedGroupTable(GroupTable):
    """The table of products with tensor maps, as `planned`: a product has those of the matrices
    that it reads or writes.

    In a table without addresses they are of `SOME_ADDRESS`.
    """

    planned: tuple[PlannedMap, ...] = ()

    @property
    def dtype(self) -> np.dtype[np.void]:
        """A row of it."""
        return SCALED_MAPPED_GROUP if self.problem.scales else MAPPED_GROUP

    def sized(
        self,
        maps: MapFormat | None = None,
        *,
        ldr: ArrayLike = 0,
        ldx: ArrayLike = 0,
        scales: Pitches = NO_PITCHES,
    ) -> NDArray[np.void]:
        """As `GroupTable.sized`; `maps` must be given."""
        assert maps is not None
        table = super().sized(maps, ldr=ldr, ldx=ldx, scales=scales)
        written = (table["M"] > 0) & (table["N"] > 0)
        read = written & (table["K"] > 0) & bool(self.problem.alpha)
        for each in self.planned:
            rows, columns, ld, _ = OPERANDS[each.rule.operand]
            mask = written if each.rule.operand == "C" else read
            has_one = slice(None) if mask.all() else np.flatnonzero(mask)
            sizes = (table[name][has_one] for name in (rows, columns, ld))
            table[each.rule.name][has_one] = _words(maps, each, *sizes)
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

    def with_rows(
        self,
        sized: NDArray[np.void],
        m: Sizes,
        lda: Sizes,
        maps: MapFormat | None = None,
    ) -> NDArray[np.void]:
        """As `GroupTable.with_rows`; `maps` must be given."""
        assert maps is not None
        table = super().with_rows(sized, m, lda, maps)
        # Nobody looks at the maps of empty products.
        some = np.maximum(table["M"], 1)
        for each in self.planned:
            _, columns, ld, _ = OPERANDS[each.rule.operand]
            if each.rule.operand != "B":
                table[each.rule.name] = _words(maps, each, some, table[columns], table[ld])
        return table


def forget_maps() -> None:
    """Have all maps encoded anew, as by another driver."""
    _encoded.cache_clear()
    _maps_by_rows.cache_clear()


def _words(
    maps: MapFormat, planned: PlannedMap, rows: Numbers, columns: Numbers, ld: Numbers
) -> NDArray[np.uint64]:
    """The maps of matrices of these sizes at `SOME_ADDRESS`, a row of words each."""
    if rows.size and (columns == columns[0]).all() and (ld == ld[0]).all():
        most = int(rows.max())
        if most < _MOST_KEPT:
            return _maps_by_rows(maps, planned, int(columns[0]), int(ld[0])).of(rows, most)
    unlike, which = np.unique(np.stack([rows, columns, ld], axis=1), axis=0, return_inverse=True)
    encoded = b"".join(_encoded(maps, planned, *own) for own in unlike.tolist())
    return np.frombuffer(encoded, np.uint64).reshape(-1, _WORDS)[which.reshape(-1)]


class _MapsByRows:
    """Maps of matrices that differ in nothing but their number of rows, which is their index.

    Those of experts do, and are found without looking at one product after the other.
    """

    def __init__(self, maps: MapFormat, planned: PlannedMap, columns: int, ld: int) -> None:
        self._encoded = partial(_encoded, maps, planned)
        self._others = columns, ld
        self._lock = threading.RLock()
        self._words = np.zeros((0, _WORDS), np.uint64)
        self._known = np.zeros(0, np.bool_)

    def of(self, rows: Numbers, most: int) -> NDArray[np.uint64]:
        """A map for each number of rows, of which the largest is `most`."""
        with self._lock:
            if most >= self._known.size:
                more = (1 << most.bit_length()) - self._known.size
                self._words = np.concatenate([self._words, np.zeros((more, _WORDS), np.uint64)])
                self._known = np.concatenate([self._known, np.zeros(more, np.bool_)])
            known = self._known[rows]
            if not known.all():
                for number in set(rows[~known].tolist()):
                    encoded = self._encoded(number, *self._others)
                    self._words[number] = np.frombuffer(encoded, np.uint64)
                    self._known[number] = True
            found: NDArray[np.uint64] = self._words[rows]
            return found


@lru_cache(maxsize=_MOST_TABLES)
def _maps_by_rows(maps: MapFormat, planned: PlannedMap, columns: int, ld: int) -> _MapsByRows:
    return _MapsByRows(maps, planned, columns, ld)


@lru_cache(maxsize=_MOST_KEPT)
def _encoded(maps: MapFormat, planned: PlannedMap, rows: int, columns: int, ld: int) -> bytes:
    """The map of a matrix of these sizes at `SOME_ADDRESS`."""
    names = OPERANDS[planned.rule.operand][:3]
    sizes = dict(zip(names, (rows, columns, ld), strict=True))
    return maps.encoded(planned.at(SOME_ADDRESS, sizes))
