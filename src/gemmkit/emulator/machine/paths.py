"""`Paths`: the diverged lanes of one warp, and switching between them while some wait."""

from __future__ import annotations

from gemmkit.emulator.codegen.layout import WARP
from gemmkit.emulator.machine.worker import Worker


class Paths:
    """The lanes of a warp that run, and those on its stack.

    An entry of the stack can run if none of its lanes is in an entry above it or among those that
    run: lanes that wait to reconverge are below all of the lanes that they wait for.
    """

    def __init__(self, worker: Worker, warp: int) -> None:
        self._header, self._stack = worker.header(warp), worker.stack(warp)

    @property
    def running(self) -> int:
        """The lanes that run."""
        return int(self._header[WARP["mask"] // 4])

    def ready(self) -> list[tuple[int, int]]:
        """The entries that can run, the lowest first: the place on the stack, and the lanes."""
        above, found = self.running, []
        exited = int(self._header[WARP["exited"] // 4])
        for place in reversed(range(self._depth)):
            lanes = int(self._stack[place, 2]) & ~exited
            if lanes and not lanes & above:
                found.append((place, lanes))
            above |= lanes
        return found[::-1]

    def switch(self, place: int, block: int) -> None:
        """Run the lanes of an entry; those that ran continue at a basic block, before any others of
        the stack."""
        fields = [WARP[name] // 4 for name in ("block", "reconvergence", "mask")]
        exited = self._header[WARP["exited"] // 4]
        ran = self._header[fields]
        ran[0] = block
        chosen = self._stack[place, :3].copy()
        chosen[2] &= ~exited
        depth = self._depth
        self._stack[place : depth - 1] = self._stack[place + 1 : depth].copy()
        self._stack[depth - 1, :3] = ran
        self._header[fields] = chosen

    def stop(self, block: int, instruction: int) -> None:
        """The lanes that run continue at a basic block, after they waited at an instruction."""
        self._header[WARP["block"] // 4] = block
        self._header[WARP["instruction"] // 4] = instruction

    @property
    def _depth(self) -> int:
        return int(self._header[WARP["depth"] // 4])
