"""Warp-specialized kernels: some warps have the TMA bring operands, others multiply by wgmma.

What the first do takes none of the others' time. A team of warps multiplies the steps of a tile and
then finishes its results: while it does, nothing multiplies, unless another team has a tile of its
own at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.emulator.isa.warpgroup_forms import OPERATION


@dataclass(frozen=True, slots=True)
class TileTimes:
    """Cycles of a block: `once` until the first operands of its first tile are there, `steps` along
    k of all its `tiles`, and `finishing` the results of one of them; `teams` of warps take tiles in
    turn."""

    once: float
    steps: float
    finishing: float
    tiles: float
    teams: int

    @property
    def exposed(self) -> float:
        """Cycles in which results are finished and nothing is multiplied.

        One team alone finishes between the steps of its tiles. Of several, all but the last finish
        while others multiply, if that takes no longer than these tiles' steps.
        """
        own = math.ceil(self.tiles / self.teams)
        alone = own * (self.steps / self.tiles + self.finishing) - self.steps
        return alone if self.teams == 1 else max(self.finishing, alone)

    @property
    def total(self) -> float:
        """Cycles of all."""
        return self.once + self.steps + self.exposed


def multiplying_warps(profile: BlockProfile) -> frozenset[int] | None:
    """The instructions that warps execute which multiply by wgmma; None if none does, or if no
    other warps bring their operands.

    These are the blocks of code from which a wgmma is reached, or which are reached from one.
    """
    flow, executed = profile.flow, profile.executed_at[1]
    if not profile.copied_bytes_per_k:
        return None
    count = len(flow.blocks)
    running = {at for at, each in enumerate(flow.blocks) if executed[each.start] > 0}
    multiply = {at for at in running if any(_multiplies(profile, at))}
    after = {at: [to for to in flow.blocks[at].successors if to < count] for at in running}
    before: dict[int, list[int]] = {at: [] for at in running}
    for at, successors in after.items():
        for to in successors:
            if to in before:
                before[to].append(at)
    own = _reached(multiply, after) | _reached(multiply, before)
    others = {
        at
        for at in running - own
        for number in range(flow.blocks[at].start, flow.blocks[at].end)
        if profile.actions[number].operation.startswith("bulk_")
    }
    if not multiply or not others:
        return None
    return frozenset(
        number for at in own for number in range(flow.blocks[at].start, flow.blocks[at].end)
    )


def _multiplies(profile: BlockProfile, at: int) -> Iterable[bool]:
    block = profile.flow.blocks[at]
    return (profile.actions[each].operation == OPERATION for each in range(block.start, block.end))


def _reached(start: Iterable[int], edges: dict[int, list[int]]) -> set[int]:
    found = set(start)
    left = list(found)
    while left:
        for to in edges.get(left.pop(), ()):
            if to not in found:
                found.add(to)
                left.append(to)
    return found
