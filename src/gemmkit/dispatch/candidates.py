"""The only list of what is dispatched: kernels and configurations that are worth choosing from.

Each is checked on the emulator with its sanitizers (`tests/dispatch/test_candidates.py`). What a
configuration costs on a board follows from its sizes, or was fitted where somebody has measured it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.production.tf32_mma import is_faster_than_ffma
from gemmkit.problem import GemmProblem
from gemmkit.split_products import PRODUCTS

# Below and above which side of C the seven-level guide calls a problem small or large.
SMALL, LARGE = 512, 2048
SizeClass = Literal["small", "medium", "large"]

# Tiles that the guide has for each, BM × BN.
GUIDE_TILES: Mapping[SizeClass, tuple[int, int]] = {
    "small": (64, 64),
    "medium": (128, 128),
    "large": (128, 256),
}


@dataclass(frozen=True)
class Candidate:
    """A kernel, by its name, and a configuration of it."""

    name: str
    config: TileConfig

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel."""
        return find_kernel(self.name)

    @cached_property
    def label(self) -> str:
        """Kernel and full configuration as command lines take them."""
        return f"{self.name}:{self.config}"

    @cached_property
    def instance(self) -> str:
        """The label without what is no part of the compiled code: how often k is cut."""
        return f"{self.name}:{replace(self.config, split_k=None)}"

    def costed_as(self, dtype: Dtype) -> str:
        """The name under which its costs for a type are stored: types of a size share costs, and
        float32 has them by the precision in which the kernel multiplies it."""
        fp32 = "" if self.kernel.precision == "ieee" else f" of {self.kernel.precision}"
        narrow = f" of {8 * ITEM_BYTES[dtype]} bits"
        short = {"float32": fp32, "float64": " of fp64"}.get(dtype, narrow)
        return f"{self.instance}{short}"

    def split(self, parts: int) -> Candidate:
        """The same with k cut over so many blocks."""
        return Candidate(self.name, replace(self.config, split_k=parts))


def _rows(name: str, keys: str, *rows: tuple[int, ...]) -> tuple[Candidate, ...]:
    """Configurations of one kernel, as a table with the names of their keys above."""
    kernel = find_kernel(name)
    return tuple(
        Candidate(name, kernel.configure(dict(zip(keys.split(), row, strict=True)))) for row in rows
    )


# Where two are estimated alike, the earlier is taken: large tiles stand before small ones. Many won
# when shapes were tuned on an H100; the others have the `interleave` and `order` of which ptxas
# makes the fewest issue cycles for compute capability 9.0, or nearly, where rows that are not
# aligned would suffer. The largest tile with BK = 32 is left to tables: it wins at 8192, but loses
# a tenth at 2048, and the estimates do not tell why.
_TILED = (
    *_rows(
        "gemm_tiled",
        "BM BN BK WM WN TM TN stages interleave order",
        (128, 256, 16, 32, 128, 16, 8, 2, 4, 1),
        (128, 256, 16, 64, 64, 16, 8, 2, 4, 1),
        (256, 128, 16, 64, 64, 16, 8, 3, 1, 6),
        (192, 192, 16, 96, 32, 12, 8, 3, 4, 6),
        (192, 192, 16, 48, 96, 12, 12, 3, 1, 6),
        (128, 192, 16, 64, 48, 8, 12, 3, 1, 7),
        (192, 128, 16, 48, 64, 12, 8, 3, 1, 6),
        (128, 128, 16, 32, 64, 8, 8, 3, 8, 6),
        (64, 128, 32, 32, 32, 8, 4, 4, 4, 2),
        (64, 64, 16, 32, 32, 8, 4, 4, 4, 2),
        (32, 128, 32, 32, 32, 8, 4, 3, 4, 2),
        (32, 64, 32, 32, 16, 4, 4, 3, 4, 2),
    ),
    *_rows(
        "gemm_stream_k",
        "BM BN BK WM WN TM TN stages interleave order",
        (128, 256, 16, 64, 64, 16, 8, 4, 4, 1),
        (128, 256, 8, 64, 64, 16, 8, 3, 1, 6),
        (256, 128, 16, 64, 64, 16, 8, 3, 4, 6),
        (256, 128, 16, 64, 64, 16, 8, 4, 4, 1),
        (256, 128, 32, 32, 64, 8, 8, 3, 8, 5),
        (64, 192, 16, 32, 96, 8, 12, 2, 2, 4),
        (128, 128, 16, 32, 64, 8, 8, 3, 4, 5),
    ),
    # Each also with k cut as suits the problem.
    *_rows(
        "gemm_split_k",
        "BM BN BK WM WN TM TN stages split_k slice_k interleave order",
        (128, 256, 16, 64, 64, 16, 8, 3, 1, 1, 4, 1),
        (256, 128, 16, 64, 64, 16, 8, 3, 1, 1, 4, 1),
        (192, 96, 32, 96, 32, 12, 8, 2, 1, 2, 4, 5),
        (128, 128, 32, 64, 64, 16, 8, 2, 1, 2, 4, 5),
        (128, 128, 16, 64, 64, 16, 8, 3, 1, 1, 4, 5),
        (128, 128, 16, 32, 64, 8, 8, 3, 1, 1, 8, 3),
        (96, 96, 32, 48, 96, 12, 12, 3, 1, 4, 2, 8),
        (64, 128, 32, 64, 32, 8, 8, 3, 1, 2, 4, 5),
        (64, 128, 32, 32, 64, 8, 8, 3, 1, 2, 4, 5),
        (64, 128, 16, 32, 64, 8, 8, 3, 1, 1, 8, 3),
        (48, 96, 32, 48, 96, 12, 12, 3, 1, 4, 4, 5),
        (96, 48, 64, 96, 48, 12, 12, 2, 1, 8, 4, 3),
        (64, 64, 32, 32, 64, 8, 8, 3, 1, 4, 4, 4),
        (32, 64, 64, 32, 64, 8, 8, 3, 1, 8, 4, 3),
        (32, 64, 32, 32, 32, 8, 4, 3, 1, 2, 4, 2),
        (32, 48, 64, 32, 48, 4, 12, 3, 1, 4, 8, 7),
        (32, 32, 32, 32, 32, 8, 4, 4, 1, 4, 4, 6),
        (16, 64, 64, 16, 64, 8, 4, 3, 1, 8, 2, 4),
        (32, 32, 32, 16, 32, 4, 4, 4, 1, 2, 4, 4),
        (16, 32, 64, 16, 32, 4, 4, 3, 1, 4, 1, 3),
    ),
    # These cut k themselves, until each SM has a block.
    *_rows(
        "gemm_skinny",
        "BN BK WN stages split_k",
        (32, 256, 32, 2, 128),
        (32, 256, 32, 1, 128),
        (32, 128, 32, 2, 128),
        (32, 128, 32, 3, 128),
        (64, 128, 64, 2, 128),
        (64, 64, 64, 2, 128),
        (32, 64, 32, 2, 128),
        (64, 32, 32, 2, 128),
        (16, 256, 64, 2, 128),
        (16, 512, 64, 2, 128),
    ),
)

# Products of a short k, of every type; BK covers k. Of some 25 configurations of each BK that were
# timed at 47 problems on an H100 these were the best of small and of large C.
_SHORT_K = _rows(
    "gemm_small_k",
    "BM BN BK WM WN TM",
    (64, 256, 4, 16, 128, 4),
    (32, 256, 4, 16, 128, 1),
    (32, 64, 4, 8, 64, 1),
    (32, 512, 8, 16, 64, 4),
    (32, 256, 8, 16, 32, 2),
    (64, 128, 12, 16, 128, 1),
    (32, 256, 12, 16, 32, 2),
    (64, 128, 16, 16, 128, 1),
    (32, 64, 16, 16, 32, 8),
    (64, 256, 20, 64, 64, 2),
    (32, 128, 20, 16, 64, 2),
    (64, 256, 24, 64, 64, 2),
    (32, 128, 24, 16, 64, 2),
    (64, 256, 28, 64, 64, 2),
    (32, 128, 28, 16, 64, 2),
    (64, 256, 32, 64, 64, 2),
    (32, 128, 32, 16, 64, 2),
)

# For boards without cp.async.
_WITHOUT_ASYNC = _rows(
    "warp_tiled",
    "BM BN BK WM WN TM TN",
    (128, 128, 16, 32, 64, 8, 8),
    (64, 64, 16, 32, 32, 8, 4),
    (32, 32, 16, 16, 32, 4, 4),
)

# Runs everywhere, whatever the problem: nothing is left without a choice.
_FALLBACK = _rows("naive", "BM BN", (8, 32))

# For many products that are no larger than a tile: few threads and little shared memory, so that
# an SM has many of them at once, and no warps that share k, whose sums would have to meet. Copies
# begin once a step: with more, ptxas runs out of the registers that so many CTAs leave it.
_SMALL_TILES = _rows(
    "gemm_tiled",
    "BM BN BK WM WN TM TN stages interleave order",
    (128, 64, 16, 64, 32, 8, 8, 2, 1, 5),
    (64, 64, 16, 32, 64, 8, 8, 2, 1, 1),
    (64, 64, 32, 32, 32, 8, 4, 2, 1, 2),
    (64, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (32, 32, 32, 16, 32, 4, 4, 2, 1, 2),
    (32, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (16, 32, 16, 16, 32, 4, 4, 2, 1, 2),
)

# bfloat16 and float16 on Hopper: of some 90 configurations that were timed at 110 problems on an
# H100, those that are the best somewhere. Consumers with a tile each win where k is short, tiles of
# few rows where C has no more, and blocks that share a tile's k where there are few tiles.
_WGMMA = _rows(
    "gemm_wgmma",
    "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
    (128, 256, 64, 4, 2, 1, 1, 1, 1),
    (128, 256, 64, 4, 2, 1, 2, 1, 1),
    (256, 128, 64, 4, 2, 1, 1, 1, 1),
    (128, 192, 64, 4, 2, 2, 1, 1, 1),
    (192, 128, 64, 5, 1, 1, 1, 1, 1),
    (128, 176, 64, 5, 2, 2, 2, 1, 1),
    (176, 128, 64, 4, 2, 2, 1, 1, 1),
    (128, 160, 64, 5, 2, 2, 1, 1, 1),
    (160, 128, 64, 5, 2, 2, 1, 1, 1),
    (144, 128, 64, 5, 2, 2, 1, 1, 1),
    (128, 128, 64, 6, 2, 2, 2, 1, 1),
    (128, 128, 64, 6, 2, 1, 1, 1, 1),
    (208, 128, 64, 5, 2, 1, 1, 1, 1),
    (240, 128, 64, 4, 2, 1, 1, 1, 1),
    (144, 128, 64, 5, 2, 1, 1, 1, 1),
    (128, 144, 64, 5, 2, 1, 1, 1, 1),
    (112, 256, 64, 4, 2, 1, 1, 1, 1),
    (128, 112, 64, 6, 2, 1, 1, 1, 1),
    (64, 256, 64, 4, 2, 2, 1, 1, 1),
    (64, 192, 64, 6, 2, 2, 1, 1, 1),
    (64, 128, 64, 8, 2, 2, 1, 1, 1),
    (64, 128, 64, 7, 1, 1, 1, 1, 1),
    (96, 64, 64, 8, 1, 1, 1, 1, 1),
    (80, 64, 64, 8, 1, 1, 1, 1, 1),
    (64, 64, 128, 4, 1, 1, 1, 1, 1),
    (64, 32, 128, 4, 1, 1, 1, 1, 1),
    (32, 128, 64, 8, 1, 1, 1, 1, 1),
    (32, 64, 64, 8, 1, 1, 1, 1, 1),
    (8, 64, 128, 12, 1, 1, 1, 1, 1),
    (128, 64, 64, 6, 2, 1, 1, 1, 2),
    (64, 64, 128, 4, 1, 1, 1, 1, 2),
    (32, 64, 128, 8, 1, 1, 1, 1, 2),
    (16, 64, 128, 8, 1, 1, 1, 1, 2),
)

# float32 where its precision allows tensor cores, on Hopper. Of operands in two parts, two sums for
# each result leave room for smaller tiles; of TF32, tiles are those of 16 bits with half the BK.
_FP16X3 = _rows(
    "gemm_fp16x3",
    "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
    (128, 192, 64, 2, 2, 1, 1, 1, 1),
    (128, 192, 32, 4, 2, 1, 1, 1, 1),
    (128, 160, 64, 2, 2, 1, 1, 1, 1),
    (128, 144, 64, 2, 2, 1, 1, 1, 1),
    (128, 128, 64, 3, 2, 1, 1, 1, 1),
    (128, 128, 64, 3, 2, 1, 2, 1, 1),
    (128, 96, 64, 3, 2, 1, 1, 1, 1),
    (64, 192, 64, 3, 2, 2, 1, 1, 1),
    (64, 160, 64, 3, 2, 2, 1, 1, 1),
    (64, 128, 64, 4, 2, 2, 1, 1, 1),
    (128, 64, 64, 4, 2, 1, 1, 1, 1),
    (64, 128, 64, 4, 1, 1, 1, 1, 1),
    (64, 64, 64, 6, 1, 1, 1, 1, 1),
    (64, 64, 64, 6, 1, 1, 1, 1, 2),
    (128, 64, 64, 4, 2, 1, 1, 1, 2),
    (64, 32, 64, 8, 1, 1, 1, 1, 1),
    (32, 64, 64, 8, 1, 1, 1, 1, 2),
    (16, 64, 64, 8, 1, 1, 1, 1, 2),
)
_TF32 = _rows(
    "gemm_tf32",
    "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
    (128, 256, 32, 4, 2, 1, 1, 1, 1),
    (128, 256, 32, 4, 2, 1, 2, 1, 1),
    (256, 128, 32, 4, 2, 1, 1, 1, 1),
    (128, 192, 32, 4, 2, 2, 1, 1, 1),
    (192, 128, 32, 5, 1, 1, 1, 1, 1),
    (128, 160, 32, 5, 2, 2, 1, 1, 1),
    (160, 128, 32, 5, 2, 2, 1, 1, 1),
    (128, 128, 32, 6, 2, 2, 2, 1, 1),
    (128, 128, 32, 6, 2, 1, 1, 1, 1),
    (128, 144, 32, 5, 2, 1, 1, 1, 1),
    (128, 112, 32, 6, 2, 1, 1, 1, 1),
    (64, 256, 32, 4, 2, 2, 1, 1, 1),
    (64, 192, 32, 6, 2, 2, 1, 1, 1),
    (64, 128, 32, 8, 2, 2, 1, 1, 1),
    (64, 128, 32, 7, 1, 1, 1, 1, 1),
    (64, 64, 64, 4, 1, 1, 1, 1, 1),
    (64, 32, 64, 4, 1, 1, 1, 1, 1),
    (32, 64, 32, 8, 1, 1, 1, 1, 1),
    (128, 64, 32, 6, 2, 1, 1, 1, 2),
    (64, 64, 64, 4, 1, 1, 1, 1, 2),
    (32, 64, 64, 8, 1, 1, 1, 1, 2),
    (16, 64, 64, 8, 1, 1, 1, 1, 2),
)

# Of 8 bits on Hopper: steps of the same bytes, and two sums for each result. The first two tiles
# are for fast accumulation, which has one.
_FP8 = (
    *_rows(
        "gemm_fp8",
        "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
        (128, 256, 128, 3, 2, 1, 1, 1, 1),
        (256, 128, 128, 3, 2, 1, 1, 1, 1),
        (128, 192, 128, 4, 2, 1, 1, 1, 1),
        (128, 160, 128, 4, 2, 1, 1, 1, 1),
        (128, 128, 128, 5, 2, 1, 2, 1, 1),
        (128, 128, 128, 5, 2, 1, 1, 1, 1),
        (128, 96, 128, 6, 2, 1, 1, 1, 1),
        (64, 192, 128, 5, 2, 2, 1, 1, 1),
        (64, 128, 128, 6, 2, 2, 1, 1, 1),
        (128, 64, 128, 6, 2, 1, 1, 1, 1),
        (64, 128, 128, 6, 1, 1, 1, 1, 1),
        (64, 64, 128, 8, 1, 1, 1, 1, 1),
        (64, 64, 128, 8, 1, 1, 1, 1, 2),
        (128, 64, 128, 6, 2, 1, 1, 1, 2),
        (64, 32, 128, 8, 1, 1, 1, 1, 1),
        (32, 64, 128, 8, 1, 1, 1, 1, 1),
        (32, 64, 128, 8, 1, 1, 1, 1, 2),
        (16, 64, 128, 8, 1, 1, 1, 1, 2),
    ),
    # For tables: no estimate tells what it saves that promotion overlaps with products.
    *_rows(
        "gemm_fp8",
        "BM BN BK stages consumers pingpong accumulators cluster_m cluster_n cluster_k",
        (128, 128, 128, 5, 2, 1, 2, 1, 1, 1),
        (128, 128, 128, 5, 2, 1, 2, 2, 1, 1),
        (64, 128, 128, 6, 2, 2, 2, 1, 1, 1),
        (64, 128, 128, 6, 1, 1, 2, 1, 1, 1),
    ),
)

# On boards with cp.async. Each was the fastest of these somewhere from 512 to 8192 on an H100,
# where `gemm_wgmma` overtakes all of 16 bits, but for the one of three stages: of that, boards with
# 100 KB of shared memory hold two blocks per SM.
_MMA = _rows(
    "gemm_mma",
    "BM BN BK WM WN stages",
    (128, 256, 32, 64, 64, 4),
    (128, 128, 32, 64, 64, 4),
    (128, 128, 32, 64, 64, 3),
    (128, 64, 32, 64, 32, 4),
    (64, 64, 64, 32, 32, 4),
    (32, 64, 64, 16, 32, 5),
    (64, 32, 64, 32, 16, 5),
    # Of fp64.
    (128, 128, 16, 64, 32, 4),
    (128, 64, 16, 32, 32, 4),
    (64, 64, 16, 32, 32, 4),
    (64, 32, 16, 16, 16, 4),
)

# float32 where its precision allows tensor cores, on boards with cp.async and without wgmma. None
# was timed there: these are the tiles of the above of which registers hold everything. In three
# products a lane has parts of its fragments too, and so half as many results.
_TF32_MMA = _rows(
    "gemm_tf32_mma",
    "BM BN BK WM WN stages",
    (128, 256, 16, 64, 64, 4),
    (128, 256, 16, 64, 64, 3),
    (256, 128, 16, 64, 64, 3),
    (128, 128, 16, 64, 32, 4),
    (128, 128, 16, 64, 32, 3),
    (128, 64, 16, 64, 32, 4),
    (64, 64, 32, 32, 32, 4),
    (64, 64, 32, 32, 32, 3),
    (64, 32, 32, 32, 16, 4),
    (32, 64, 32, 16, 32, 4),
    (32, 32, 32, 16, 16, 4),
)
_TF32X3 = _rows(
    "gemm_tf32x3",
    "BM BN BK WM WN stages",
    (128, 128, 16, 64, 32, 4),
    (128, 128, 16, 64, 32, 3),
    (128, 64, 16, 64, 32, 4),
    (64, 128, 16, 32, 64, 4),
    (64, 64, 32, 32, 32, 3),
    (64, 64, 16, 32, 32, 4),
    (64, 32, 32, 32, 16, 4),
    (32, 64, 32, 16, 32, 4),
    (32, 32, 32, 16, 16, 4),
)

# Other types than float32; without cp.async also other layouts and batches.
_TYPED_MMA = _rows(
    "typed_mma",
    "BM BN BK WM WN",
    (128, 128, 32, 64, 64),
    (128, 128, 16, 64, 32),
    (64, 64, 32, 32, 32),
    (64, 64, 16, 32, 32),
    (32, 32, 32, 16, 16),
    (32, 32, 16, 16, 16),
)
_TYPED = (
    *_TYPED_MMA,
    *_rows(
        "typed",
        "BM BN BK WM WN TM TN",
        (128, 128, 16, 32, 64, 8, 8),
        (128, 128, 8, 32, 64, 8, 8),
        (64, 128, 16, 32, 32, 8, 4),
        (64, 64, 16, 32, 32, 8, 4),
        (32, 32, 16, 16, 32, 4, 4),
    ),
)

# Groups of different shapes. `interleave` and `order` are those for which ptxas needs the fewest
# issue cycles of this kernel for compute capability 9.0, aligned or not; for 48 x 64 the fastest of
# those tried.
_GROUPED = _rows(
    "gemm_grouped",
    "BM BN BK WM WN TM TN stages interleave order",
    (128, 256, 16, 32, 128, 16, 8, 2, 4, 1),
    (256, 128, 16, 64, 64, 16, 8, 3, 1, 6),
    (128, 192, 16, 64, 48, 8, 12, 3, 1, 7),
    (128, 128, 16, 32, 64, 8, 8, 3, 8, 6),
    (128, 64, 16, 64, 32, 8, 8, 2, 1, 5),
    (64, 128, 32, 32, 32, 8, 4, 4, 4, 2),
    (64, 64, 16, 32, 64, 8, 8, 2, 1, 5),
    (64, 64, 32, 32, 32, 8, 4, 2, 1, 2),
    (64, 64, 16, 32, 32, 8, 4, 4, 4, 2),
    (48, 64, 8, 48, 32, 12, 4, 3, 4, 5),
    (32, 128, 32, 32, 32, 8, 4, 3, 4, 5),
    (64, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (32, 64, 32, 32, 16, 4, 4, 3, 4, 2),
    (32, 32, 32, 16, 32, 4, 4, 2, 1, 2),
    (32, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (16, 32, 16, 16, 32, 4, 4, 2, 1, 2),
)

# And of other types; float32 on boards without cp.async.
_GROUPED_TYPED = (
    *_rows(
        "grouped_mma",
        "BM BN BK WM WN",
        (128, 128, 32, 64, 64),
        (128, 128, 16, 64, 32),
        (64, 64, 32, 32, 32),
        (64, 64, 16, 32, 32),
        (32, 32, 32, 16, 16),
        (32, 32, 16, 16, 16),
    ),
    *_rows(
        "grouped_typed",
        "BM BN BK WM WN TM TN",
        (128, 128, 16, 32, 64, 8, 8),
        (128, 128, 8, 32, 64, 8, 8),
        (64, 128, 16, 32, 32, 8, 4),
        (64, 64, 16, 32, 32, 8, 4),
        (32, 32, 16, 16, 32, 4, 4),
    ),
)

CANDIDATES: tuple[Candidate, ...] = (
    *_TILED,
    *_SMALL_TILES,
    *_SHORT_K,
    *_GROUPED,
    *_WITHOUT_ASYNC,
    *_WGMMA,
    *_FP16X3,
    *_TF32,
    *_FP8,
    *_MMA,
    *_TF32_MMA,
    *_TF32X3,
    *_TYPED,
    *_GROUPED_TYPED,
    *_FALLBACK,
)


def candidates_for(gpu: GpuSpec) -> tuple[Candidate, ...]:
    """Those that the board can run and that are worth it there; each says what problems it takes.

    Where there is cp.async, tiles that come through registers are left out: the same come faster.
    Products of TF32 by mma.sync are left out where FFMA is as fast as these, or wgmma multiplies.
    """
    staged = _allowed((*_TILED, *_SMALL_TILES), gpu) or _allowed(_WITHOUT_ASYNC, gpu)
    wgmma = _allowed((*_WGMMA, *_FP16X3, *_TF32, *_FP8), gpu)
    tf32 = (
        *(_TF32_MMA if is_faster_than_ffma(gpu, products=1) else ()),
        *(_TF32X3 if is_faster_than_ffma(gpu, PRODUCTS) else ()),
    )
    mma = (*_MMA, *(() if wgmma else tf32))
    others = (*mma, *_TYPED, *_GROUPED_TYPED, *_FALLBACK)
    return (*staged, *_allowed((*_SHORT_K, *_GROUPED), gpu), *wgmma, *_allowed(others, gpu))


def is_overtaken(candidate: Candidate, gpu: GpuSpec, dtype: Dtype = "float32") -> bool:
    """Whether products of a type with k above `SHORT_K` have faster candidates on the board, where
    rows are aligned; and groups of float32.

    Those for every type stage tiles through registers, which wins where k has a step or two; else
    cp.async brings the same tiles sooner: to tensor cores in 0.4 to 0.8 of the time on an H100.
    """
    if candidate in _GROUPED_TYPED:
        return dtype == "float32" and bool(_allowed(_GROUPED, gpu))
    if dtype == "float32":
        return candidate in _TYPED and bool(_allowed(_TILED, gpu))
    return candidate in _TYPED_MMA and bool(_allowed(_MMA, gpu))


def _allowed(candidates: tuple[Candidate, ...], gpu: GpuSpec) -> tuple[Candidate, ...]:
    return tuple(each for each in candidates if each.kernel.rule(each.config, gpu) is None)


def size_class(problem: GemmProblem) -> SizeClass:
    """What the seven-level guide calls the problem, by the shorter side of C."""
    side = min(problem.m, problem.n)
    return "small" if side < SMALL else "large" if side > LARGE else "medium"
