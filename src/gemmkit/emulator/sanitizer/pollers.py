"""`Pollers`: warps that ask for a flag again and again, which are to see each value that it takes.

A warp that waits for too small a count goes on too early only if it looks between two releases. So
a warp that writes a flag hands its turn to those that poll it.
"""

from __future__ import annotations

from gemmkit.emulator.machine.worker import Worker

# A block and a warp of it.
Asker = tuple[int, int]
# The block that has a flag in its shared memory, or −1, and the address.
Flag = tuple[int, int]
# Beyond so many instructions of warps it forgets who asks.
_MOST = 1 << 16


class Pollers:
    """Those of one launch."""

    def __init__(self) -> None:
        self._last: dict[tuple[Asker, int], Flag] = {}
        self._asking: dict[Flag, dict[Asker, None]] = {}

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
            self._asking.setdefault(flag, {})[asker] = None
        elif writes:
            others = self._asking.pop(flag, {})
            others.pop(asker, None)
            if others:
                worker.hand_over(list(others))
