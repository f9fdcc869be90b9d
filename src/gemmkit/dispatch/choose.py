"""`choose`: the kernel and the configuration for a problem on a board, and why.

What was measured goes first: the user's store, the table that ships, the nearest shape in either.
Where none helps, the estimated times of all candidates decide. On the emulator they always do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from gemmkit.dispatch.candidates import size_class
from gemmkit.dispatch.costed import CostedCandidate
from gemmkit.dispatch.entry_words import described, how_measured, is_of
from gemmkit.dispatch.equal_groups import as_batch
from gemmkit.dispatch.prices import BoardPrices, EmulatorPrices, Prices, Ranked
from gemmkit.dispatch.ragged import apart, is_representative, why_for_rows
from gemmkit.dispatch.remembered import Remembered
from gemmkit.dispatch.tuned import (
    Neighbor,
    StoreChoice,
    UserStore,
    Winners,
    opened,
    other_board,
    shipped_table,
)
from gemmkit.dtypes import PRECISIONS, Precision
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.kernels.catalog import alternatives, kernels_for
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import PreparedCopy, TileConfig
from gemmkit.problem import GemmProblem, Shape, read_problem
from gemmkit.trials import changes
from gemmkit.trials.entry import Entry, ProblemClass
from gemmkit.units import microseconds_text

Source = Literal["store", "shipped table", "nearest tuned shape", "heuristic"]

# A neighbor's winner is taken though its estimate is that much longer than the best: it has won.
CREDIT = 1.04
# An estimate that a measurement nearby corrects by more than this is no guide.
MOST_CORRECTION = 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What to launch, and why.

    `kernel` and `config` are to be launched; `reason` says why in a sentence, and `source` where
    that is known from: "store", "shipped table", "nearest tuned shape" or "heuristic".
    `microseconds` are `measured` where this very problem was, with its epilogue and leading
    dimensions; else they are estimated, though the configuration may have won for its like.
    """

    kernel: Kernel
    config: TileConfig
    reason: str
    source: Source
    microseconds: float
    measured: bool = False


def choose(
    problem: Shape, gpu: GpuSpec | str, *, store: StoreChoice = "user", emulated: bool = False
) -> Choice:
    """The kernel and configuration for a problem on a board.

    Args:
        problem: what to compute, or its shape.
        gpu: the board or its name; it need not be in this machine.
        store: "user" for the user's own store of tuned shapes, another store or its path, or None.
        emulated: whether to choose what the emulator runs fastest on the CPU; no store is read
            then.

    Raises:
        UnsupportedProblem: no kernel accepts it; the message says why.
        UsageError: `store` is something else.
        TuningError: there is no store at that path.
    """
    return dispatcher(find_board(gpu), store, emulated).choose(read_problem(problem))


def dispatcher(gpu: GpuSpec, store: StoreChoice = "user", emulated: bool = False) -> Dispatcher:
    """The dispatcher that `choose` asks: one for each board and store.

    Raises:
        UsageError: `store` is none.
        TuningError: there is no store at that path.
    """
    return _dispatcher(gpu, store, emulated)


# All arguments are given: a default that is left out would be another key.
@lru_cache(maxsize=64)
def _dispatcher(gpu: GpuSpec, store: StoreChoice, emulated: bool) -> Dispatcher:
    return Dispatcher(gpu, None if emulated else store, EmulatorPrices(gpu) if emulated else None)


class Dispatcher:
    """Chooses for one board, at its prices or those of the emulator, and remembers what it chose.

    A choice is made once for each problem; trials that this process adds to a store make it choose
    anew, those of other processes count from its next start.

    Raises:
        UsageError: `store` is none.
        TuningError: there is no store at that path.
    """

    def __init__(
        self, gpu: GpuSpec, store: StoreChoice = "user", prices: Prices | None = None
    ) -> None:
        self.gpu, self.prices = gpu, prices or BoardPrices(gpu)
        self._store = UserStore(opened(store), gpu)
        self._seen = changes.count
        self._choices = Remembered(self._decide)

    def choose(self, problem: GemmProblem) -> Choice:
        """The choice for a problem.

        Raises:
            UnsupportedProblem: no kernel takes it; the text says why.
        """
        if changes.count != self._seen:
            self._seen = changes.count
            self._choices.forget()
            self._store.forget()
        return self._choices.of(problem)

    @property
    def choices(self) -> dict[GemmProblem, Choice]:
        """What was chosen for the problems that were asked for, in that order, groups last."""
        return self._choices.asked_for

    @property
    def has_tuned_groups(self) -> bool:
        """Whether anything was measured of products of different shapes."""
        return self._store.has_groups or self._table.has_groups

    @property
    def _table(self) -> Winners:
        return shipped_table(self.gpu) if self.prices.measured else Winners(())

    def ranked(self, problem: GemmProblem, *, ragged: bool = False) -> Iterator[Ranked]:
        """The candidates that take the problem, those with the shortest estimates first; with
        `ragged`, those alone that read where ragged groups end."""
        refused: dict[str, str | None] = {}
        estimates: list[Ranked] = []
        for each in self.prices.candidates(problem):
            name = each.kernel.name
            if ragged and not each.kernel.takes_ragged:
                continue
            if name not in refused:
                refused[name] = each.kernel.accepts(problem, self.gpu)
            if refused[name] is None:
                estimates += self.prices.priced(each, problem)
        # Of equals the first: sorting keeps their order.
        estimates.sort(key=lambda each: each.estimate.microseconds)
        for ranked in estimates:
            costed = ranked.costed
            if costed.kernel.supports(problem, costed.config, self.gpu) is None:
                yield ranked

    def costed(self, kernel: str, config: TileConfig) -> CostedCandidate:
        """Any configuration, on this board."""
        return self.prices.costed(kernel, config)

    # --- sources ----------------------------------------------------------------------------

    def _decide(self, problem: GemmProblem) -> Choice:
        table = self._table
        if problem.ragged and not is_representative(problem):
            return self._for_rows(problem)
        if problem.prepared and not any(map(bool, self._prepared_copies(problem))):
            return self._choices.of_stand_in(replace(problem, prepared=""))
        known = self._known(problem, table)
        if known is not None and self._still_wins(known, problem):
            return known
        served = self._served_precision(problem)
        if served != problem.precision:
            return self._choices.of_stand_in(replace(problem, precision=served))
        best = self._best(problem)
        if best is None:
            raise UnsupportedProblem(f"no kernel takes {problem.shape}: {self._refusal(problem)}")
        if problem.groups is not None:
            return self._estimated(problem, best)
        of_class, epilogue = ProblemClass.of(problem), str(problem.epilogue)
        neighbors = self._store.neighbors(of_class, epilogue)
        neighbors += table.neighbors(of_class, epilogue)
        # Other layouts are a guide where nothing of this one is near.
        alike = [each for each in neighbors if each.entry.problem.layout == problem.layout]
        neighbors = alike or neighbors
        found = self._near(problem, neighbors, best)
        found = found or self._estimated(problem, best, near=bool(neighbors))
        if known is not None and not self._still_wins(found, problem):
            # What reads no copies of prepared operands is as fast without, where all is measured.
            return self._choices.of_stand_in(replace(problem, prepared=""))
        return found

    def _for_rows(self, problem: GemmProblem) -> Choice:
        """What any division of ragged groups' rows gets, with the time for this one; what groups
        with a table get, where no kernel reads where these end."""
        if not problem.results:
            return self._choices.of_stand_in(apart(problem))
        typical = problem.representative
        try:
            found = self._choices.of_stand_in(typical)
        except UnsupportedProblem:
            # This division may have fewer rows, and a refusal is told in its own numbers.
            if self._best(apart(problem)) is None:
                refusal = self._refusal(apart(problem))
                raise UnsupportedProblem(f"no kernel takes {problem.shape}: {refusal}") from None
            return self._choices.of_stand_in(apart(problem))
        if not found.kernel.takes_ragged or found.kernel.supports(problem, found.config, self.gpu):
            return self._choices.of_stand_in(apart(problem))
        costed = self.costed(found.kernel.name, found.config)
        here, there = costed.estimate(problem), costed.estimate(typical)
        reason = why_for_rows(here) if found.source == "heuristic" else found.reason
        # Where it was measured, by what it took there.
        time = here.microseconds * (found.microseconds / there.microseconds)
        return replace(found, reason=reason, microseconds=time, measured=False)

    def _best(self, problem: GemmProblem) -> Ranked | None:
        """The shortest estimate; of ragged groups, of a kernel that reads where they end if there
        is one: the table that others read is made anew at each call."""
        reading = next(self.ranked(problem, ragged=True), None) if problem.ragged else None
        return reading or next(self.ranked(problem), None)

    def _prepared_copies(self, problem: GemmProblem) -> Iterator[tuple[PreparedCopy, ...]]:
        """Of each kernel that takes the problem, what it reads in place of prepared operands."""
        seen: set[str] = set()
        for each in self.prices.candidates(problem):
            kernel = each.kernel
            if (
                kernel.name not in seen
                and kernel.supports(problem, each.config, self.gpu) is None
                and problem.results
            ):
                seen.add(kernel.name)
                yield kernel.launch(problem, each.config, self.gpu).prepared

    def _still_wins(self, found: Choice, problem: GemmProblem) -> bool:
        """Whether what is the fastest without prepared operands is so with them: what copies them
        is, for it saves these copies, and all that is slower saves no more."""
        kernel, config = found.kernel, found.config
        return not problem.prepared or bool(kernel.launch(problem, config, self.gpu).prepared)

    def _served_precision(self, problem: GemmProblem) -> Precision:
        """The lowest precision of all kernels that take the problem: where none multiplies in the
        lower one that it allows, what was measured in the higher is what counts."""
        if problem.precision == "ieee" or problem.dtype != "float32":
            return problem.precision
        kernels = {each.kernel.name: each.kernel for each in self.prices.candidates(problem)}
        able = [each for each in kernels.values() if not each.accepts(problem, self.gpu)]
        named = (each.precision for each in able)
        served = max(named, key=PRECISIONS.index, default=problem.precision)
        # Where k is short, a kernel may miss the bound of its own precision, and keep that of a
        # lower one.
        higher = replace(problem, precision=served)
        return problem.precision if any(each.accepts(higher, self.gpu) for each in able) else served

    def _known(self, problem: GemmProblem, table: Winners) -> Choice | None:
        """What was measured for problems of exactly this class.

        Groups of equal products fall back to what was measured for a strided batch of them.
        """
        # Sorting thousands of groups takes long.
        if problem.groups is None or self._store.has_groups or table.has_groups:
            of_class, epilogue = ProblemClass.of(problem), str(problem.epilogue)
            entry = self._store.best(of_class, epilogue)
            if entry is not None and (found := self._measured(problem, entry, "store")):
                return found
            entry = table.best(of_class, epilogue)
            if entry is not None and (found := self._measured(problem, entry, "shipped table")):
                return None if self._fell_behind(problem, entry, found) else found
        batch = as_batch(problem)
        found = self._known(batch, table) if batch is not None else None
        return None if found is None else self._with_its_mainloop(found, problem)

    def _with_its_mainloop(self, found: Choice, problem: GemmProblem) -> Choice | None:
        """What was chosen for another problem, with a kernel that has the same mainloop and takes
        this one."""
        for each in self.prices.candidates(problem):
            kernel = each.kernel
            if kernel.mainloop is found.kernel:
                refused = kernel.supports(problem, found.config, self.gpu)
                return None if refused else replace(found, kernel=kernel, measured=False)
        return None

    def _measured(self, problem: GemmProblem, entry: Entry, source: Source) -> Choice | None:
        costed = self._entered(problem, entry)
        if costed is None or entry.time_us is None:
            return None
        where = "in your store" if source == "store" else f"in the table for {self.gpu.name}"
        if other := other_board(entry, self.gpu):
            where = f"in the table for {other.name}, which has the same SMs,"
        won = f"the fastest {where} for {entry.problem}"
        if other is None and is_of(entry, problem):
            speed = f", {problem.flops / entry.time_us / 1e6:.1f} TFLOP/s" if problem.flops else ""
            reason = f"{won}: {microseconds_text(entry.time_us)}{speed}"
            return Choice(
                costed.kernel, costed.config, reason, source, entry.time_us, measured=True
            )
        here = costed.estimate(problem).microseconds * self._correction(costed, entry)
        unprepared = ", no operand prepared" if problem.prepared else ""
        how = how_measured(entry, problem)
        reason = (
            f"{won}, measured with {how}{unprepared}; here it is estimated at "
            f"{microseconds_text(here)}"
        )
        return Choice(costed.kernel, costed.config, reason, source, here)

    def _fell_behind(self, problem: GemmProblem, entry: Entry, found: Choice) -> bool:
        """Whether what won on a board with other memory is limited by memory here, and promises
        less than another does."""
        if other_board(entry, self.gpu) is None:
            return False
        here = self.costed(found.kernel.name, found.config).estimate(problem)
        if not here.waits_for_memory:
            return False
        best = self._best(problem)
        return best is not None and found.microseconds > best.estimate.microseconds * CREDIT

    def _correction(self, costed: CostedCandidate, entry: Entry) -> float:
        """What an entry took over what it is estimated to take where it was measured."""
        if other := other_board(entry, self.gpu):
            costed = CostedCandidate(costed.candidate, other)
        expected = costed.estimate(entry.problem.problem).microseconds
        return (entry.time_us or 0.0) / expected if expected else 1.0

    def _near(self, problem: GemmProblem, neighbors: list[Neighbor], best: Ranked) -> Choice | None:
        """The winner nearby that promises most here, unless the heuristic's best promises more.

        Its estimate here is corrected by what it took there over what it was estimated to take.
        """
        found: tuple[float, CostedCandidate, Entry] | None = None
        for near in neighbors:
            costed = self._entered(problem, near.entry)
            if costed is None or not near.entry.time_us:
                continue
            correction = self._correction(costed, near.entry)
            if not 1 / MOST_CORRECTION <= correction <= MOST_CORRECTION:
                continue
            here = costed.estimate(problem).microseconds * correction
            if found is None or here < found[0]:
                found = here, costed, near.entry
        limit = best.estimate.microseconds * CREDIT
        if found is None or found[0] > limit:
            return None
        here, costed, entry = found
        reason = (
            f"nearest tuned shape {entry.problem}: its winner is estimated at "
            f"{microseconds_text(here)} here, by what it took there, and the heuristic's best at "
            f"{microseconds_text(best.estimate.microseconds)}"
        )
        if here > best.estimate.microseconds:
            reason += f", which was not measured and is less than {CREDIT - 1:.0%} shorter"
        return Choice(costed.kernel, costed.config, reason, "nearest tuned shape", here)

    def _estimated(self, problem: GemmProblem, best: Ranked, *, near: bool = False) -> Choice:
        seen, costed = best.estimate, best.costed
        tuned = "winners of tuned shapes nearby promise less" if near else "no tuned shape is near"
        reason = f"{size_class(problem)} problem, {tuned}: {described(seen)}"
        return Choice(
            costed.kernel,
            costed.config,
            reason if problem.results else "C is empty: there is nothing to compute",
            "heuristic",
            seen.microseconds,
        )

    def _entered(self, problem: GemmProblem, entry: Entry) -> CostedCandidate | None:
        """What an entry means, if this version knows it and it takes the problem."""
        try:
            costed = self.costed(entry.kernel, entry.tile_config)
            refused = costed.kernel.supports(problem, costed.config, self.gpu)
        except (UsageError, TypeError, KeyError):
            return None
        return costed if refused is None else None

    def _refusal(self, problem: GemmProblem) -> str:
        """That of the last candidate which takes the types at least, and what would do."""
        candidates = self.prices.candidates(problem)
        able = [each for each in candidates if problem.dtype in each.kernel.dtypes]
        if candidates:
            last = (able or candidates)[-1]
            reason = last.kernel.supports(problem, last.config, self.gpu)
        else:
            kernel = kernels_for([problem])[0]
            reason = kernel.supports(problem, kernel.default, self.gpu)
        return (reason or "each has its reason") + alternatives(problem, self.gpu)
