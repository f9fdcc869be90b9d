"""`CopyPipeline`: the circular buffer that bulk copies fill, read from what the warps of a block
signal, and the time that a stage takes with it.

A copy into a stage cannot begin before the stage is released, and a stage is not released before
others have arrived or have been multiplied: so only some stages are in flight at a time, and a
stage takes no less than the latency of a load divided by their number. How many they are depends on
the order of copies, waits and arrivals in the kernel. It is found by replaying these, in which each
warp does what it did in the traced run as early as its waits allow.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median

from gemmkit.emulator.watching import WatchedSignal

# A barrier and one of its phases, counted from 0.
_Phase = tuple[tuple[int, int], int]
# What a stage takes with the latency of loads over what it takes without, from which on latency is
# what limits it.
_MORE = 1.02
# How often a stage is filled in a run that tells it from an operand that is loaded once.
_OFTEN = 3


@dataclass(frozen=True, slots=True)
class CopyCosts:
    """What the replay of a block's signals takes, in cycles.

    `latency` is that of a bulk copy besides its transfer, which the copies of a block share at
    `bytes_per_cycle`; `handshake` passes between a phase's end and the warps that waited for it.
    `products` has, by instruction, how long one issue of it holds the pipe of a scheduler, of which
    an SM has `schedulers`; the instructions in `asynchronous` do not hold up their warp.
    """

    latency: float
    bytes_per_cycle: float = float("inf")
    handshake: float = 0.0
    products: Mapping[int, float] = field(default_factory=dict)
    asynchronous: Collection[int] = ()
    schedulers: int = 4


@dataclass(frozen=True, slots=True)
class CopyTime:
    """Cycles per stage: `stage` as replayed, and `alone` what the latency of its loads is of these.

    `limits` says whether a stage would take less if loads had no latency; then both are the same.
    """

    stage: float
    alone: float
    limits: bool


@dataclass(frozen=True, slots=True, eq=False)
class CopyPipeline:
    """A circular buffer for operands that bulk copies fill.

    `stages` is its depth, of which `in_flight` can be loaded at a time: it is less where a stage is
    released only when the next one has arrived. Into each come `stage_bytes`, of which the block's
    own copies bring `issued_bytes`; the rest comes from other blocks of its cluster. `share` of all
    that it copies goes into stages. `signals` are those of the block, or of its cluster, whose
    blocks have `warps` each.
    """

    stages: int
    in_flight: float
    stage_bytes: float
    issued_bytes: float
    share: float
    signals: tuple[WatchedSignal, ...]
    warps: int
    barriers_per_stage: int
    arrays: frozenset[str]

    def time(self, costs: CopyCosts) -> CopyTime | None:
        """How long a stage takes in the long run; None where the traced run is too short."""
        transfer = self.issued_bytes / costs.bytes_per_cycle
        found, least, alone = (
            self._period(each)
            for each in (
                costs,
                replace(costs, latency=0.0),
                CopyCosts(costs.latency + transfer, handshake=costs.handshake),
            )
        )
        if found is None or least is None or alone is None:
            return None
        limits = found > _MORE * least
        return CopyTime(found, found if limits else alone, limits)

    def _period(self, costs: CopyCosts) -> float | None:
        """Cycles from stage to stage, over the last round of what is in flight."""
        arrivals = _Replay(self.signals, self.warps, costs, self.arrays).arrivals()
        per_round = max(round(self.in_flight * self.barriers_per_stage), 1)
        # The first fill of the buffer begins at once.
        if len(arrivals) - 1 - per_round < self.stages * self.barriers_per_stage:
            return None
        return (arrivals[-1] - arrivals[-1 - per_round]) / per_round * self.barriers_per_stage


def copy_pipeline(
    signals: Sequence[WatchedSignal], warps: int, arrays: Collection[str]
) -> CopyPipeline | None:
    """The circular buffer of the first of the blocks that ran.

    Args:
        signals: of a block, or of all blocks of a cluster, in the order in which they ran.
        warps: of a block.
        arrays: names of the operands' arrays in global memory.

    Returns:
        None if no bulk copies of these arrays signal mbarriers, or if the run is too short to show
        how many stages are in flight.
    """
    filled = Filled.of(signals, warps, arrays)
    if filled is None:
        return None
    # Those that arrive at a time were in flight together.
    rounds = Counter(filled.arrivals)
    sizes = [rounds[at] for at in sorted(rounds)]
    if len(sizes) < 3:
        return None
    return CopyPipeline(
        stages=filled.barriers // filled.barriers_per_stage,
        # The first round fills all of the buffer, the last one may not be whole.
        in_flight=mean(sizes[1:-1]) / filled.barriers_per_stage,
        stage_bytes=filled.stage_bytes,
        issued_bytes=filled.issued_bytes,
        share=filled.share,
        signals=tuple(signals),
        warps=warps,
        barriers_per_stage=filled.barriers_per_stage,
        arrays=frozenset(arrays),
    )


@dataclass(frozen=True, slots=True)
class Filled:
    """What bulk copies of operands bring to the first of the blocks that ran.

    `barriers` of its mbarriers are signaled by them, `barriers_per_stage` in each stage. Into each
    stage come `stage_bytes`; its own copies bring `issued_bytes`, also to other blocks. `share` of
    all that it copies goes into stages, and the rest is loaded once. `arrivals` are those of the
    stages where a load has a latency of 1, and nothing else takes time.
    """

    barriers: int
    barriers_per_stage: int
    stage_bytes: float
    issued_bytes: float
    share: float
    arrivals: tuple[float, ...]

    @classmethod
    def of(
        cls, signals: Sequence[WatchedSignal], warps: int, arrays: Collection[str]
    ) -> Filled | None:
        """See `copy_pipeline`; None without such copies."""
        barriers: set[tuple[int, int]] = set()
        # Copies that a warp issues without a wait in between fill one stage. Before its first wait
        # they may fill several.
        together: list[set[tuple[int, int]]] = []
        latest: dict[int, set[tuple[int, int]]] = {}
        arrived = issued = kept = 0
        replay = _Replay(signals, warps, CopyCosts(1.0), arrays)
        for each in signals:
            if each.kind == "wait":
                latest.pop(each.warp, None)
            if not each.nbytes or each.array not in arrays:
                continue
            own = {barrier for barrier in each.barriers if barrier[0] == 0}
            if own & replay.filled_once:
                kept += each.nbytes if each.warp < warps else 0
                continue
            barriers |= own
            arrived += each.nbytes * len(own)
            if each.warp < warps and own:
                issued += each.nbytes
                if each.warp not in latest:
                    together.append(set())
                    latest[each.warp] = together[-1]
                latest[each.warp] |= own
        if not issued:
            return None
        arrivals = tuple(replay.arrivals())
        if not arrivals:
            return None
        of_stage = round(median(len(each) for each in together))
        stages = len(arrivals) / of_stage
        share = issued / (issued + kept)
        return cls(len(barriers), of_stage, arrived / stages, issued / stages, share, arrivals)


class _Replay:
    """The signals of some warps, each as early as its waits allow.

    `filled_once` are the first block's barriers for operands that stay, and not for a stage.
    """

    def __init__(
        self,
        signals: Sequence[WatchedSignal],
        warps: int,
        costs: CopyCosts,
        arrays: Collection[str],
    ) -> None:
        self._costs, self._warps = costs, warps
        self._events: defaultdict[int, list[tuple[WatchedSignal, list[_Phase]]]] = defaultdict(list)
        # Copies and arrivals that a phase still lacks, and when the latest of the others was.
        self._missing: Counter[_Phase] = Counter()
        self._latest: defaultdict[_Phase, float] = defaultdict(float)
        self._filled: set[_Phase] = set()
        self._order(signals, arrays)
        self._clock: defaultdict[int, float] = defaultdict(float)
        self._port: defaultdict[int, float] = defaultdict(float)
        self._pipe: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._last: defaultdict[int, float] = defaultdict(float)
        self._groups: defaultdict[int, list[float]] = defaultdict(list)

    def _order(self, signals: Sequence[WatchedSignal], arrays: Collection[str]) -> None:
        """Sort the signals by warp, and tell the phases to which they belong."""
        phases: Counter[tuple[int, int]] = Counter()
        for each in signals:
            if each.kind == "complete":
                phases.update(each.barriers)
                continue
            of = [(barrier, phases[barrier]) for barrier in each.barriers]
            if each.kind == "wait":
                of = [(barrier, phase - 1) for barrier, phase in of if phase]
            elif each.kind in ("copy", "arrive"):
                self._missing.update(of)
                if each.nbytes and each.array in arrays:
                    self._filled.update(phase for phase in of if phase[0][0] == 0)
            self._events[each.warp].append((each, of))
        # What was not complete at the end is awaited by nobody.
        self._filled = {each for each in self._filled if each[1] < phases[each[0]]}
        times = Counter(barrier for barrier, _ in self._filled)
        often = max(times.values(), default=0) >= _OFTEN
        self.filled_once = {each for each in times if often and times[each] == 1}
        self._filled = {each for each in self._filled if each[0] not in self.filled_once}

    def arrivals(self) -> list[float]:
        """When the phases of the first block are complete that copies of operands belong to."""
        self._run()
        return sorted(self._latest[each] for each in self._filled)

    def _run(self) -> None:
        left = {warp: iter(events) for warp, events in self._events.items()}
        ready = [(0.0, warp) for warp in sorted(left)]
        waiting: defaultdict[_Phase, list[int]] = defaultdict(list)
        held: dict[int, tuple[WatchedSignal, list[_Phase]]] = {}
        while ready:
            _, warp = heapq.heappop(ready)
            event = held.pop(warp, None) or next(left[warp], None)
            if event is None:
                continue
            signal, phases = event
            if signal.kind == "wait":
                open_phase = next((each for each in phases if self._missing[each]), None)
                if open_phase is not None:
                    waiting[open_phase].append(warp)
                    held[warp] = event
                    continue
            for phase in self._perform(signal, phases):
                for other in waiting.pop(phase, ()):
                    self._clock[other] = max(self._clock[other], self._latest[phase])
                    heapq.heappush(ready, (self._clock[other], other))
            heapq.heappush(ready, (self._clock[warp], warp))

    def _perform(self, signal: WatchedSignal, phases: Sequence[_Phase]) -> list[_Phase]:
        """Let a warp do what it did; returns the phases that are complete with it."""
        costs, warp, block = self._costs, signal.warp, signal.warp // self._warps
        now = self._clock[warp]
        if signal.kind == "wait":
            for phase in phases:
                now = max(now, self._latest[phase] + costs.handshake)
            self._clock[warp] = now
        elif signal.kind == "copy":
            begin = max(now + costs.latency, self._port[block])
            self._port[block] = begin + signal.nbytes / costs.bytes_per_cycle
            return self._signaled(phases, self._port[block])
        elif signal.kind == "arrive":
            return self._signaled(phases, now)
        elif signal.kind == "multiply":
            pipe = block, warp % costs.schedulers
            cycles = signal.count * costs.products.get(signal.number, 0.0)
            self._pipe[pipe] = self._last[warp] = max(now, self._pipe[pipe]) + cycles
            if signal.number not in costs.asynchronous:
                self._clock[warp] = self._last[warp]
        elif signal.kind == "commit":
            self._groups[warp].append(self._last[warp])
        elif signal.kind == "wait products" and len(self._groups[warp]) > signal.count:
            self._clock[warp] = max(now, self._groups[warp][-1 - signal.count])
        return []

    def _signaled(self, phases: Sequence[_Phase], at: float) -> list[_Phase]:
        complete = []
        for phase in phases:
            self._latest[phase] = max(self._latest[phase], at)
            self._missing[phase] -= 1
            if not self._missing[phase]:
                complete.append(phase)
        return complete
