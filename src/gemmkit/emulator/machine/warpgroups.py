"""`wgmma` instructions that native code cannot execute, and those of which sanitizers are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.warpgroup_operands import warpgroup_product
from gemmkit.emulator.isa.matrix_descriptors import holds_rank
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.warpgroup_forms import OPERATION, WARPS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct, check_operands, check_warpgroup
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.scratch import Place, lanes_of, raw, read
from gemmkit.emulator.machine.worker import Worker


class Warpgroups:
    """Checks instructions of wgmma, and tells the sanitizers of them; native code multiplies."""

    def __init__(self) -> None:
        # By the number of an instruction.
        self._products: dict[int, WarpgroupProduct] = {}
        # The descriptors of what was found valid; kernels repeat the same few instructions.
        self._valid: dict[tuple[object, ...], tuple[int, ...]] = {}

    def execute(
        self, worker: Worker, warp: int, action: Action, sources: Sequence[Place], lanes: int
    ) -> None:
        """An instruction of a warp; `sources` are where the descriptors and `scale-d` are, by lane.

        Raises:
            Refusal: it is not valid.
        """
        number = action.number
        given = [raw(worker, *each) for each in sources]
        key = (number, warp, lanes, *[each.tobytes() for each in given])
        descriptors = self._valid.get(key)
        if descriptors is None:
            descriptors = self._valid[key] = self._check(worker, warp, action, sources, lanes)
        if worker.observer is None:
            return
        if action.operation == OPERATION:
            worker.observer.wgmma_issued(warp, number, self._products[number], descriptors)
        else:
            worker.observer.wgmma_ordered(warp, action)

    def _check(
        self, worker: Worker, warp: int, action: Action, sources: Sequence[Place], lanes: int
    ) -> tuple[int, ...]:
        """The descriptors of a valid instruction; none if it does not multiply.

        Raises:
            Refusal: it is not valid.
        """
        number, active = action.number, lanes_of(lanes)
        operands: list[Any] = []
        try:
            check_warpgroup(warp, worker.warps, active)
            if action.operation != OPERATION:
                return ()
            if number not in self._products:
                self._products[number] = warpgroup_product(action)
            memory = range(worker.shared_base, worker.shared_end)
            operands = [read(worker, *each) for each in sources]
            return check_operands(self._products[number], operands, warp % WARPS, memory)
        except Misuse as misuse:
            thread = warp * LANES + int(active.argmax())
            what = misuse.what
            if misuse.kind == "out of bounds" and any(
                holds_rank(int(each[0]), worker.rank) for each in operands[:-1]
            ):
                what += (
                    f". The leading offset may hold bits of the block's rank, {worker.rank}: mask "
                    "the shared address to 18 bits"
                )
            raise Refusal(misuse.kind, what, number, thread, "", 0) from None
