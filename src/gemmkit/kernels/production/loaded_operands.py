"""A and B as kernels of `wgmma_product.cuh` load them."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.kernels.operand_copies import OperandCopy, aligned_copies
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.warpgroups import SWIZZLED_LINES, is_swapped, line, product_sides
from gemmkit.problem import GemmProblem
from gemmkit.tensor_maps import Element


@dataclass(frozen=True)
class LoadedOperands:
    """A and B as TMA brings them: in place, or `copies`.

    Of `item_bytes` per element, `per_k` elements for each of the problem's k; `a_along_k` and
    `b_along_k` say whether neighbors along k are contiguous. TMA loads them as `element`, or as
    their own type; of operands across k, `box_depth` along k at once, or if 0 all of a stage. If
    they are `scaled_on_chip`, shared memory has a word for each line of two or all stages. `maps_c`
    says whether there is a tensor map of C beside theirs, or of each C. One that lies across k may
    come `from_registers`, which have a wgmma's rows: a tile is then computed as its transpose if
    that is B, whatever its sides are. `fuses` says whether the kernel has an entry to which TMA
    brings what the epilogue reads besides C.
    """

    item_bytes: int
    a_along_k: bool
    b_along_k: bool
    copies: tuple[OperandCopy, ...] = ()
    per_k: int = 1
    element: Element | None = None
    maps_c: bool = True
    box_depth: int = 0
    scaled_on_chip: bool = False
    from_registers: bool = False
    fuses: bool = False

    @classmethod
    def in_place(cls, problem: GemmProblem, copies: tuple[OperandCopy, ...] = ()) -> LoadedOperands:
        """Those of a problem, or copies of the same layout."""
        return cls(problem.item_bytes, not problem.transa, problem.transb, copies)

    @classmethod
    def along_k(cls, problem: GemmProblem, element: Element | None = None) -> LoadedOperands:
        """Those of a problem, or copies where others are contiguous than neighbors along k."""
        copies = aligned_copies(problem, along_k="AB")
        return cls(problem.item_bytes, True, True, copies, element=element)

    @property
    def swapped(self) -> bool | None:
        """Whether tiles are computed as their transposes; None where their sides decide."""
        return self.a_along_k if self.from_registers else None

    def is_swapped(self, config: TileConfig) -> bool:
        """Whether a tile is computed as its transpose."""
        return is_swapped(config) if self.swapped is None else self.swapped

    def sides(self, config: TileConfig) -> tuple[int, int]:
        """Rows and columns of a block's products."""
        return product_sides(config, swapped=self.swapped)

    @property
    def layout(self) -> str:
        """Their layout by BLAS's letters, as they are loaded."""
        return "nt"[not self.a_along_k] + "nt"[self.b_along_k]

    def depth(self, config: TileConfig) -> int:
        """Elements along k of a stage."""
        return config["BK"] * self.per_k

    def lines(self, config: TileConfig, name: str) -> int:
        """Lines of a box of A or B, of which each block of a cluster that shares it loads as many.

        Lines are neighbors along k, and those of an operand that lies across k along its other
        side: all lines of some boxes, or where these are no multiple of the blocks, some of each.
        """
        side, sharing, along_k = self._side(config, name)
        if along_k:
            return side // sharing
        depth = self.box_depth or config["BK"]
        whole = ceil_div(side, line(self.item_bytes)) % sharing == 0
        return depth if whole else depth // sharing

    def shares(self, config: TileConfig) -> str | None:
        """Why blocks of a cluster cannot load equal parts of what they share."""
        for name in "AB":
            if (lines := self.lines(config, name)) % SWIZZLED_LINES:
                sharing = self._side(config, name)[1]
                return (
                    f"{name} is shared by {sharing} blocks of a cluster, each of which would load "
                    f"{lines} lines of its boxes: the swizzle repeats after {SWIZZLED_LINES}"
                )
        return None

    def _side(self, config: TileConfig, name: str) -> tuple[int, int, bool]:
        """A tile's extent along M or N, the blocks that share it, and whether it lies along k."""
        if name == "A":
            return config["BM"], config["cluster_n"], self.a_along_k
        return config["BN"], config["cluster_m"], self.b_along_k
