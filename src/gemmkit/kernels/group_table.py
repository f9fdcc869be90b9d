"""`GroupTable`: the table in device memory from which a kernel reads a launch's products."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.errors import UnsupportedProblem
from gemmkit.groups import Groups, Sizes
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.problem import GemmProblem
from gemmkit.storage import GroupLayout, Placement, dtype_of, placements, scale_pitches
from gemmkit.tensor_maps import MapFormat

# `Group` of scheduler/grouped.cuh.
GROUP = np.dtype(
    [(name, np.uint64) for name in ("A", "B", "C", "bias", "residual", "auxiliary")]
    + [(name, np.int32) for name in ("M", "N", "K", "lda", "ldb", "ldc", "ldr", "ldx")]
    + [(name, np.int32) for name in ("first_tile", "tile_rows", "tile_cols", "unused")]
)

# `ScaledGroup` of scheduler/scaled_groups.cuh, of products with scales; the names are those of
# arguments.
SCALES = ("scale_a", "scale_b")
_SCALE_PITCHES = ("scale_a_ld", "scale_a_step", "scale_b_ld", "scale_b_step")
SCALED_GROUP = np.dtype(
    [(name, GROUP[name]) for name in GROUP.names or ()]
    + [(name, np.uint64) for name in SCALES]
    + [(name, np.int32) for name in _SCALE_PITCHES]
)

# Operands whose addresses are in a table, by the names of arguments.
MATRICES = {"A": "a", "B": "b", "C": "c"} | {
    x: x for x in ("bias", "residual", "auxiliary", *SCALES)
}

Addresses = NDArray[np.uint64] | Iterable[int] | int
Pitches = Mapping[str, ArrayLike]
NO_PITCHES: Pitches = {}


def products_of(problem: GemmProblem) -> Groups:
    """The groups of a problem; a batch is that many equal ones."""
    if problem.groups is not None:
        return problem.groups
    p = problem
    sizes = (p.m, p.n, p.k, p.lda, p.ldb, p.ldc)
    return Groups.of(*(np.full(p.batch, each, np.int64) for each in sizes))


def product_addresses(
    problem: GemmProblem, arguments: Mapping[str, int | float]
) -> dict[str, NDArray[np.uint64]]:
    """Where the matrices of each product are, by the names of arguments, as far as there are any.

    Args:
        problem: a batch or groups, whose matrices are laid out as in `placements`.
        arguments: the addresses of the first matrices.
    """
    placed, count = placements(problem), problem.count
    found = {}
    for argument, name in MATRICES.items():
        if name in placed:
            item = ITEM_BYTES[dtype_of(problem, name)]
            offsets = placed[name].offsets(count).astype(np.uint64)
            found[argument] = np.uint64(arguments[argument]) + offsets * np.uint64(item)
    return found


@dataclass(frozen=True)
class GroupTable:
    """The table of a problem's products, with C in tiles of `rows` × `columns`.

    Each tile has `cluster` blocks of its own, or `most` clusters at most share all tiles if it is
    not 0.
    """

    problem: GemmProblem
    rows: int
    columns: int
    most: int = field(default=0, kw_only=True)
    cluster: int = field(default=1, kw_only=True)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """A row of it, which begins as `GROUP` does."""
        return SCALED_GROUP if self.problem.scales else GROUP

    @cached_property
    def groups(self) -> Groups:
        """The sizes of the products."""
        return products_of(self.problem)

    @cached_property
    def tile_counts(self) -> tuple[Sizes, Sizes]:
        """Rows and columns of tiles of each product; an empty product has none."""
        return -(-self.groups.m // self.rows), -(-self.groups.n // self.columns)

    @cached_property
    def tiles(self) -> int:
        """The total number of tiles."""
        rows, columns = self.tile_counts
        return int((rows * columns).sum())

    def blocks(self, tiles: int) -> int:
        """The blocks of a launch of so many tiles."""
        return (min(tiles, self.most) if self.most else tiles) * self.cluster

    @property
    def nonempty(self) -> int:
        """The number of products that have tiles."""
        rows, columns = self.tile_counts
        return int(np.count_nonzero(rows * columns))

    @property
    def arguments(self) -> dict[str, int]:
        """The values of `TABLE_ARGUMENTS`, except the table's address."""
        return {"group_count": self.groups.count, "tile_count": self.tiles}

    def of_storage(self, arguments: Mapping[str, int | float], maps: MapFormat) -> NDArray[np.void]:
        """The table for matrices laid out as in `placements`, at the addresses in `arguments`, with
        tensor maps in a device's format if it has any."""
        problem = self.problem
        placed = placements(problem)

        def pitches(name: str) -> list[int] | int:
            where = placed.get(name)
            if isinstance(where, GroupLayout):
                return [each.ld for each in where.matrices]
            return 0 if where is None else where.ld

        return self.filled(
            product_addresses(problem, arguments),
            maps,
            ldr=pitches("residual"),
            ldx=pitches("auxiliary"),
            scales=pitches_of_scales(problem, placed),
        )

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The numbers of the products in the order of the table: the longest k first."""
        return np.argsort(-self.groups.k, kind="stable")

    def filled(
        self,
        addresses: Mapping[str, Addresses],
        maps: MapFormat | None = None,
        *,
        ldr: ArrayLike = 0,
        ldx: ArrayLike = 0,
        scales: Pitches = NO_PITCHES,
    ) -> NDArray[np.void]:
        """The table, of `dtype`, in the order of `order`.

        Args:
            addresses: of each product's A, B and C, and of its bias, residual, auxiliary output and
                scales if it has them, in the problem's order.
            maps: the format of tensor maps, for tables that have any.
            ldr: leading dimensions of the residuals.
            ldx: leading dimensions of the auxiliary outputs.
            scales: the values of `scale_a_ld` and the like, of operands that have scales.

        Raises:
            UnsupportedProblem: a leading dimension does not fit in 32 bits.
        """
        return self.at(addresses, self.sized(maps, ldr=ldr, ldx=ldx, scales=scales), maps)

    def at(
        self,
        addresses: Mapping[str, Addresses],
        sized: NDArray[np.void],
        maps: MapFormat | None = None,  # noqa: ARG002 (of tables that have any)
    ) -> NDArray[np.void]:
        """A copy of a table that `sized` made, with addresses as for `filled`."""
        # Bytes are copied many times as fast as fields.
        table = sized.view(np.uint8).copy().view(sized.dtype)
        for name, given in addresses.items():
            table[name] = _ordered(given, self.order, np.uint64)
        return table

    def sized(
        self,
        maps: MapFormat | None = None,  # noqa: ARG002 (of tables that have any)
        *,
        ldr: ArrayLike = 0,
        ldx: ArrayLike = 0,
        scales: Pitches = NO_PITCHES,
    ) -> NDArray[np.void]:
        """The table without addresses; arguments as for `filled`.

        Raises:
            UnsupportedProblem: a leading dimension does not fit in 32 bits.
        """
        for name, pitches in (("ldr", ldr), ("ldx", ldx), *scales.items()):
            longest = int(np.max(pitches, initial=0))
            if longest > MAX_EXTENT:
                raise UnsupportedProblem(
                    f"{name} = {longest}: indices are 32-bit, {MAX_EXTENT} is the most"
                )
        groups, order = self.groups, self.order
        table = np.zeros(groups.count, self.dtype)
        for name, sizes in zip(("M", "N", "K", "lda", "ldb", "ldc"), groups.table, strict=True):
            table[name] = sizes[order]
        for name, pitches in (("ldr", ldr), ("ldx", ldx), *scales.items()):
            table[name] = _ordered(pitches, order, np.int64)
        rows, columns = (each[order] for each in self.tile_counts)
        table["tile_rows"], table["tile_cols"] = rows, columns
        tiles = rows * columns
        table["first_tile"] = np.cumsum(tiles) - tiles
        return table

    def with_rows(
        self,
        sized: NDArray[np.void],
        m: Sizes,
        lda: Sizes,
        maps: MapFormat | None = None,  # noqa: ARG002 (of tables that have any)
    ) -> NDArray[np.void]:
        """A copy of a table that `sized` made, for other numbers of rows.

        All products have one k, and those of the table have elements.

        Args:
            sized: the table without addresses.
            m: the products' rows.
            lda: leading dimensions of A, which is not transposed; some number for empty ones.
            maps: as for `sized`.
        """
        table = sized.view(np.uint8).copy().view(sized.dtype)
        rows = -(-m // self.rows)
        tiles = rows * table["tile_cols"]
        table["M"], table["lda"], table["tile_rows"] = m, lda, rows
        table["first_tile"] = np.cumsum(tiles) - tiles
        return table


def pitches_of_scales(problem: GemmProblem, placed: Mapping[str, Placement]) -> Pitches:
    """Those of scales that lie as in `placements`."""
    found: dict[str, ArrayLike] = {}
    for name in SCALES:
        if name not in placed:
            continue
        where = placed[name]
        each = where.matrices if isinstance(where, GroupLayout) else (where,) * problem.count
        pitches = [scale_pitches(problem, name, place) for place in each]
        found[f"{name}_ld"] = [ld for ld, _ in pitches]
        found[f"{name}_step"] = [step for _, step in pitches]
    return found


def tiles_of(table: NDArray[np.void]) -> int:
    """The number of tiles in a table."""
    return int((table["tile_rows"].astype(np.int64) * table["tile_cols"]).sum())


def _ordered(
    given: Addresses | ArrayLike, order: NDArray[np.intp], dtype: type[np.generic]
) -> NDArray[Any]:
    values = np.asarray(given if isinstance(given, np.ndarray | int) else list(given), dtype)  # type: ignore[arg-type]
    return values if values.ndim == 0 else values[order]
