"""`wgmma` instructions that native code cannot execute, and those of which sanitizers are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.warpgroup_operands import warpgroup_product
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.warpgroup_forms import OPERATION, WARPS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct, check_operands, check_warpgroup
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.worker import Worker


class Warpgroups:
    """Checks instructions of wgmma, and tells the sanitizers of them; native code multiplies."""

    def __init__(self) -> None:
        # By the number of an instruction.
        self._products: dict[int, WarpgroupProduct] = {}

    def execute(
        self,
        worker: Worker,
        warp: int,
        action: Action,
        operands: Sequence[NDArray[Any]],
        active: NDArray[np.bool_],
    ) -> tuple[()]:
        """An instruction of a warp; `operands` are the descriptors and `scale-d`, by lane.

        Raises:
            Refusal: it is not valid.
        """
        observer, number = worker.observer, action.number
        try:
            check_warpgroup(warp, worker.warps, active)
            if action.operation != OPERATION:
                if observer is not None:
                    observer.wgmma_ordered(warp, action)
                return ()
            if number not in self._products:
                self._products[number] = warpgroup_product(action)
            product = self._products[number]
            memory = range(worker.shared_base, worker.shared_end)
            descriptors = check_operands(product, operands, warp % WARPS, memory)
        except Misuse as misuse:
            thread = warp * LANES + int(active.argmax())
            raise Refusal(misuse.kind, misuse.what, number, thread, "", 0) from None
        if observer is not None:
            observer.wgmma_issued(warp, number, product, descriptors)
        return ()
