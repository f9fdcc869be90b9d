"""Two kernels side by side, and the two most common forms of a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gemmkit.analysis.explain.explanation import Evidence, Sentence
from gemmkit.analysis.explain.facts import Facts
from gemmkit.analysis.explain.wording import compared, differ, number


@dataclass(frozen=True, eq=False)
class Pair:
    """Two kernels on one problem and board, with all their metrics."""

    this: Facts
    other: Facts
    mine: Mapping[str, float]
    theirs: Mapping[str, float]

    @cached_property
    def names(self) -> tuple[str, str]:
        """The names of the two; for configurations of one kernel, with the keys that differ."""
        if self.this.kernel.name != self.other.kernel.name:
            return self.this.name, self.other.name
        ours, theirs = self.this.config.as_dict(), self.other.config.as_dict()
        different = [key for key in ours if ours[key] != theirs.get(key)]
        return self.this.named(different), self.other.named(
            [key for key in different if key in theirs]
        )

    def both(self, metric: str) -> tuple[float, float] | None:
        """The values of a metric; None where one of the kernels has none."""
        if metric in self.mine and metric in self.theirs:
            return self.mine[metric], self.theirs[metric]
        return None

    def evidence(self, *metrics: str) -> tuple[Evidence, ...]:
        """The values of some metrics that both kernels have."""
        return tuple(
            Evidence(metric=metric, this=values[0], other=values[1])
            for metric in metrics
            if (values := self.both(metric)) is not None
        )


# A sentence with its weight: the logarithm of the ratio behind it.
Reason = tuple[float, Sentence]
Rule = Callable[[Pair], Iterator[Reason]]


def fewer_is_better(pair: Pair, metric: str, sentence: str) -> Iterator[Reason]:
    """`sentence`, with `{}` for the ratio; nothing if a value is 0 or the two are equal."""
    values = pair.both(metric)
    if values is None or not all(values) or not differ(*values):
        return
    this, other = values
    yield (
        abs(math.log(this / other)),
        Sentence(
            text=f"{sentence.format(compared(this, other))}: {number(this)} vs. {number(other)} in "
            f"{pair.names[1]}.",
            evidence=pair.evidence(metric),
            favors="this" if this < other else "other",
        ),
    )


def more_is_better(pair: Pair, metric: str, sentence: str) -> Iterator[Reason]:
    """`sentence`, with `{}` for this kernel's value; nothing if one is 0 or the two are equal."""
    values = pair.both(metric)
    if values is None or not all(values) or not differ(*values):
        return
    this, other = values
    yield (
        abs(math.log(this / other)),
        Sentence(
            text=f"{sentence.format(number(this))}; in {pair.names[1]}, {number(other)}.",
            evidence=pair.evidence(metric),
            favors="this" if this > other else "other",
        ),
    )
