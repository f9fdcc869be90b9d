"""`Timeline`: the predicted stages of one block alone on an SM, for the first steps along k.

Its durations are those of `model`, its order of events that of `warp_time`. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.block_steps import lay_out
from gemmkit.analysis.stages import Fetch, Lane, Step, Steps
from gemmkit.gpu import GpuSpec
from gemmkit.problem import GemmProblem

# Iterations of the loop along k that are drawn.
SHOWN = 8

_MEMORY = ("global loads", "cp.async")


@dataclass(frozen=True, slots=True)
class Interval:
    """A stage from `start` to `end`, in cycles from the start of the block.

    `tile` is the iteration along k that it serves, counted from 0; None for none or several.
    `cause` is what a wait is for. `share` is the share of the interval in which multiply-adds
    issue.
    """

    lane: Lane
    start: float
    end: float
    tile: int | None = None
    cause: str = ""
    share: float = 0.0

    @property
    def cycles(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Timeline:
    """The predicted stages of the first block of a launch, alone on an SM with cold caches.

    `iterations` of the loop along k take `iteration_cycles` each and `k_step` steps of k; the first
    `shown` begin at `loop_start` and end at `cut`, where `intervals` continue with the write-back.
    One iteration may be several turns of the loop, which ptxas has unrolled. `ahead` is how many
    tiles are fetched before the first is multiplied. `multiplying` is the share of an iteration in
    which multiply-adds issue, `waiting` those of waits in which none do, by cause; the rest is for
    other instructions, shared memory and the latency of dependent instructions. `rows`,
    `columns` and `k` are the block's extents. `loops` says whether there is a loop along k; if not,
    an iteration is one of a loop over results, or the whole block.
    """

    kernel: str
    board: str
    clock_mhz: float
    rows: int
    columns: int
    k: int
    k_step: float
    loops: bool
    ahead: int
    iterations: float
    shown: int
    iteration_cycles: float
    loop_start: float
    cut: float
    end: float
    multiplying: float
    waiting: dict[str, float]
    intervals: tuple[Interval, ...]

    @property
    def left_out(self) -> float:
        """Iterations that are not drawn."""
        return max(self.iterations - self.shown, 0.0)

    def microseconds(self, cycles: float) -> float:
        """Cycles of the boost clock as microseconds."""
        return cycles / self.clock_mhz

    def in_lane(self, lane: Lane) -> list[Interval]:
        """The intervals of one kind, by time."""
        return [each for each in self.intervals if each.lane == lane]


def block_timeline(
    profile: BlockProfile,
    problem: GemmProblem,
    spec: GpuSpec,
    *,
    name: str = "",
    shown: int = SHOWN,
) -> Timeline:
    """The timeline of a profiled block.

    Args:
        profile: of the kernel on this problem and board.
        problem: what the launch computes; for groups the mean k counts.
        spec: the board.
        name: the kernel's name in the timeline; by default that of the profile.
        shown: iterations of the loop along k to draw.

    Raises:
        UsageError: the block's register count is unknown.
    """
    steps = lay_out(profile, problem, spec)
    shown = max(1, min(shown, int(steps.iterations)))
    tiles = max(shown, round(steps.iterations))
    fetches = [replace(each, tile=tile) for tile, each in enumerate(steps.prologue_fetches)]
    fetches = fetches[:tiles] if steps.ahead else [replace(each, tile=None) for each in fetches]
    intervals = [replace(_interval(each, 0.0, 0), tile=None) for each in steps.prologue]
    start = steps.prologue_cycles
    fill = fetches[0].arrival - _first_wait(steps) if steps.ahead and fetches else start
    if fill > start:
        # The model counts no wait for the first tile in a loop that finds it fetched.
        intervals.append(Interval("wait", start, fill, 0, steps.fetched_by))
        start = fill
    cut = start + shown * steps.cycles
    for turn in range(shown):
        base = start + turn * steps.cycles
        intervals += [_interval(each, base, turn) for each in steps.iteration]
        fetch = steps.fetch
        if fetch is not None and turn + steps.ahead < tiles:
            arrival = base + fetch.arrival
            fetches.append(Fetch(max(base + fetch.start, 0.0), arrival, turn + steps.ahead))
    intervals = _with_fetches(intervals, fetches, cut)
    intervals += [_interval(each, cut, 0) for each in steps.epilogue]
    return Timeline(
        kernel=name or profile.plan.kernel,
        board=spec.name,
        clock_mhz=spec.clock_mhz,
        rows=profile.rows,
        columns=profile.columns,
        k=problem.mean_k,
        k_step=_k_step(profile, problem, steps),
        loops=steps.loops,
        ahead=steps.ahead,
        iterations=steps.iterations,
        shown=shown,
        iteration_cycles=steps.cycles,
        loop_start=start,
        cut=cut,
        end=cut + steps.epilogue_cycles,
        multiplying=steps.multiplying / max(steps.cycles, 1.0),
        waiting=_shares(steps),
        intervals=tuple(sorted(intervals, key=lambda each: (each.start, each.lane))),
    )


def _first_wait(steps: Steps) -> float:
    """When an iteration has waited for the tile that it stores or multiplies first; 0 if it does
    not."""
    uses = [each.start for each in steps.iteration if each.lane in ("shared store", "multiply")]
    return max(
        (
            each.end
            for each in steps.iteration
            if each.lane == "wait" and each.cause in _MEMORY and each.end <= min(uses, default=0.0)
        ),
        default=0.0,
    )


def _k_step(profile: BlockProfile, problem: GemmProblem, steps: Steps) -> float:
    """Steps of k in an iteration."""
    if not steps.loops:
        return problem.mean_k
    return problem.mean_k * profile.tiles / max(steps.iterations, 1.0)


def slots(intervals: Iterable[Interval]) -> list[int]:
    """A slot for each interval, so that no two in one slot overlap; as few as possible.

    Args:
        intervals: by start.
    """
    ends: list[float] = []
    found = []
    for each in intervals:
        free = next((slot for slot, end in enumerate(ends) if end <= each.start), len(ends))
        if free == len(ends):
            ends.append(0.0)
        ends[free] = each.end
        found.append(free)
    return found


def _interval(step: Step, base: float, turn: int) -> Interval:
    tile = None if step.offset is None else turn + step.offset
    return Interval(step.lane, base + step.start, base + step.end, tile, step.cause, step.share)


def _shares(steps: Steps) -> dict[str, float]:
    """The share of each cause of waits in an iteration, the largest first."""
    found: dict[str, float] = {}
    for each in steps.iteration:
        if each.lane == "wait":
            found[each.cause] = found.get(each.cause, 0.0) + (each.end - each.start) / steps.cycles
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _with_fetches(
    intervals: Sequence[Interval], fetches: Sequence[Fetch], cut: float
) -> list[Interval]:
    """The intervals and those of fetches, which end when their tile is stored or multiplied at the
    latest.

    If the block waits for a tile, the end of the wait is its arrival.
    """
    found = list(intervals)
    for fetch in fetches:
        own = [each for each in found if fetch.tile is not None and each.tile == fetch.tile]
        stored = [each.end for each in own if each.lane == "shared store"]
        multiplied = [each.start for each in own if each.lane == "multiply"]
        use = min([cut, *multiplied, *([max(stored)] if stored else [])])
        waits = [
            place
            for place, each in enumerate(found)
            if each.lane == "wait"
            and each.cause in _MEMORY
            and each.tile in (None, fetch.tile)
            and fetch.start < each.end <= use + 1.0
        ]
        arrival = min(fetch.arrival, use)
        if waits and use < cut:
            last = max(waits, key=lambda place: found[place].end)
            arrival = found[last].end
            found[last] = replace(found[last], tile=fetch.tile)
        if arrival > fetch.start:
            found.append(Interval("fetch", fetch.start, arrival, fetch.tile))
    return found
