"""`RegisterPool`: the registers that the warps of one block have, as `setmaxnreg` moves them.

A block gets, at launch, what the compiler allots to each of its threads, and no more later (PTX
ISA, setmaxnreg): `inc` waits until other warps have released enough.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.shadow_layout import CAUSED
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.emulator.sanitizer.agreement import Agreement, Identities
from gemmkit.emulator.sanitizer.clocks import Clocks
from gemmkit.emulator.sanitizer.warpgroup_findings import WarpgroupFindings


class RegisterPool:
    """The registers of one block."""

    def __init__(
        self,
        block: int,
        warps: range,
        clocks: Clocks,
        request: LaunchRequest,
        found: WarpgroupFindings,
    ) -> None:
        """`warps` are the block's as the clocks count them. Only the warps are compared where it is
        not known what each thread gets at launch, or where ptxas leaves the instructions out."""
        registers = request.registers if not request.setmaxnreg_ignored else None
        self._ignored = request.setmaxnreg_ignored
        self._block, self._first, self._clocks, self._found = block, warps.start, clocks, found
        self._registers = registers
        self._counts = np.full(len(warps), registers or 0)
        self._agreement = Agreement(len(warps), Identities())
        # The warps that asked for more than there was then, with the instruction and their time.
        self._waiting: dict[int, tuple[int, int]] = {}

    def set(self, warp: int, action: Action) -> None:
        """A warp executes `setmaxnreg`."""
        number, count = action.number, action.sources[0]
        assert isinstance(count, Immediate)
        other = self._agreement.differs(warp, number, count.value)
        if other is not None:
            self._found.disagree(self._block, (number, warp), other, "setmaxnreg")
        if self._ignored:
            self._found.setmaxnreg_ignored(self._block, number, warp, self._ignored)
        if self._registers is None:
            return
        had, grows = int(self._counts[warp]), ".inc" in action.form.opcode
        if (had > count.value) if grows else (had < count.value):
            self._found.wrong_direction(self._block, number, warp, count.value, had)
        self._counts[warp] = count.value
        if self._counts.sum() <= self._registers * len(self._counts):
            # What these registers come from must not have waited for those that they go to.
            for waiting, (where, time) in self._waiting.items():
                if self._clocks.of[self._first + warp, CAUSED, self._first + waiting] >= time:
                    self._found.released_too_late(self._block, where, waiting, (number, warp))
            self._waiting.clear()
        elif grows:
            self._waiting.setdefault(warp, (number, self._clocks.now(self._first + warp)))

    def end(self) -> None:
        """All warps have ended."""
        for number, warp, other in self._agreement.absences():
            self._found.absent(self._block, number, warp, other, "setmaxnreg")
        for warp, (number, _) in self._waiting.items():
            assert self._registers is not None
            wanted = int(self._counts.sum()) * LANES, _listed(self._counts)
            had = self._registers * len(self._counts) * LANES
            self._found.too_many_registers(self._block, number, warp, wanted, had)
            return


def _listed(counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    """Such as `128 × 40 + 256 × 232`: threads, and registers of each."""
    runs = [(len([*run]) * LANES, count) for count, run in groupby(counts.tolist())]
    return " + ".join(f"{threads} × {count}" for threads, count in runs)
