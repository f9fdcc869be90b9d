"""`OffsetsTable`: where the rows of ragged groups end, in device memory for a kernel to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.kernels.group_table import GroupTable
from gemmkit.problem import GemmProblem
from gemmkit.storage import GroupLayout, further_layouts, placements, scale_pitches
from gemmkit.tensor_maps import MapFormat


@dataclass(frozen=True)
class OffsetsTable:
    """The ends of a problem's ragged groups, with C in tiles of `rows` × `columns`; a single
    product is a group of its own."""

    problem: GemmProblem
    rows: int
    columns: int

    @cached_property
    def tiles(self) -> int:
        """The total number of tiles."""
        return GroupTable(self.problem, self.rows, self.columns).tiles

    @property
    def arguments(self) -> dict[str, int]:
        """The arguments of the whole matrices, which a problem of groups does not have."""
        p = self.problem
        if p.groups is None:
            return {"M": p.m, "batch": 1}
        found = {"M": p.groups.rows, "batch": p.count, "stride_b": p.pitched[1]}
        if p.epilogue.takes_matrices:
            found["ldr"], found["ldx"] = (each.ld for each in further_layouts(p))
        return found | self._scale_arguments

    @property
    def _scale_arguments(self) -> dict[str, int]:
        """Those of scales that lie as in `placements`: of A by its rows, or one for each group."""
        found: dict[str, int] = {}
        placed = placements(self.problem) if self.problem.scales else {}
        for name in ("scale_a", "scale_b"):
            where = placed.get(name)
            if isinstance(where, GroupLayout) and where.matrices:
                place = where.matrices[0]
                ld, step = scale_pitches(self.problem, name, place)
                apart = 0 if name == "scale_a" and ld else place.rows * place.columns
                found |= {f"{name}_ld": ld, f"{name}_step": step, f"{name}_stride": apart}
        return found

    def of_storage(
        self,
        arguments: Mapping[str, int | float],  # noqa: ARG002 (of tables that hold addresses)
        maps: MapFormat,  # noqa: ARG002 (of tables that hold tensor maps)
    ) -> NDArray[Any]:
        """The ends, as 32-bit integers."""
        groups = self.problem.groups
        m = np.array([self.problem.m]) if groups is None else groups.m
        return np.cumsum(m).astype(np.int32)
