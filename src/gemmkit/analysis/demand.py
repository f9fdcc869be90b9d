"""`Demand`: what the instructions of a warp take of each unit of an SM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.machine import Machine, pipe_cycles
from gemmkit.analysis.warp_time import issue_cost
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import sizes
from gemmkit.emulator.isa.warpgroup_forms import OPERATION, ROWS
from gemmkit.gpu import FP32, WARP_SIZE, GpuSpec, MathPipe, MathType

# Columns of a product of `mma.sync`.
_MMA_COLUMNS = 8

# Types as PTX has them, of what multiplies.
_MATH_TYPES: dict[str, MathType] = {
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "tf32": "tfloat32",
    "e4m3": "float8",
    "e5m2": "float8",
    "s8": "int8",
    "u8": "int8",
}


@dataclass(frozen=True, slots=True)
class Demand:
    """Cycles that one warp occupies each unit of an SM: throughput, not latency.

    `fma`, `tensor`, `special` (of special-function units), `slots` and `waits` (of multiply-adds,
    for registers) are of one scheduler, which serves a quarter of the warps; `data` and `tag` are
    of the SM's one L1.
    """

    fma: float
    tensor: float
    special: float
    slots: float
    waits: float
    data: float
    tag: float

    @property
    def dispatch(self) -> float:
        """Cycles of the scheduler: what multiplies, or its issue slots and what holds them up."""
        return max(self.fma, self.tensor, self.special, self.slots + self.waits)


def demand_of(
    numbers: Iterable[int],
    profile: BlockProfile,
    executed: NDArray[np.float64],
    spec: GpuSpec,
    machine: Machine,
) -> Demand:
    """The demand of one warp over a whole launch, for these instructions of a profiled block.

    `executed` is how often a warp executes each instruction.
    """
    here = [number for number in numbers if number not in profile.merged_away]
    fma = tensor = special = slots = waits = data = tag = 0.0
    of_special = WARP_SIZE * spec.pipes.issue / spec.pipes.special_lanes
    for number in here:
        action, times = profile.actions[number], float(executed[number])
        pipe, amount = multiplies(action.form)
        if pipe == FP32:
            fma += times * machine.ffma_issue
            slots += times
            waits += times * (profile.ffma_issue - 1)
        elif pipe is not None:
            by_wgmma = action.form.operation == OPERATION
            cycles = times * pipe_cycles(spec, amount, pipe, by_wgmma=by_wgmma)
            tensor, fma = tensor + cycles * pipe.tensor, fma + cycles * (not pipe.tensor)
            slots += times
        else:
            slots += times * issue_cost(profile, number, machine)
            if action.operation == "approximate":
                special += times * of_special
        if number in profile.costs:
            floor = WARP_SIZE / spec.pipes.load_store_lanes
            data += times * max(profile.costs[number].data_cycles, floor)
            tag += times * profile.costs[number].tag_cycles
    return Demand(fma, tensor, special, slots, waits, data, tag)


def multiplies(form: Form) -> tuple[MathPipe | None, float]:
    """The pipe that an instruction holds, if it has one, and its multiply-adds in a warp."""
    if form.operation == "multiply_matrices":
        amount = int(form["M"]) * _MMA_COLUMNS * int(form["K"])
        return MathPipe(_MATH_TYPES[form["A"]], tensor=True), float(amount)
    if form.operation == "multiply_fragments":
        m, n, k = sizes(form["G"])
        return MathPipe(_MATH_TYPES[form["T"] or "f16"], tensor=True), float(m * n * k)
    if form.operation == OPERATION:
        amount = ROWS * int(form["N"]) * int(form["K"])
        return MathPipe(_MATH_TYPES[form["A"]], tensor=True), float(amount)
    pipes = {"fma": FP32, "fp64": MathPipe("float64")}
    return pipes.get(form.opcode_class), float(WARP_SIZE)
