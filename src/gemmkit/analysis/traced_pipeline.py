"""The circular buffer of a kernel's bulk copies, from a run that is deep enough to show it."""

from __future__ import annotations

import math

from gemmkit.analysis.copy_pipeline import CopyPipeline, Filled, copy_pipeline
from gemmkit.analysis.depth_runs import Profiled
from gemmkit.analysis.smaller import STEP, with_depth
from gemmkit.analysis.trace import Trace, trace
from gemmkit.analysis.traced_block import ADDED
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan

# How often the buffer is filled: once at the start, once more before the times are regular, and
# once to take them.
_ROUNDS = 3


def traced_pipeline(
    profiled: Profiled, seen: Trace, bytes_per_k: float, board: GpuSpec
) -> CopyPipeline | None:
    """The buffer of the first block of a launch on this board; None if bulk copies fill none, or if
    it holds all that a tile needs.

    `seen` is a block's trace, `bytes_per_k` what its copies bring per k step of a tile.

    Raises:
        UnsupportedProblem: the kernel refuses a deeper problem than the one traced.
        DeviceError: the kernel failed.
    """
    problem = profiled.problem
    # Prepared copies of operands have no name.
    arrays = {each.array for each in seen.signals if each.nbytes} - {*ADDED}
    filled = Filled.of(seen.signals, seen.warps, arrays)
    if filled is None or not bytes_per_k:
        return None
    if not profiled.square:
        stages = _room(seen.plan, profiled.compiled(seen.plan), board) // filled.stage_bytes + 1
        of_stages = bytes_per_k * filled.share
        step = filled.issued_bytes / of_stages / min(profiled.tiles, 1.0)
        depth = math.ceil(_ROUNDS * stages * step / STEP) * STEP + problem.k % STEP
        deep = with_depth(problem, min(depth, problem.k), profiled.kernel)
        plan = profiled.kernel.plan(deep, profiled.config, board)
        seen = trace(
            profiled.kernel,
            deep,
            board,
            config=profiled.config,
            binary=profiled.compiled(plan),
            cache_dir=profiled.cache_dir,
            reduced=False,
        )
    return copy_pipeline(seen.signals, seen.warps, arrays)


def _room(plan: LaunchPlan, binary: Binary, board: GpuSpec) -> int:
    """Bytes of shared memory of a block, or what it may have at most."""
    if binary.resources is None:
        return board.capability.max_shared_per_block
    return plan.shared_bytes + binary.resources.shared_bytes
