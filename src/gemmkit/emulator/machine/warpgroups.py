"""`wgmma` instructions that native code cannot execute, and those of which sanitizers are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action, warpgroup_product
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.warpgroups import OPERATION, WARPS, check_operands, check_warpgroup
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.worker import Worker


def warpgroup(
    worker: Worker,
    warp: int,
    action: Action,
    operands: Sequence[NDArray[Any]],
    active: NDArray[np.bool_],
) -> tuple[()]:
    """Check an instruction of a warp, and tell the sanitizers of it; native code multiplies.

    `operands` of a product are its descriptors and `scale-d`, by lane.

    Raises:
        Refusal: it is not valid.
    """
    descriptors: list[int] = []
    try:
        check_warpgroup(warp, worker.warps, active)
        if action.operation == OPERATION:
            memory = range(worker.shared_base, worker.shared_end)
            descriptors = check_operands(warpgroup_product(action), operands, warp % WARPS, memory)
    except Misuse as misuse:
        thread = warp * LANES + int(active.argmax())
        raise Refusal(misuse.kind, misuse.what, action.number, thread, "", 0) from None
    if worker.observer is not None:
        worker.observer.warpgroup(warp, action, descriptors)
    return ()
