"""How fast ranks reach each other, by machine: what predictions of transfers are made from.

Rates in `links.json` are of one direction of one GPU, in GB/s (1e9 bytes). Where a figure was not
measured, "source" says what it was taken from.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from importlib.resources import files
from itertools import pairwise

import msgspec

from gemmkit.errors import UsageError
from gemmkit.gpu import GpuSpec


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks' GPUs of one machine.

    `copy_gb_per_s` is what a copy engine moves to a peer, and `copy_us` what a copy with its flag
    takes beside that. `bus` are sizes in MB and the bus bandwidth of NCCL's all-gather there, as
    nccl-tests define it: bytes of the whole · (ranks - 1) / ranks / time; `collective_us` is what
    the smallest takes, and `one_shot_us` a launch that exchanges few bytes. `pair_us` is what a
    transfer between pairs takes beside its bytes, and `slowdown` by how much a product takes longer
    while NCCL's kernels hold multiprocessors, and `copy_slowdown` while copy engines use the memory
    that it reads. `launch_us` is the host's part of a product, and of a call.
    """

    board: str
    ranks: int
    copies: bool
    copy_gb_per_s: float
    copy_us: float
    bus: tuple[tuple[float, float], ...]
    collective_us: float
    one_shot_us: float
    pair_us: float
    slowdown: float
    copy_slowdown: float
    launch_us: float
    source: str

    def bus_gb_per_s(self, nbytes: float) -> float:
        """The bus bandwidth for a size, between those measured by straight lines."""
        size = nbytes / 1e6
        sizes = [each for each, _ in self.bus]
        place = bisect_left(sizes, size)
        if place == 0:
            return self.bus[0][1]
        if place == len(sizes):
            return self.bus[-1][1]
        (low, slow), (high, fast) = list(pairwise(self.bus))[place - 1]
        return slow + (fast - slow) * (size - low) / (high - low)

    def collective_time(self, nbytes: float, ranks: int) -> float:
        """Microseconds of an all-gather to, or a reduce-scatter of, so many bytes on each rank."""
        moved = nbytes * (ranks - 1) / ranks
        return self.collective_us + moved / self.bus_gb_per_s(nbytes) / 1e3

    def one_shot_time(self, nbytes: float) -> float:
        """Microseconds of a launch that writes so many bytes to the other GPUs' memory."""
        return self.one_shot_us + nbytes / self.copy_gb_per_s / 1e3

    def copy_time(self, nbytes: float) -> float:
        """Microseconds until a peer has so many bytes, by a copy engine."""
        return self.copy_us + nbytes / self.copy_gb_per_s / 1e3

    def pair_time(self, nbytes: float) -> float:
        """Microseconds of a transfer between two ranks by the process group."""
        return self.pair_us + nbytes / self.bus_gb_per_s(nbytes) / 1e3


@cache
def known_links() -> tuple[Link, ...]:
    """What `links.json` has."""
    text = files("gemmkit.distributed").joinpath("links.json").read_bytes()
    return msgspec.json.decode(text, type=tuple[Link, ...])


def link_of(board: GpuSpec, ranks: int) -> Link:
    """The figures for ranks of a kind of GPU: those measured with the nearest number of ranks.

    Boards that have none get those of PCI Express.

    Raises:
        UsageError: there are no ranks.
    """
    if ranks < 1:
        raise UsageError(f"ranks = {ranks}: a product is made by 1 rank or more")
    links = known_links()
    alike = [each for each in links if each.board == board.key]
    alike = alike or [each for each in links if each.board == ""]
    return min(alike, key=lambda each: abs(each.ranks - ranks))
