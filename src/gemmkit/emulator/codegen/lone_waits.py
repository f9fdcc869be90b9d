"""`is_for_others`: whether lanes that have not waited at an mbarrier may rely on one that has."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.addresses import space_of
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import ATOMICS
from gemmkit.emulator.ptx.cfg import ControlFlow

_ACCESSES = ATOMICS | {"load", "store"}
_STEPS = ("barrier", "wgmma_", "multiply_")


def is_for_others(flow: ControlFlow, actions: Sequence[Action], wait: int) -> bool:
    """Whether an ordinary access to shared memory may follow a wait (the number of its instruction)
    before the lanes of the warp are in step."""
    first = flow.block_of(wait)
    seen: set[int] = set()
    waiting = [(first, wait + 1)]
    while waiting:
        block, start = waiting.pop()
        here = flow.blocks[block]
        for number in range(max(start, here.start), here.end):
            action = actions[number]
            if _brings_in_step(action):
                break
            if action.operation == "copy_async" or _may_be_shared(action):
                return True
        else:
            ahead = [each for each in here.successors if each < len(flow.blocks)]
            waiting += [(each, 0) for each in ahead if each not in seen]
            seen.update(ahead)
    return False


def _may_be_shared(action: Action) -> bool:
    return action.operation in _ACCESSES and space_of(action) in ("shared", "generic")


def _brings_in_step(action: Action) -> bool:
    """Whether all lanes of a warp execute an instruction together."""
    return (
        action.form.opcode_class == "warp"
        or action.form.opcode.startswith(("bar.warp", "ldmatrix", "stmatrix"))
        or action.operation.startswith(_STEPS)
    )
