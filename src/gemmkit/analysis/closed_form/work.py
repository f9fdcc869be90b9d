"""`Work`: how the blocks of a launch divide a problem, from sizes alone.

It is equivalent to the grids of `Kernel.launch`, without making one per candidate; a test compares
the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launches import LEAST_STEPS, cut_tiles, split_k_parts
from gemmkit.kernels.plan import SKINNY, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.rules import resident_blocks
from gemmkit.kernels.strips import Strips, strips_for
from gemmkit.problem import GemmProblem

# Parts of a tile that are worth asking for: beyond the most, more is put together than computed.
MOST_PARTS, LEAST_PART_STEPS = 32, 2
# A strip's block takes as long as one with a tile of so many results for each row and column that
# it copies: copies hold it up.
STRIP_LINE_RESULTS = 43
# A few splits per tile suffice to fill a last wave.
FEW_PARTS = 8


class Work(NamedTuple):
    """How a launch divides a problem.

    `tiles` are those of all products, of `rows` × `columns` each; `steps` are those of BK along k
    that one block makes, in `visits` tiles; `parts` is how many blocks share a tile, 1 where none
    do. Strips of a fringe count as tiles where a wave has room for them, and as more steps of all
    blocks where it has not.
    """

    blocks: int
    tiles: int
    rows: int
    columns: int
    steps: int
    visits: int
    parts: int


@dataclass(frozen=True)
class Cutter:
    """A configuration of a kernel on a board, which divides problems.

    `launched` is a launch of it, if the caller already has one.
    """

    kernel: Kernel
    config: TileConfig
    gpu: GpuSpec
    launched: LaunchShape | None = None

    def work(self, problem: GemmProblem) -> Work:
        """The work of a launch."""
        rows, columns, tiles = self._tiles(problem)
        depth = ceil_div(problem.k, self.config.BK or 1)
        # BLAS: α = 0 never reads A or B.
        steps = max(depth if problem.alpha else 0, 1)
        if not tiles:
            return Work(0, 0, rows, columns, 0, 0, 1)
        parts = 1
        if self.kernel.name in ("split_k", "gemm_split_k"):
            parts = split_k_parts(problem, self.config)
        elif self.config.split_k is not None:
            # `gemm_skinny` uses at most one block per SM.
            parts = min(self.config.split_k, max(depth, 1))
            parts = max(min(parts, self.gpu.sm_count // tiles), 1)
        strips = self._strips(problem, parts)
        if strips:
            tiles = math.prod(strips.tiles(problem, self.config))
        if self.kernel.name in ("stream_k", "gemm_stream_k"):
            work = self._streamed(tiles, rows, columns, depth, steps)
        else:
            work = Work(tiles * parts, tiles, rows, columns, ceil_div(steps, parts), 1, parts)
        return self._held_up(work, strips, problem, steps) if strips else work

    def splits(self, problem: GemmProblem, resident: int) -> tuple[int, ...]:
        """The values of `split_k` that are worth an estimate; there may be none.

        They give each SM one block, two, or as many as it holds (`resident`); or, if there are more
                tiles than SMs, best fill the last wave.
        """
        tiles, sms = self._tiles(problem)[2], self.gpu.sm_count
        most = min(MOST_PARTS, ceil_div(problem.k, self.config.BK or 1) // LEAST_PART_STEPS)
        if not tiles or most < 2:
            return ()
        found = {min(sms * blocks // tiles, most) for blocks in (1, 2, resident)}
        # Waves of parts, each 1/parts as long as a tile.
        few = range(2, min(most, FEW_PARTS) + 1)
        found.add(min(few, key=lambda parts: ceil_div(tiles * parts, sms) / parts + parts / sms))
        return tuple(sorted(each for each in found if each > 1))

    @cached_property
    def tile_shape(self) -> LaunchShape:
        """Any launch: threads and shared memory are the same for every problem, or the maximum."""
        if self.launched is not None:
            return self.launched
        rows, side = self.config.BM or SKINNY, self.config.BN or 1
        return self.kernel.launch(GemmProblem(rows, side, side), self.config, self.gpu)

    @cached_property
    def threads(self) -> int:
        """Threads per block."""
        x, y, z = self.tile_shape.block
        return x * y * z

    def _tiles(self, problem: GemmProblem) -> tuple[int, int, int]:
        """Rows, columns and number; kernels for skinny products take a side whole."""
        m, n = problem.m, problem.n
        rows, columns = self.config.BM, self.config.BN or 1
        if rows is None:
            rows, columns = (max(m, 1), columns) if m <= n else (columns, max(n, 1))
        return rows, columns, ceil_div(m, rows) * ceil_div(n, columns) * problem.batch

    def _strips(self, problem: GemmProblem, parts: int) -> Strips:
        if self.kernel.name not in ("gemm_tiled", "gemm_split_k", "gemm_stream_k"):
            return Strips()
        shared_bytes = self.tile_shape.shared_bytes
        return strips_for(problem, self.config, self.gpu, shared_bytes, parts)

    def _held_up(self, work: Work, strips: Strips, problem: GemmProblem, steps: int) -> Work:
        """The same with strips: they take places that a last wave leaves empty, or hold it up.

        `steps` are those of a whole tile. Where a block has its SM alone, what is left of the
        strips in the end takes a round more; else strips run beside tiles.
        """
        lines, count, sms = strips.width + strips.length, strips.count(problem), self.gpu.sm_count
        strip = STRIP_LINE_RESULTS * lines / (work.rows * work.columns) * steps
        empty = -work.blocks % sms
        if self._resident == 1:
            left = count - empty * int(work.steps / strip)
            beyond = ceil_div(max(left, 0), sms) * strip / ceil_div(work.blocks, sms)
        else:
            beyond = max(count * strip - empty * work.steps, 0) / work.blocks
        added = min(empty, count, math.ceil(count * strip / work.steps))
        return work._replace(
            blocks=work.blocks + added,
            tiles=work.tiles + (added if work.parts == 1 else 0),
            steps=math.ceil(work.steps + beyond),
        )

    def _streamed(self, tiles: int, rows: int, columns: int, depth: int, steps: int) -> Work:
        """As many blocks as the board holds; the remainder of whole waves is divided evenly."""
        blocks = min(self.gpu.sm_count * self._resident, tiles * max(1, depth // LEAST_STEPS))
        cut = cut_tiles(tiles, blocks)
        whole = (tiles - cut) // blocks
        if not cut:
            return Work(blocks, tiles, rows, columns, whole * steps, whole, 1)
        uneven = blocks % cut > 0
        return Work(
            blocks,
            tiles,
            rows,
            columns,
            ceil_div(tiles * steps, blocks),
            whole + ceil_div(cut, blocks) + uneven,
            ceil_div(blocks, cut) + uneven,
        )

    @cached_property
    def _resident(self) -> int:
        """Blocks per SM, for kernels with warp tiles."""
        return resident_blocks(self.config, self.gpu, self.tile_shape.shared_bytes)
