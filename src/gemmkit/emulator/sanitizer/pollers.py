"""`Pollers`: warps that ask for a flag again and again, which are to see each value that it takes.

A warp that waits for too small a count goes on too early only if it looks between two releases. So
a warp that writes a flag hands its turn to those that poll it. And one that has polled in vain for
a while lets other warps run, since each poll takes a call of Python.
"""

from __future__ import annotations

from gemmkit.emulator.machine.worker import Worker

# A block and a warp of it.
Asker = tuple[int, int]
# The block that has a flag in its shared memory, or −1, and the address.
Flag = tuple[int, int]
# Beyond so many instructions of warps it forgets who asks.
_MOST = 1 << 16
# A warp's turn ends after so many polls of a flag.
_IN_VAIN = 64


class Pollers:
    """Those of one launch."""

    def __init__(self) -> None:
        self._last: dict[tuple[Asker, int], Flag] = {}
        # With how often they have asked.
        self._asking: dict[Flag, dict[Asker, int]] = {}

    def accessed(
        self, worker: Worker, warp: int, number: int, flag: Flag, *, reads: bool, writes: bool
    ) -> None:
        """A warp of the running block has performed a strong access by an instruction."""
        asker, asks = (worker.number, warp), False
        if reads:
            if len(self._last) > _MOST:
                self._last.clear()
                self._asking.clear()
            asks = self._last.get((asker, number)) == flag
            self._last[asker, number] = flag
        if asks:
            # So does an atomic in vain, as of a lock.
            askers = self._asking.setdefault(flag, {})
            askers[asker] = askers.get(asker, 0) + 1
            if askers[asker] % _IN_VAIN == 0:
                worker.end_turn_of_warp()
        elif writes:
            others = self._asking.pop(flag, {})
            others.pop(asker, None)
            if others:
                worker.hand_over(list(others))
