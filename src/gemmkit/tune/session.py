"""`Session`: the search for one problem's best configuration on one GPU, within its budget."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from gemmkit.bench.workload import Workload
from gemmkit.devices.device import TimedDevice
from gemmkit.errors import DeviceError, GemmkitError, TuningError, UsageError
from gemmkit.jit.binary import Binary
from gemmkit.problem import GemmProblem
from gemmkit.record import TimeRecord
from gemmkit.trials.entry import Entry, Outcome, ProblemClass, gpu_key
from gemmkit.trials.store import Store, by_time, fastest
from gemmkit.tune.compiling import Compilations, CompileOne
from gemmkit.tune.finals import FINAL, SEMIFINAL, close, looks
from gemmkit.tune.progress import TuneProgress
from gemmkit.tune.result import Tuned
from gemmkit.tune.search import InOrder, Strategy, make_strategy
from gemmkit.tune.space import (
    Allowed,
    Candidate,
    Identity,
    Space,
    entry_identity,
    identity_of,
    likely,
    refined,
    search_space,
    unrefined,
)
from gemmkit.tune.trial import Bench, Compiled, Planned
from gemmkit.version import __version__

FINALS_SHARE, MOST_FINALS_SECONDS, LEAST_FINALS_SECONDS = 0.12, 6.0, 0.2
# The share of the budget that goes to trials, however long it took to get ready for them.
LEAST_SHARE = 0.25
# Of the time for trials, what is kept for further keys of so many leaders: one after the other.
REFINING_SHARE, REFINED = 0.3, 6
# Binaries of that many leaders are held; others come from the compiler's cache again.
HELD = 32
# Jobs that wait for a compiler thread, so that none is ever idle.
WAITING = 2
# Winners of that many similar problems are tried first, and so many that dispatch ranks highest.
RELATIVES, LIKELY = 4, 10


@dataclass(frozen=True)
class Options:
    """How to search: seconds for each problem, strategy and seed, and how much to leave out."""

    budget: float = 60.0
    strategy: str = "model"
    seed: int = 0
    within: float = 3.0


class Session:
    """Tunes one problem: compiles in the background, times what is ready, stores each trial.

    Raises:
        DeviceError: the matrices do not fit on the device.
        UsageError: no kernel takes the problem.
    """

    def __init__(
        self,
        problem: GemmProblem,
        device: TimedDevice,
        store: Store,
        allowed: Sequence[Allowed],
        options: Options,
        *,
        compile_one: CompileOne,
        progress: TuneProgress,
    ) -> None:
        self.begun = time.monotonic()
        self.problem, self.device, self.store, self.options = problem, device, store, options
        self.gpu, self.kind = gpu_key(device.spec), ProblemClass.of(problem)
        self.epilogue = str(problem.epilogue)
        self.progress, self._compile = progress, compile_one
        # The reference and the space take a second or two each: side by side.
        with ThreadPoolExecutor(1) as beside:
            searching = beside.submit(
                search_space, problem, device.spec, allowed, within=options.within
            )
            self.bench = Bench(Workload(problem, device, options.seed), device)
            self.space: Space = searching.result()
        if not self.space.candidates:
            why = self.space.nothing_left
            raise UsageError(f"no configuration is left to try for {problem.shape} ({why})")
        self.known = {
            entry_identity(each): each
            for each in store.entries(self.gpu, self.kind, epilogue=self.epilogue)
            if each.origin == "measured" and store.staleness(each) is None
        }
        self._add(self._refined_earlier(allowed))
        self.likely = tuple(likely(problem, device.spec, allowed, LIKELY))
        self._add(self.likely)
        self.entries: dict[int, Entry] = {}
        self.held: dict[int, Compiled] = {}
        # What came of this run's trials.
        self.outcomes: dict[int, Outcome] = {}
        self.ready = time.monotonic()

    # --- the search -------------------------------------------------------------------------

    def run(self) -> Tuned:
        """Search until the budget is spent or nothing is left, then let the leaders compete.

        Raises:
            KeyboardInterrupt: after `progress.finished` received what stands in the store.
            TuningError: the store cannot be written, or the device is lost.
            CompilerMissing: there is no compiler.
        """
        self.progress.began(self.space, len(self.known))
        strategy = self._strategy()
        try:
            ended = self._search(strategy, self._deadline(1 - REFINING_SHARE))
            self._search(InOrder(self._refinements()), self._deadline(1))
            self._finals()
        except KeyboardInterrupt:
            self.progress.finished(self._result("interrupted"))
            raise
        result = self._result(ended)
        self.progress.finished(result)
        return result

    def _strategy(self) -> Strategy:
        """The strategy, told of what earlier runs have tried."""
        candidates = self.space.candidates
        places = {each.identity: number for number, each in enumerate(candidates)}
        strategy = make_strategy(
            self.options.strategy, candidates, self.options.seed, self._first(places)
        )
        for identity, entry in self.known.items():
            number = places.get(identity)
            if number is not None:
                self.entries[number] = entry
                strategy.tell(number, entry.brief_us if entry.outcome == "ok" else None)
        return strategy

    def _first(self, places: Mapping[Identity, int]) -> list[int]:
        """What has good reasons to be tried first.

        That is what was the best here before the source or compiler changed, or elsewhere; the
        winners of the most similar problems; what dispatch would choose, so that tuning never ends
        with less, however small the budget; and the kernels' own configurations.
        """
        here = self.store.entries(self.gpu, self.kind)
        others = sorted(self.store.winners(self.gpu), key=self._unlike)
        kernels = {each.kernel.name: each.kernel for each in self.space.candidates}
        wishes: list[Identity] = []
        for entry in (*by_time(here)[:RELATIVES], *others[:RELATIVES]):
            # Keys that the kernel has got since, or lost, do no harm.
            with suppress(KeyError, UsageError):
                kernel = kernels[entry.kernel]
                wishes.append(identity_of(kernel, unrefined(kernel, entry.config)))
        wishes += [each.identity for each in self.likely]
        wishes += [identity_of(kernel, kernel.default) for kernel in kernels.values()]
        return [places[wish] for wish in dict.fromkeys(wishes) if wish in places]

    def _unlike(self, entry: Entry) -> float:
        """How far another problem is, in factors of two."""
        other, own = entry.problem, self.kind
        sizes = ((other.m, own.m), (other.n, own.n), (other.k, own.k))
        names = ("layout", "dtype", "out_dtype", "precision", "scales")
        away: int = sum(getattr(other, name) != getattr(own, name) for name in names)
        return away + sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in sizes)

    def _deadline(self, share: float) -> float:
        """When that share of the trials' time is over."""
        budget = self.options.budget
        # Inputs and references of the largest problems alone take longer than a short budget.
        trials = max(self.begun + budget - self._finals_seconds - self.ready, LEAST_SHARE * budget)
        return self.ready + share * trials

    def _refinements(self) -> list[int]:
        """The leaders with other values of the keys that were left alone so far, as candidates."""
        leaders = [number for _, number in sorted(looks(self.entries))[:REFINED]]
        candidates = self.space.candidates
        return self._add(
            each
            for number in leaders
            for each in refined(candidates[number], self.problem, self.device.spec)
        )

    def _refined_earlier(self, allowed: Sequence[Allowed]) -> Iterator[Candidate]:
        """What an earlier run has tried beyond the space."""
        kernels = {each.kernel.name: each.kernel for each in allowed}
        for entry in self.known.values():
            kernel = kernels.get(entry.kernel)
            if kernel is not None and kernel.refinements and entry.predicted_us is not None:
                yield Candidate(kernel, entry.tile_config, entry.predicted_us)

    def _add(self, candidates: Iterable[Candidate]) -> list[int]:
        """Append to the space what is not there yet; the numbers of that."""
        old = self.space.candidates
        places = {each.identity for each in old}
        new = {each.identity: each for each in candidates if each.identity not in places}
        self.space = replace(self.space, candidates=(*old, *new.values()))
        return list(range(len(old), len(old) + len(new)))

    def _search(self, strategy: Strategy, deadline: float) -> str:
        with Compilations(self.device.spec.arch, self._compile) as compilations:
            waiting: dict[int, Planned] = {}
            exhausted = False
            while True:
                while not exhausted and len(waiting) < compilations.workers + WAITING:
                    number = strategy.ask()
                    if number is None:
                        exhausted = True
                        break
                    waiting[number] = self._planned(number)
                    compilations.submit(number, waiting[number].plan)
                if not waiting:
                    return "all tried"
                ready = compilations.next(deadline - time.monotonic())
                if ready is None or time.monotonic() > deadline:
                    return "budget"
                number, binary = ready
                entry = self._try(waiting.pop(number), binary)
                strategy.tell(number, entry.time_us if entry.outcome == "ok" else None)

    def _try(self, planned: Planned, binary: Binary | GemmkitError) -> Entry:
        """One trial, stored whatever comes of it."""
        if isinstance(binary, GemmkitError):
            return self._keep(planned, "uncompiled", reason=str(binary))
        compiled = Compiled(planned, binary)
        try:
            wrong = self.bench.check(compiled)
            if wrong:
                return self._keep(planned, "wrong", reason=wrong)
            to_beat = min((time_us for time_us, _ in looks(self.entries)), default=None)
            times = self.bench.look(compiled, to_beat)
        except (DeviceError, TuningError) as error:
            entry = self._keep(planned, "unlaunched", reason=str(error))
            if isinstance(error, TuningError):
                raise
            return entry
        self._hold(compiled)
        return self._keep(planned, "ok", times)

    def _hold(self, compiled: Compiled) -> None:
        """Keep a binary for the finals; those of the slowest go."""
        self.held[compiled.planned.number] = compiled
        if len(self.held) > HELD:
            places = [number for number in self.held if number in self.entries]
            del self.held[max(places, key=lambda number: self.entries[number].brief_us or 0.0)]

    def _keep(
        self,
        planned: Planned,
        outcome: Outcome,
        times: TimeRecord | None = None,
        *,
        reason: str = "",
        final: bool = False,
        look_us: float | None = None,
    ) -> Entry:
        """Store what came of a trial, and tell."""
        candidate, freshness = planned.candidate, self.store.freshness
        entry = Entry(
            gpu=self.gpu,
            problem=self.kind,
            kernel=candidate.kernel.name,
            config=candidate.config.as_dict(),
            outcome=outcome,
            source=freshness.source(candidate.kernel.name) or "",
            compiler=freshness.compiler or "",
            epilogue=self.epilogue,
            time_us=times.median if times else None,
            p20_us=times.p20 if times else None,
            p80_us=times.p80 if times else None,
            samples=times.samples if times else 0,
            final=final,
            look_us=look_us,
            predicted_us=candidate.estimate_us,
            reason=reason,
            measured_at=time.time(),
            gemmkit=__version__,
        )
        self.store.put(entry)
        self.entries[planned.number] = entry
        self.outcomes[planned.number] = outcome
        self.progress.tried(entry, len(self.outcomes), self._leader)
        return entry

    # --- the finals -------------------------------------------------------------------------

    @property
    def _finals_seconds(self) -> float:
        """What is kept of the budget for them."""
        share = FINALS_SHARE * self.options.budget
        return min(max(share, LEAST_FINALS_SECONDS), MOST_FINALS_SECONDS)

    @property
    def _leader(self) -> Entry | None:
        return fastest(self.entries.values())

    def _finals(self) -> None:
        """The leaders compete in turn; the fastest, once they are proven, again and for longer.

        Who enters the semifinal is decided by looks, and by the finals of earlier runs; who enters
        the final by the semifinal alone.
        """
        left = max(self.begun + self.options.budget - time.monotonic(), self._finals_seconds)
        looked = sorted(looks(self.entries))
        entered = close(looked, SEMIFINAL)
        earlier = sorted(
            (entry.time_us, number)
            for number, entry in self.entries.items()
            if entry.final and entry.outcome == "ok" and entry.time_us is not None
        )
        entered += [number for _, number in earlier[: FINAL.most] if number not in entered]
        times = self._in_turn(entered, SEMIFINAL.share * left, final=False)
        proven = close(sorted(zip(times, entered, strict=True)), FINAL, self._proven)
        if not proven:
            others = [each for each in looked if each[1] not in entered]
            proven = close(others, FINAL, self._proven)
        self._in_turn(proven, FINAL.share * left, final=True)

    def _in_turn(self, numbers: Sequence[int], seconds: float, *, final: bool) -> list[float]:
        """Time candidates in turn and store the times; their medians."""
        if not numbers:
            return []
        self.progress.finals(len(numbers))
        looks = [self.entries[number].brief_us for number in numbers]
        leaders = [self._compiled(number) for number in numbers]
        times = self.bench.in_turn(leaders, seconds)
        for each, time_of, look_us in zip(leaders, times, looks, strict=True):
            self._keep(each.planned, "ok", time_of, final=final, look_us=look_us)
        return [each.median for each in times]

    def _compiled(self, number: int) -> Compiled:
        found = self.held.get(number)
        if found is None:
            planned = self._planned(number)
            found = Compiled(planned, self._compile(planned.plan, self.device.spec.arch))
            self.held[number] = found
        return found

    def _planned(self, number: int) -> Planned:
        candidate = self.space.candidates[number]
        plan = candidate.kernel.plan(self.problem, candidate.config, self.device.spec)
        return Planned(number, candidate, plan)

    def _proven(self, number: int) -> bool:
        """Whether a finalist is right for random inputs too; one that is not is stored as wrong."""
        compiled = self._compiled(number)
        wrong = self.bench.check_thoroughly(compiled)
        if wrong:
            self._keep(compiled.planned, "wrong", reason=wrong, final=True)
        return not wrong

    # --- the result -------------------------------------------------------------------------

    def _result(self, ended: str) -> Tuned:
        leaders = by_time(self.entries.values())
        return Tuned(
            problem=self.kind,
            epilogue=self.epilogue,
            gpu=self.gpu,
            board=self.device.spec.name,
            best=leaders[0] if leaders else None,
            runner_up=leaders[1] if len(leaders) > 1 else None,
            tried=dict(Counter(self.outcomes.values())),
            known=len(self.known),
            untried=len(self.space.candidates) - len(self.entries),
            left_out=dict(self.space.left_out),
            examples=dict(self.space.examples),
            excluded=dict(self.space.excluded),
            total=self.space.total,
            ended=ended,
            seconds=time.monotonic() - self.begun,
            budget_seconds=self.options.budget,
            strategy=self.options.strategy,
            seed=self.options.seed,
            store=str(self.store.path),
            environment=self.bench.workload.environment,
        )
