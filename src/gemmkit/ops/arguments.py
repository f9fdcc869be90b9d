"""What a step's kernel is given: numbers, and where each of its addresses comes from."""

from __future__ import annotations

from collections.abc import Mapping

from gemmkit.devices.operands import NOWHERE, Further, Operands, bind_arguments
from gemmkit.ops.placement import Step

# For each argument that is an address: the role of its operand, and bytes from its element 0.
Places = Mapping[str, tuple[str, int]]


def step_numbers(step: Step) -> dict[str, int | float]:
    """The value of every argument; those that are addresses are 0."""
    offsets = step.offsets
    residual = Further(NOWHERE, step.ldr, step.stride_r) if "residual" in offsets else None
    auxiliary = Further(NOWHERE, step.ldx, step.stride_x) if "auxiliary" in offsets else None
    operands = Operands(NOWHERE, NOWHERE, NOWHERE, residual=residual, auxiliary=auxiliary)
    return bind_arguments(step.problem, operands)


def step_places(step: Step) -> Places:
    """Where the addresses come from."""
    problem, (first, second) = step.problem, step.operands
    names = {"A": first, "B": second, "C": "out", "residual": "residual", "auxiliary": "auxiliary"}
    places = {}
    for name, role in names.items():
        if role in step.offsets:
            item = problem.item_bytes if role in ("a", "b") else problem.out_item_bytes
            places[name] = role, step.offsets[role] * item
    if problem.epilogue.bias:
        places["bias"] = "bias", 0
    return places
