"""In which order candidates are tried: strategies that are asked for the next and told its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, get_args

import numpy as np

from gemmkit.errors import UsageError, unknown_name
from gemmkit.tune.space import Candidate
from gemmkit.tune.surrogate import Surrogate, key_steps

StrategyName = Literal["model", "random", "exhaustive"]

# How far below its mean a candidate's time may lie to be hoped for, in standard deviations.
HOPE = 1.0
# Hopes so close are the same: a tenth of a percent.
ALIKE = 1e-3
# Every other turn is a neighbor of one of so many leaders; the last of ten is left to chance.
LEADERS = 3
RESTART_EVERY = 10
# Configurations whose keys differ by so many values, together, are neighbors.
NEIGHBORHOOD = 2.0


class Strategy(Protocol):
    """Decides what is tried next. Candidates go by their number in the space."""

    def ask(self) -> int | None:
        """The next candidate, each once; None when there are no more."""

    def tell(self, number: int, microseconds: float | None) -> None:
        """What came of a candidate: its time, or None where it failed."""


class InOrder:
    """Candidates in an order that is fixed from the start."""

    def __init__(self, order: Sequence[int]) -> None:
        self._left = list(reversed(order))
        self._told: set[int] = set()

    def ask(self) -> int | None:
        """The next that nothing is known of."""
        while self._left:
            number = self._left.pop()
            if number not in self._told:
                return number
        return None

    def tell(self, number: int, microseconds: float | None) -> None:  # noqa: ARG002
        """Not to be asked again."""
        self._told.add(number)


class ModelGuided:
    """By estimate at first; then by a surrogate of the times, around the leaders, and by luck.

    The best of each kernel by estimate comes first, so that no kernel is left out for a wrong
    estimate of its own. Then the turns go round: the candidate whose time may be the shortest by
    the surrogate, an untried neighbor of one of the three leaders (the one that the surrogate
    likes most), and now and then one of the better half at random.
    """

    def __init__(
        self, candidates: Sequence[Candidate], seed: int, first: Sequence[int] = ()
    ) -> None:
        self._candidates = candidates
        self._random = np.random.default_rng(seed)
        self._surrogate = Surrogate(candidates)
        self._open = np.ones(len(candidates), bool)
        self._times: dict[int, float] = {}
        self._asked = 0
        best_of_each: dict[str, int] = {}
        for number, each in enumerate(candidates):
            best_of_each.setdefault(each.kernel.name, number)
        self._first = list(dict.fromkeys([*first, *best_of_each.values()]))
        self._steps = key_steps(candidates)
        self._hoped = self._surrogate.log_estimates

    def ask(self) -> int | None:
        """The next candidate."""
        if not self._open.any():
            return None
        number = self._choose()
        self._open[number] = False
        self._asked += 1
        return number

    def tell(self, number: int, microseconds: float | None) -> None:
        """Learn from a time; a failure only closes its candidate."""
        self._open[number] = False
        if microseconds is not None:
            self._times[number] = microseconds
            self._surrogate.tell(number, microseconds)
            means, deviations = self._surrogate.predict()
            self._hoped = means - HOPE * deviations

    def _choose(self) -> int:
        while self._first:
            number = self._first.pop(0)
            if self._open[number]:
                return number
        turn = self._asked % RESTART_EVERY
        if turn == RESTART_EVERY - 1:
            return self._by_luck()
        if turn % 2:
            neighbor = self._neighbor()
            if neighbor is not None:
                return neighbor
        return self._most_hoped(np.flatnonzero(self._open))

    def _most_hoped(self, among: np.typing.NDArray[np.intp]) -> int:
        """The one that may be the fastest; which of equals is left to chance."""
        hoped = self._hoped[among]
        best = among[hoped <= hoped.min() + ALIKE]
        return int(self._random.choice(best))

    def _neighbor(self) -> int | None:
        leaders = sorted(self._times, key=self._times.__getitem__)[:LEADERS]
        still = np.flatnonzero(self._open)
        for leader in leaders:
            distance = np.abs(self._steps[still] - self._steps[leader]).sum(axis=1)
            near = still[distance <= NEIGHBORHOOD]
            if near.size:
                return self._most_hoped(near)
        return None

    def _by_luck(self) -> int:
        still = np.flatnonzero(self._open)
        ranked = still[np.argsort(self._hoped[still], kind="stable")]
        return int(self._random.choice(ranked[: max(1, ranked.size // 2)]))


def _exhaustive(candidates: Sequence[Candidate], seed: int, first: Sequence[int]) -> Strategy:  # noqa: ARG001
    return InOrder(list(dict.fromkeys([*first, *range(len(candidates))])))


def _random(candidates: Sequence[Candidate], seed: int, first: Sequence[int]) -> Strategy:  # noqa: ARG001
    return InOrder([int(each) for each in np.random.default_rng(seed).permutation(len(candidates))])


_STRATEGIES: dict[StrategyName, Callable[[Sequence[Candidate], int, Sequence[int]], Strategy]] = {
    "model": ModelGuided,
    "random": _random,
    "exhaustive": _exhaustive,
}


def make_strategy(
    name: str, candidates: Sequence[Candidate], seed: int = 0, first: Sequence[int] = ()
) -> Strategy:
    """A strategy by its name.

    Args:
        name: "model" (estimate, surrogate and local search), "random", or "exhaustive" (all, in
            the order of the estimates).
        candidates: the space, the fastest by estimate first.
        seed: of what is left to chance.
        first: numbers to try before all others, except at random.

    Raises:
        UsageError: no such strategy.
    """
    return _STRATEGIES[check_strategy(name)](candidates, seed, first)


def check_strategy(name: str) -> StrategyName:
    """The name, if it is a strategy's.

    Raises:
        UsageError: it is not.
    """
    for known in _STRATEGIES:
        if name == known:
            return known
    raise UsageError(unknown_name("strategy", name, get_args(StrategyName)))
