"""`Knowledge`: what a warp knows of the accesses of other blocks, and how that orders them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gemmkit.emulator.sanitizer.releases import Learned, join

# How an access is ordered before another: fully; except for a fence of the observer; released, but
# not observed; not released; fully, if lanes of its warp had been in step, or those of the
# observer's.
KNOWN, UNFENCED, UNLEARNED, UNRELEASED, APART, AHEAD = range(6)


class Place(NamedTuple):
    """A running warp, as its cluster counts the warps; its block, the first block of the cluster,
    the time of the block's last barrier, and how often the warp's lanes have been in step."""

    block: int
    cluster: int
    warp: int
    barrier: int
    steps: int = 0


class Reached(Protocol):
    """What mbarriers and barriers order before what the running warp does now."""

    def ordered_in_cluster(self) -> list[int]:
        """By warp of the cluster, the time up to which its accesses are ordered before; for the
        running warp the time now."""

    def visible_in_cluster(self) -> list[int]:
        """The same for accesses to global memory that are visible to the asynchronous proxy."""


@dataclass(slots=True)
class Knowledge:
    """For a warp, or all warps of a block: up to when each warp's accesses are fenced, what was
    observed of other blocks, what of that is behind a fence, what of that preceded the last fence,
    which a release passes on, and what preceded the last proxy fence."""

    fenced: list[int]
    seen: Learned = field(default_factory=dict)
    known: Learned = field(default_factory=dict)
    passed_on: Learned = field(default_factory=dict)
    proxied: Learned = field(default_factory=dict)

    def join(self, other: Knowledge) -> None:
        """Learn what another one knows."""
        self.fenced = [max(pair) for pair in zip(self.fenced, other.fenced, strict=True)]
        for mine, theirs in (
            (self.seen, other.seen),
            (self.known, other.known),
            (self.passed_on, other.passed_on),
            (self.proxied, other.proxied),
        ):
            join(mine, theirs)


class Members:
    """What the warps of one cluster know."""

    def __init__(self, warps: int) -> None:
        self.own = [Knowledge([0] * warps) for _ in range(warps)]
        # What each warp knew, from which time on; and how many of these another warp has learned.
        self.history: list[list[tuple[int, Knowledge]]] = [[] for _ in range(warps)]
        self.taken: defaultdict[tuple[int, int], int] = defaultdict(int)
