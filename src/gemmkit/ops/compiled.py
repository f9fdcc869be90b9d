"""What a step of a product launches: plan, binary and arguments."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from gemmkit.devices.operands import NOWHERE, Further, Operands, ScaleArray, bind_arguments
from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, SourceFile, TileConfig
from gemmkit.loading import first_use
from gemmkit.ops.placement import SCALE_ROLES, Step
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.devices.patches import Places

# Binaries that are kept in memory; the disk cache has all.
_MOST_KEPT = 512


def compiled(
    problem: GemmProblem,
    kernel: Kernel,
    config: TileConfig,
    gpu: GpuSpec,
    *,
    assemble: bool = True,
) -> tuple[LaunchPlan, Binary]:
    """How a kernel is launched for a problem on a board, and its code.

    `assemble` is as in `compile_kernel`: the emulator does without.

    Raises:
        UnsupportedProblem: the kernel refuses the problem.
        CompileError, CompilerMissing: as `compile_plan`.
    """
    with first_use():
        plan = kernel.plan(problem, config, gpu)
        return plan, binary_of(plan, gpu, assemble=assemble)


def binary_of(plan: LaunchPlan, gpu: GpuSpec, *, assemble: bool = True) -> Binary:
    """The code that a plan launches on a board.

    Raises:
        CompileError, CompilerMissing: as `compile_plan`.
    """
    own = _binary(plan.kernel, plan.source, plan.entry, gpu.arch, assemble)
    if plan.before is None and not plan.prepared:
        return own
    first = None if plan.before is None else binary_of(plan.before, gpu, assemble=assemble)
    makers = tuple(binary_of(each.maker, gpu, assemble=assemble) for each in plan.prepared)
    return msgspec.structs.replace(own, before=first, prepared=makers)


@lru_cache(maxsize=_MOST_KEPT)
def _binary(kernel: str, source: SourceFile, entry: str, arch: str, assemble: bool) -> Binary:
    # What else a plan holds tells nothing to the compiler.
    plan = LaunchPlan(kernel, source, entry, grid=(1, 1, 1), block=(1, 1, 1), signature=())
    with first_use():
        return compile_plan(plan, arch, assemble=assemble)


# --- arguments ----------------------------------------------------------------------------------


def step_numbers(step: Step) -> dict[str, int | float]:
    """The value of every argument; those that are addresses are 0."""
    offsets = step.offsets
    residual = Further(NOWHERE, step.ldr, step.stride_r) if "residual" in offsets else None
    auxiliary = Further(NOWHERE, step.ldx, step.stride_x) if "auxiliary" in offsets else None
    scales: dict[str, Any] = {
        name: ScaleArray(NOWHERE, *places) for name, places in step.scales.items()
    }
    operands = Operands(NOWHERE, NOWHERE, NOWHERE, residual=residual, auxiliary=auxiliary, **scales)
    return bind_arguments(step.problem, operands)


def step_places(step: Step) -> Places:
    """Where the addresses come from."""
    problem, (first, second) = step.problem, step.operands
    names = {"A": first, "B": second, "C": "out", "residual": "residual", "auxiliary": "auxiliary"}
    names |= {"scale_a": f"scale_{first}", "scale_b": f"scale_{second}"}
    places = {}
    for name, role in names.items():
        if role in step.offsets:
            item = problem.item_bytes if role in ("a", "b") else problem.out_item_bytes
            if role in SCALE_ROLES:
                item = FLOAT_BYTES
            places[name] = role, step.offsets[role] * item
    for role in ("bias", "scale_result"):
        if getattr(problem.epilogue, role):
            places[role] = role, 0
    return places
