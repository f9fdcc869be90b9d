"""How `split_groups` is launched: before `grouped_fp16x3`, which reads groups in two parts.

Parts lie in panels of 32 of k, each a line of 128 bytes for every row of A (column of B). Those of
all products are the lines of one matrix, of which there is one tensor map, whatever their k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE
from gemmkit.groups import Sizes
from gemmkit.kernels import source_text
from gemmkit.kernels.group_table import GROUP, NO_PITCHES, GroupTable, Pitches
from gemmkit.kernels.operand_copies import (
    COPY_ALIGNMENT,
    WORKSPACE,
    OperandCopy,
    memory_of,
    rounded_up,
    workspace_bytes,
)
from gemmkit.kernels.plan import LaunchPlan, SourceFile
from gemmkit.kernels.policy import STANDARD
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS
from gemmkit.kernels.splitting import GROUP as DEPTH
from gemmkit.kernels.splitting import PARTS, WARPS, blocks_across, share_of_copy, warps_along
from gemmkit.problem import GemmProblem
from gemmkit.tensor_maps import MapFormat

_NAME = "split_groups"
# `SplitGroup` of split_group.cuh.
SPLIT_GROUP = np.dtype(
    [(name, GROUP[name]) for name in GROUP.names or ()]
    + [
        (name, np.int32)
        for name in ("parts_a", "parts_b", "exponents_a", "exponents_b", "items_a", "items_b")
    ]
    + [("none", np.int32, 2)]
)
# Of split_groups.cu: lines of a block's item, and of those that are not contiguous, of a cluster's.
LINES_ALONG, LINES_ACROSS = 16, 32

Operand = Literal["A", "B"]
OPERANDS: tuple[Operand, ...] = ("A", "B")


@dataclass(frozen=True)
class SplitGroupTable(GroupTable):
    """The table of products whose operands are split."""

    @property
    def dtype(self) -> np.dtype[np.void]:
        """A row of it."""
        return SPLIT_GROUP

    def sized(
        self,
        maps: MapFormat | None = None,
        *,
        ldr: ArrayLike = 0,
        ldx: ArrayLike = 0,
        scales: Pitches = NO_PITCHES,
    ) -> NDArray[np.void]:
        """As `GroupTable.sized`."""
        table = super().sized(maps, ldr=ldr, ldx=ldx, scales=scales)
        for operand in OPERANDS:
            lines = self.lines(operand)[self.order]
            for name, sizes in (
                ("exponents", lines),
                ("parts", lines * self.panels[self.order]),
                ("items", self.items(operand)[self.order]),
            ):
                table[f"{name}_{operand.lower()}"] = np.cumsum(sizes) - sizes
        return table

    @cached_property
    def panels(self) -> Sizes:
        """Panels of each product."""
        return -(-self.groups.k // DEPTH)

    def lines(self, operand: Operand) -> Sizes:
        """Lines of each product that are split: A and B of an empty C are not read, but if they are
        prepared."""
        own, other = self.groups.m, self.groups.n
        if operand == "B":
            own, other = other, own
        read = (other > 0) & (self.groups.k > 0) & bool(self.problem.alpha)
        return own if operand.lower() in self.problem.prepared else own * read

    def items(self, operand: Operand) -> Sizes:
        """Work items of each product."""
        along = is_along_k(self.problem, operand)
        size = LINES_ALONG * cluster_of(self.problem) if along else LINES_ACROSS
        return -(-self.lines(operand) // size)

    def exponents(self, operand: Operand) -> int:
        """Lines of all products."""
        return int(self.lines(operand).sum())

    def copy(self, operand: Operand) -> OperandCopy:
        """The parts of all A or all B, behind exponents: in the workspace behind those of all
        lines, of a prepared operand behind its own."""
        memory = memory_of(self.problem, operand)
        start = self._in_workspace if memory == WORKSPACE else self.exponents(operand)
        start = rounded_up(FLOAT_BYTES * start, COPY_ALIGNMENT)
        if operand == "B" and memory == WORKSPACE and "a" not in self.problem.prepared:
            start = rounded_up(self.copy("A").end, COPY_ALIGNMENT)
        # A line at least, where there are none, for a tensor map.
        lines = max(int((self.lines(operand) * self.panels).sum()), 1)
        length = PARTS * DEPTH
        return OperandCopy(operand, start, lines, length, length, 1, "float16", memory=memory)

    def address_of_exponents(self, operand: Operand) -> str:
        """Where the first exponent is, as signatures have it."""
        memory = memory_of(self.problem, operand)
        if memory != WORKSPACE or operand == "A":
            return f"{memory} + 0"
        before = self.exponents("A") if "A" in _made(self.problem) else 0
        return f"{WORKSPACE} + {FLOAT_BYTES * before}"

    @property
    def _in_workspace(self) -> int:
        """Exponents there."""
        return sum(self.exponents(each) for each in _made(self.problem))


def is_along_k(problem: GemmProblem, operand: Operand) -> bool:
    """Whether the elements of a line of an operand are contiguous."""
    return not problem.transa if operand == "A" else problem.transb


def cluster_of(problem: GemmProblem) -> int:
    """Blocks of a cluster, which share lines that are not contiguous."""
    along = all(is_along_k(problem, operand) for operand in _made(problem))
    return 1 if along else blocks_across(problem.k)


def splitting_groups(table: SplitGroupTable) -> LaunchPlan | None:
    """The launch that splits all operands that are not prepared; None where there are none."""
    copies = tuple(table.copy(operand) for operand in _made(table.problem))
    return _launch(table, copies)


def preparing_groups(table: SplitGroupTable, copy: OperandCopy) -> LaunchPlan | None:
    """The launch that splits a prepared operand of all products into a copy."""
    return _launch(table, (copy,))


def _made(problem: GemmProblem) -> tuple[Operand, ...]:
    """The operands that each launch splits."""
    return tuple(each for each in OPERANDS if each.lower() not in problem.prepared)


def _launch(table: SplitGroupTable, copies: tuple[OperandCopy, ...]) -> LaunchPlan | None:
    problem = table.problem
    found = {each.operand: each for each in copies}
    items = {name: int(table.items(name).sum()) if name in found else 0 for name in OPERANDS}
    if not any(items.values()):
        return None
    cluster = cluster_of(problem)

    def places(name: Operand) -> tuple[str, str]:
        if name not in found:
            return "0", "0"
        return found[name].address, table.address_of_exponents(name)

    return LaunchPlan(
        kernel=_NAME,
        source=SourceFile(source_text(_NAME), f"{_NAME}.cu", options=(STANDARD,)),
        entry=f"{_NAME}<{CUDA_LAYOUTS[problem.layout]}, {cluster}>",
        grid=(sum(items.values()) * cluster, 1, 1),
        block=(WARP_SIZE, WARPS, 1),
        signature=(
            *("groups", "group_count", *places("A"), str(items["A"])),
            *(*places("B"), str(warps_along(problem.k))),
        ),
        cluster=(cluster, 1, 1),
        workspace_bytes=workspace_bytes(copies),
        purpose="as two parts of fp16",
    )


def split_group_bytes(table: SplitGroupTable) -> tuple[int, float]:
    """Bytes that splitting reads and writes, and the share of a copy's speed at which it does."""
    moved: dict[bool, int] = {True: 0, False: 0}
    for operand in _made(table.problem):
        elements = int((table.lines(operand) * (table.groups.k + DEPTH * table.panels)).sum())
        moved[is_along_k(table.problem, operand)] += FLOAT_BYTES * elements
    return sum(moved.values()), share_of_copy(along=moved[True], across=moved[False])
