"""How often a block executes each instruction, in two short runs that differ in depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.block_tiles import cut_board
from gemmkit.analysis.smaller import STEP, short_runs
from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.emulator.isa.warpgroup_forms import OPERATION
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem

# The longest step along k that is looked for.
_LONGEST_STEP = 512
# Instructions that multiply: by operation, or by class.
_PRODUCTS, _ADDS = ("multiply_matrices", "multiply_fragments", OPERATION), ("fma", "fp64")

# A problem, its plan, and executions of each instruction by an average block.
Run = tuple[GemmProblem, LaunchPlan, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A kernel of which a block is profiled, and the launch that it is for.

    `tiles` is how many tiles a block computes: less than one if blocks share a tile. `compiled`
    gives the binary of a plan; `square` says whether the kernel accepts only square matrices.
    """

    kernel: Kernel
    config: TileConfig
    problem: GemmProblem
    tiles: float
    compiled: Callable[[LaunchPlan], Binary]
    square: bool
    cache_dir: Path | None


@dataclass(frozen=True, slots=True)
class DepthRuns:
    """Two runs on `board`, `apart` along k or a multiple of it; the same twice if the problem is
    small."""

    low: Run
    high: Run
    flow: ControlFlow
    board: GpuSpec
    apart: int


def depth_runs(profiled: Profiled, spec: GpuSpec) -> DepthRuns:
    """Runs that are long enough for the kernel's steps along k: with a step of 128, a k of 64 takes
    as many products as one of 128; and of a loop that the compiler has unrolled twice, a k of one
    step runs the remainder, which one of two steps does not.
    """
    first, refused, apart = None, None, STEP
    while True:
        last = profiled.square or apart == _LONGEST_STEP
        try:
            found = _at(profiled, spec, apart)
        except UnsupportedProblem as error:
            # Of k it may take multiples of a longer step alone.
            refused = refused or error
            if last:
                raise refused from None
        else:
            first = first or found
            if _differ_by_steps(found):
                return found
            if last:
                return first
        apart *= 2


def _at(profiled: Profiled, spec: GpuSpec, apart: int) -> DepthRuns:
    kernel, config, problem = profiled.kernel, profiled.config, profiled.problem
    small, deep = short_runs(problem, profiled.tiles, kernel, square=profiled.square, apart=apart)
    board = cut_board(spec, kernel, config, problem, small)
    device = EmulatedDevice(board, cache_dir=profiled.cache_dir)
    plan = kernel.plan(small, config, board)
    flow, counts = executed(device, profiled.compiled(plan), plan, small)
    low = high = (small, plan, counts)
    if deep != small:
        deep_plan = kernel.plan(deep, config, board)
        _, counts = executed(device, profiled.compiled(deep_plan), deep_plan, deep)
        high = (deep, deep_plan, counts)
    return DepthRuns(low, high, flow, board, apart)


def _differ_by_steps(found: DepthRuns) -> bool:
    """Whether the deeper run, if there is one, multiplies more, and nothing less often; or whether
    nothing is multiplied in either."""
    (small, _, at_low), (deep, _, at_high) = found.low, found.high
    numbers = [
        number
        for number, form in enumerate(found.flow.forms)
        if form.operation in _PRODUCTS or form.opcode_class in _ADDS
    ]
    more = at_high[numbers] - at_low[numbers]
    return deep == small or not at_high[numbers].any() or bool((more >= 0).all() and more.any())


def executed(
    device: EmulatedDevice, binary: Binary, plan: LaunchPlan, problem: GemmProblem
) -> tuple[ControlFlow, NDArray[np.float64]]:
    """Executions of each instruction by an average block."""
    operands = Operands.zeros(device, problem)
    bound = bind_arguments(problem, operands)
    scratch = Scratch.of(device, plan, bound)  # must outlive the launch
    arguments = bound | scratch.arguments
    flow, tally = device.count(binary, plan, arguments)
    return flow, tally.executed / max(plan.blocks, 1)
