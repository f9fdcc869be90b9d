"""The circular buffer of a kernel's bulk copies, from a run that is deep enough to show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gemmkit.analysis.copy_pipeline import CopyPipeline, Filled, copy_pipeline
from gemmkit.analysis.smaller import with_depth
from gemmkit.analysis.trace import Trace, trace
from gemmkit.analysis.traced_block import ADDED
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem

# How often the buffer is filled: once at the start, once more before the times are regular, and
# once to take them.
_ROUNDS = 3
# Depths that every kernel takes are multiples of this.
_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a profile knows of a kernel before its circular buffer is looked for.

    `seen` is a block's trace, `bytes_per_k` what its copies bring per k step of a tile, `tiles` how
    many tiles a block computes: less than one if blocks share a tile. `compiled` gives the binary
    of a plan; `square` says whether the kernel accepts only square matrices.
    """

    kernel: Kernel
    config: TileConfig
    problem: GemmProblem
    seen: Trace
    bytes_per_k: float
    tiles: float
    compiled: Callable[[LaunchPlan], Binary]
    square: bool


def traced_pipeline(
    profiled: Profiled, board: GpuSpec, cache_dir: Path | None
) -> CopyPipeline | None:
    """The buffer of the first block of a launch on this board; None if bulk copies fill none, or if
    it holds all that a tile needs.

    Raises:
        UnsupportedProblem: the kernel refuses a deeper problem than the one traced.
        DeviceError: the kernel failed.
    """
    seen, problem = profiled.seen, profiled.problem
    # Prepared copies of operands have no name.
    arrays = {each.array for each in seen.signals if each.nbytes} - {*ADDED}
    filled = Filled.of(seen.signals, seen.warps, arrays)
    if filled is None or not profiled.bytes_per_k:
        return None
    if not profiled.square:
        stages = _room(seen.plan, profiled.compiled(seen.plan), board) // filled.stage_bytes + 1
        of_stages = profiled.bytes_per_k * filled.share
        step = filled.issued_bytes / of_stages / min(profiled.tiles, 1.0)
        depth = math.ceil(_ROUNDS * stages * step / _STEP) * _STEP + problem.k % _STEP
        deep = with_depth(problem, min(depth, problem.k), profiled.kernel)
        plan = profiled.kernel.plan(deep, profiled.config, board)
        seen = trace(
            profiled.kernel,
            deep,
            board,
            config=profiled.config,
            binary=profiled.compiled(plan),
            cache_dir=cache_dir,
            reduced=False,
        )
    return copy_pipeline(seen.signals, seen.warps, arrays)


def _room(plan: LaunchPlan, binary: Binary, board: GpuSpec) -> int:
    """Bytes of shared memory of a block, or what it may have at most."""
    if binary.resources is None:
        return board.capability.max_shared_per_block
    return plan.shared_bytes + binary.resources.shared_bytes
