"""What a block does before its loop along k, in one iteration of it, and after it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.code_regions import Region, loop_around, regions_of
from gemmkit.analysis.demand import multiplies
from gemmkit.analysis.machine import Machine
from gemmkit.analysis.model import SegmentTime, block_segments
from gemmkit.analysis.piece_time import SHORTEST_WAIT, PieceTime, piece_time
from gemmkit.analysis.stages import (
    Fetch,
    Lane,
    Part,
    Spot,
    Step,
    Steps,
    grouped,
    shifted,
    stretches_of,
)
from gemmkit.analysis.warp_time import Issued, copies_of, issued_in, machine_load_stall
from gemmkit.gpu import GpuSpec
from gemmkit.jit.issue_order import LoadStall
from gemmkit.problem import GemmProblem


def lay_out(profile: BlockProfile, problem: GemmProblem, spec: GpuSpec) -> Steps:
    """The stages of a block.

    Raises:
        UsageError: the block's register count is unknown.
    """
    machine, times = block_segments(profile, problem, spec)
    return _Layout(profile, machine, {each.segment.head: each for each in times}).steps()


@dataclass(frozen=True, slots=True)
class _Placed:
    """A piece in the block's time, per turn of what is drawn around it.

    `lead` is the cycles from the issue of the first load to the end of the piece, if the piece ends
    with a wait for loads that ptxas has placed late.
    """

    time: PieceTime
    multiplying: float
    lead: float = 0.0


class _Layout:
    """The parts of one block."""

    def __init__(
        self, profile: BlockProfile, machine: Machine, times: dict[int, SegmentTime]
    ) -> None:
        self.profile, self.machine, self.times = profile, machine, times
        self.executed = profile.executed_at[1] / profile.warps
        self.regions = [
            each for each in regions_of(profile) if any(piece[0] in times for piece in each.pieces)
        ]
        self.loop = self._tile_loop()
        self.inside = [
            each
            for each in self.regions
            if each is not self.loop and each.loops and each.body < self.loop.body
        ]
        # The first instruction of the loop along k, which parts what is before from what is after.
        self.first = min(map(self._first, [self.loop, *self.inside]))
        self.ahead = self._ahead()

    # --- which loop, and which tile --------------------------------------------------------

    def _tile_loop(self) -> Region:
        """The smallest loop that multiplies and loads from global memory; without one, the region
        that multiplies most."""
        main = max(self.regions, key=lambda each: (self._multiplying(each), each.loops))
        region = main
        while region.loops:
            within = [each for each in self.regions if each.loops and each.body <= region.body]
            if any(map(self._fetches, within)):
                return region
            place = loop_around(self.regions, region)
            if place is None:
                break
            region = self.regions[place]
        return main

    def _multiplying(self, region: Region) -> float:
        """Cycles of a region's multiply-adds in the whole block."""
        found = [self.times[piece[0]] for piece in region.pieces if piece[0] in self.times]
        return sum(each.turns * each.multiplying for each in found)

    def _fetches(self, region: Region) -> list[int]:
        """A region's loads of operands from global memory."""
        return [number for piece in region.pieces for number in piece if self._is_fetch(number)]

    def _is_fetch(self, number: int) -> bool:
        action, cost = self.profile.actions[number], self.profile.costs.get(number)
        if action.operation == "copy_async":
            return True
        return cost is not None and (cost.space, cost.kind, cost.written) == (
            "global",
            "load",
            False,
        )

    def _turns(self, region: Region) -> float:
        heads = [piece[0] for piece in region.pieces if piece[0] in self.times]
        return max(self.times[head].turns for head in heads)

    def _first(self, region: Region) -> int:
        return min(self.profile.flow.blocks[block].start for block in region.blocks)

    def _ahead(self) -> int:
        """Tiles that are fetched before the loop."""
        own = [self.loop, *self.inside]
        within = self._fetched(own) / max(float(self.executed[self.loop.pieces[0][0]]), 1e-9)
        around = [each for each in self.regions if self.loop.body < each.body]
        passes = max([1.0, *(float(self.executed[each.pieces[0][0]]) for each in around)])
        others = [each for each in self.regions if not any(each is one for one in own)]
        before = self._fetched(others, self.first) / passes
        return max(1, round(before / within)) if before and within else 0

    def _fetched(self, regions: Sequence[Region], end: float = math.inf) -> float:
        """Executions of these regions' fetches, of instructions before `end`."""
        numbers = [number for each in regions for number in self._fetches(each)]
        return sum(float(self.executed[number]) for number in numbers if number < end)

    # --- the three parts --------------------------------------------------------------------

    def steps(self) -> Steps:
        """All of them."""
        loop, copies = self.loop, copies_of(self.profile, self.loop)
        iterations = self._turns(loop) / copies
        turn, prologue, epilogue = Part(), Part(), Part()
        self._lay(turn, loop, self.inside, iterations, (0, math.inf))
        if loop.loops:
            self._around(prologue, (0, self.first))
            self._around(epilogue, (self.first, math.inf))
        copied = any(
            self.profile.actions[number].operation == "copy_async"
            for each in self.regions
            for number in self._fetches(each)
        )
        return Steps(
            loops=loop.loops and not any(each.lane == "write-back" for each in turn.steps),
            iterations=iterations if loop.loops else 1.0,
            ahead=self.ahead,
            fetched_by="cp.async" if copied else "global loads",
            prologue=tuple(each for each in prologue.steps if each.lane != "multiply"),
            prologue_cycles=prologue.clock,
            prologue_fetches=grouped(prologue.fetches, max(self.ahead, 1)),
            iteration=tuple(turn.steps),
            cycles=turn.clock,
            fetch=next(iter(grouped(turn.fetches, 1)), None),
            multiplying=turn.multiplying,
            epilogue=tuple(each for each in epilogue.steps if each.lane != "multiply"),
            epilogue_cycles=epilogue.clock,
        )

    def _around(self, part: Part, numbers: tuple[float, float]) -> None:
        """What is executed around the loop along k, of the instructions with these numbers."""
        low, high = numbers
        own = [self.loop, *self.inside]
        others = [each for each in self.regions if not any(each is one for one in own)]
        around = [each for each in others if not each.loops or self.loop.body < each.body]
        # Loops of their own, such as one that starts the first copies.
        apart = [
            each
            for each in others
            if not any(each is one for one in around) and low <= self._first(each) < high
        ]
        for region in around:
            turns = max(1.0, self._turns(region)) if region.loops else 1.0
            self._lay(part, region, apart, turns, numbers)
            apart = []
        for region in apart:
            self._lay_loop(part, region, 1.0)

    def _lay(
        self,
        part: Part,
        region: Region,
        inside: Sequence[Region],
        turns: float,
        numbers: tuple[float, float],
    ) -> None:
        """One of the turns of a region, of instructions with these numbers, and loops in it."""
        left = sorted(inside, key=self._first)
        for piece, placed in zip(region.pieces, self._placed(region, turns), strict=True):
            if placed is None:
                continue
            spots = []
            for start, end in stretches_of(placed.time, numbers):
                while left and self._first(left[0]) < max(piece):
                    first = self._first(left[0])
                    before = [
                        placed.time.at(each.time + each.slots)
                        for each in placed.time.issued
                        if each.number < first
                    ]
                    at = min(max([start, *before]), end)
                    spots.append(Spot(start, at, part.clock - start))
                    part.clock += at - start
                    self._lay_loop(part, left.pop(0), turns)
                    start = at
                spots.append(Spot(start, end, part.clock - start))
                part.clock += end - start
            self._emit(part, placed, spots, numbers)
        for each in left:
            self._lay_loop(part, each, turns)

    def _lay_loop(self, part: Part, region: Region, turns: float) -> None:
        """All turns of a loop per turn of what is around it, in one stretch."""
        made = [each for each in self._placed(region, turns) if each is not None]
        start = part.clock
        part.clock += sum(each.time.cycles for each in made)
        amount = sum(each.multiplying for each in made)
        part.multiplying += amount
        numbers = {each.number for placed in made for each in placed.time.issued}
        waited = [wait for placed in made for wait in placed.time.waits]
        cycles = sum(each.end - each.start for each in waited)
        count = max(1, round(self._turns(region) / turns))
        turn = (part.clock - start) / count
        # The first turn stores when its loads have arrived.
        stored = start + cycles / count
        if self._count(numbers, "multiply"):
            share = amount / max(part.clock - start, 1e-9)
            part.steps.append(Step("multiply", start, part.clock, 0, share=share))
        elif waited:
            cause = max(waited, key=lambda each: each.end - each.start).cause or ""
            part.steps.append(Step("wait", part.clock - cycles, part.clock, None, cause))
        stores = self._count(numbers, "shared store")
        if stores:
            part.steps.append(Step("shared store", stored, part.clock, 0))
        if self._count(numbers, "fetch"):
            late = 0.0 if stores else self.machine.l1_latency + self.machine.dram_latency
            begins = [start + each * turn for each in range(count)]
            part.fetches += [Fetch(each, each + turn + late) for each in begins]

    def _placed(self, region: Region, turns: float) -> list[_Placed | None]:
        """The pieces of a region in the block's time, as many turns of it as there are per turn of
        what is around; None for one that is not executed."""
        walked = issued_in(self.profile, self.machine, self.machine.dram_latency, region)
        late = LoadStall(0.0, 0.0)
        if region.loops and region.innermost and self._fetches(region):
            late = machine_load_stall(self.profile, self.machine, self.machine.dram_latency, region)
        found: list[_Placed | None] = []
        for piece, (length, issued) in zip(region.pieces, walked, strict=True):
            time = self.times.get(piece[0])
            if time is None or not length:
                found.append(None)
                continue
            share = time.turns / turns
            made = piece_time(
                self.profile.actions,
                issued,
                length=length,
                latency=time.segment.latency * share,
                cycles=time.cycles * share,
                busy=time.busy * share,
            )
            found.append(_Placed(made, time.multiplying * share))
        return _with_late_loads(found, late)

    def _count(self, numbers: Iterable[int], lane: Lane) -> int:
        return sum(self._lane(number) == lane for number in numbers)

    def _lane(self, number: int) -> Lane | None:
        """The lane of an instruction."""
        action, cost = self.profile.actions[number], self.profile.costs.get(number)
        if multiplies(action.form)[0] is not None:
            return "multiply"
        if self._is_fetch(number):
            return "fetch"
        if cost is not None and cost.kind in ("store", "atomic"):
            return "shared store" if cost.space == "shared" else "write-back"
        return None

    def _emit(
        self,
        part: Part,
        placed: _Placed,
        spots: Sequence[Spot],
        numbers: tuple[float, float],
    ) -> None:
        """The stages of a piece."""
        time, (low, high) = placed.time, numbers
        chosen: defaultdict[tuple[Lane, int | None], list[Issued]] = defaultdict(list)
        for each in time.issued:
            lane = self._lane(each.number)
            if lane is not None and low <= each.number < high:
                chosen[lane, each.age if lane == "shared store" else None].append(each)
        part.multiplying += placed.multiplying
        for (lane, age), issued in chosen.items():
            if lane == "fetch":
                part.fetches += self._fetched_by(placed, issued, spots)
                continue
            runs = shifted(time.runs(issued), spots)
            total = sum(each.end - each.start for each in runs)
            offset = 0 if lane == "multiply" else None if age is None else self.ahead - age
            share = min(placed.multiplying / total, 1.0) if lane == "multiply" and total else 0.0
            part.steps += [Step(lane, each.start, each.end, offset, "", share) for each in runs]
        part.steps += [
            Step("wait", each.start, each.end, None, each.cause or "")
            for each in shifted(time.waits, spots)
        ]

    def _fetched_by(
        self, placed: _Placed, issued: Sequence[Issued], spots: Sequence[Spot]
    ) -> Iterator[Fetch]:
        far = self.machine.l1_latency + self.machine.dram_latency
        for each in issued:
            at = placed.time.at(each.time)
            spot = next((one for one in spots if at <= one.end), spots[-1])
            start = min(max(at, spot.start), spot.end) + spot.offset
            # A copy that the traced block did not make has no cost, but takes as long.
            latency = each.latency if each.number in self.profile.costs else far
            if placed.lead:
                end = spots[-1].end + spots[-1].offset
                yield Fetch(max(start, end - placed.lead), end)
            else:
                yield Fetch(start, start + latency)


def _with_late_loads(found: Sequence[_Placed | None], late: LoadStall) -> list[_Placed | None]:
    """The pieces, with the waits for loads that ptxas has moved to the end of the loop.

    The walk of the PTX does not see them. They are in the time of the model, and drawn at the end
    of the piece that is idle for longest.
    """
    made = [each for each in found if each is not None]
    waits = [wait for each in made for wait in each.time.waits]
    missed = late.cycles - sum(
        wait.end - wait.start for wait in waits if wait.cause == "global loads"
    )
    if missed < SHORTEST_WAIT or not made:
        return list(found)
    idlest = max(made, key=lambda each: each.time.idle)
    time, last = idlest.time.with_last_wait(missed)
    # Instructions between the loads and the wait take longer with all warps of the block.
    lead = last + max(late.lead - late.cycles, 0.0) * time.stretch if last else 0.0
    changed = _Placed(time, idlest.multiplying, lead)
    return [changed if each is idlest else each for each in found]
