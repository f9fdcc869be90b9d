"""What each rank of a host calls, in memory that all of them read: so that they notice at once if
one of them makes another product than the others.

On GPUs, a rank that has seen a product before asks nobody. Without the log, ranks of which one
alone has new shapes would send what the others do not expect.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gemmkit.errors import DistributedError

# Calls that are remembered of each rank: as many as one may be ahead of another and still be
# compared with it.
_KEPT = 1024

# Said of a call for which ranks compare what they ask for.
ASKING = 0

# Words of a rank's text, in which it says why it does not take part.
_TEXT = 64

_PAUSE = 5e-5
_LOW = 0xFFFFFFFF


class _Group(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def agree(self, facts: str) -> Sequence[str]: ...


class CallLog:
    """The calls of one group.

    A rank compares its calls with those of two others, so that a log of many ranks takes no longer
    than one of three; what one finds, all are told in their next call.

    Args:
        memory: `log_bytes(ranks)` bytes that all ranks map, zeros at first.
        rank: this one.
        ranks: how many there are.
        timeout: the seconds for which one rank waits for another.
    """

    def __init__(self, memory: memoryview, rank: int, ranks: int, timeout: float) -> None:
        self.rank, self._timeout = rank, timeout
        words = memory.cast("Q")
        every = [words[each * _KEPT : (each + 1) * _KEPT] for each in range(ranks)]
        self._failed = words[ranks * _KEPT : ranks * _KEPT + 1]
        first = 8 * (ranks * _KEPT + 1)
        self._texts = [
            memory[first + 8 * _TEXT * each : first + 8 * _TEXT * (each + 1)]
            for each in range(ranks)
        ]
        self._own = every[rank]
        self._peers = {place: each for place, each in enumerate(every) if place != rank}
        near = {(rank - 1) % ranks, (rank + 1) % ranks} - {rank}
        self._near = [(place, every[place]) for place in sorted(near)]
        # Up to which call each rank's have been those of this one.
        self._alike = [0] * ranks
        self._calls = 0

    def note(self, digest: int) -> None:
        """Enter a call: the same number on all ranks for the same product, of 32 bits.

        Raises:
            DistributedError: another rank makes another product, or has made one in a call since
                the last look.
        """
        calls = self._calls = self._calls + 1
        self._own[calls % _KEPT] = (calls & _LOW) << 32 | digest
        alike = self._alike
        for rank, peer in self._near:
            if alike[rank] != calls - 1 or peer[calls % _KEPT] != self._own[calls % _KEPT]:
                self._compare(rank, peer)
            else:
                alike[rank] = calls
        if self._failed[0]:
            raise DistributedError(
                f"another rank found that ranks make different products in call {self._failed[0]} "
                f"of their group{self._told()}"
            )

    def _compare(self, rank: int, peer: memoryview) -> None:
        """Compare a peer's calls with this rank's, as far as it has come."""
        calls = self._calls
        known = max(self._alike[rank], calls - _KEPT)
        while known < calls:
            after = known + 1
            found = peer[after % _KEPT]
            ahead = ((found >> 32) - after) & _LOW
            if ahead >= 1 << 31 or found == 0:
                # It has not come to this call.
                break
            known = self._alike[rank] = after
            if ahead == 0 and found != self._own[after % _KEPT]:
                self._failed[0] = after
                raise self._differ(rank, after, found & _LOW)
        self._alike[rank] = known

    def _differ(self, peer: int, call: int, digest: int) -> DistributedError:
        own = self._own[call % _KEPT] & _LOW
        told = self._told()
        if told:
            return DistributedError(f"in call {call} of their group{told}")
        if digest == ASKING:
            said = f"rank {peer} makes a product for the first time that rank {self.rank} repeats"
        elif own == ASKING:
            said = f"rank {self.rank} makes a product for the first time that rank {peer} repeats"
        else:
            said = f"ranks {self.rank} and {peer} repeat different products"
        return DistributedError(
            f"in call {call} of their group, {said}: if the shares of plain tensors change on some "
            "ranks alone, give shape=(m, n, k) of all ranks together, or use DTensors"
        )

    def _told(self) -> str:
        """What ranks say that do not take part."""
        texts = [bytes(each).rstrip(b"\0").decode(errors="replace") for each in self._texts]
        return "".join(f"; {each}" for each in texts if each)

    def _tell(self, text: str) -> None:
        own = self._texts[self.rank]
        own[:] = text.encode()[: len(own)].ljust(len(own), b"\0")

    def ask(self, refusal: str = "") -> None:
        """Enter a call for which ranks compare what they ask for, and wait until all have come.

        Args:
            refusal: why this rank does not take part in it: for ranks that do not compare.

        Raises:
            DistributedError: another rank does not compare, or does not come in time.
        """
        if refusal:
            self._tell(refusal)
        self.note(ASKING)
        end = time.monotonic() + self._timeout
        for rank, peer in self._peers.items():
            # Of ranks that are not compared otherwise, this call alone counts.
            self._alike[rank] = max(self._alike[rank], self._calls - 1)
            self._compare(rank, peer)
            while self._alike[rank] < self._calls:
                if time.monotonic() > end:
                    raise DistributedError(
                        f"rank {rank} did not make call {self._calls} of its group within "
                        f"{self._timeout:g} s"
                    )
                time.sleep(_PAUSE)
                self._compare(rank, peer)
        if refusal:
            # All ranks compare, and are told there.
            self._tell("")


def log_bytes(ranks: int) -> int:
    """The memory of a log."""
    return 8 * (ranks * (_KEPT + _TEXT) + 1)


def shared_log(group: _Group, timeout: float) -> CallLog | None:
    """A log for a group whose ranks are on one host; all of them call it together.

    Returns:
        None on all ranks if one of them cannot map the memory.
    """
    nbytes, path, memory = log_bytes(group.size), "", None
    if group.rank == 0:
        with suppress(OSError):
            folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
            handle, path = tempfile.mkstemp(prefix="gemmkit-calls-", dir=folder)
            os.ftruncate(handle, nbytes)
            os.close(handle)
    path = group.agree(path)[0]
    try:
        with Path(path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), nbytes)
    except (OSError, ValueError):
        memory = None
    every = group.agree("" if memory is None else "mapped")
    if group.rank == 0 and path:
        with suppress(OSError):
            Path(path).unlink()
    if memory is None or not all(every):
        return None
    return CallLog(memoryview(memory), group.rank, group.size, timeout)
