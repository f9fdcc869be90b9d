"""The weight of a remark, a share of the predicted time, and the source lines that it is about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from gemmkit.analysis.explain.explanation import Sentence
from gemmkit.analysis.explain.facts import Facts
from gemmkit.analysis.memory import MemoryRow

# The terms of the model that an access loads.
GLOBAL_TERMS = ("the data path of shared memory and L1", "the L1's tag stage", "L2 bandwidth")
SHARED_TERMS = ("the data path of shared memory and L1",)
# Source lines that a remark names, and how much of the largest count each must have.
_MOST_PLACES = 3
_ALSO = 0.5
# Bytes of a register.
_REGISTER_BYTES = 4

Cost = Callable[[MemoryRow], int]


def ranked(sentences: Iterable[Sentence]) -> tuple[Sentence, ...]:
    """Sentences with a weight, the largest first; then neutral ones; then good news."""

    def place(each: Sentence) -> tuple[int, float]:
        if each.mark == "good":
            return 2, 0.0
        return (0, -each.weight) if each.weight else (1, 0.0)

    return tuple(sorted(sentences, key=place))


def sectors_weight(facts: Facts, row: MemoryRow) -> float:
    """The share of the predicted time that sectors beyond the minimum may take."""
    total = sum(each.sectors for each in facts.accesses)
    wasted = (row.sectors - row.ideal_sectors) / total if total else 0.0
    return time_share(facts, *GLOBAL_TERMS) * wasted


def conflicts_weight(facts: Facts, row: MemoryRow) -> float:
    """The share of the predicted time that bank conflicts may take."""
    total = sum(each.wavefronts + each.tag_wavefronts for each in facts.accesses)
    return time_share(facts, *SHARED_TERMS) * (row.conflicts / total if total else 0.0)


def waves_weight(waves: float) -> float:
    """The share of block slots that stay empty over all waves."""
    return 1 - waves / math.ceil(waves) if waves else 0.0


def spills_weight(spilled: float, registers: float) -> float:
    """The bytes that a thread spills over those of its registers; the time is not known."""
    return min(spilled / (_REGISTER_BYTES * registers), 1.0) if registers else 1.0


def time_share(facts: Facts, *terms: str) -> float:
    """The longest of these terms over the predicted time, at most 1; 1 without a prediction."""
    if facts.prediction is None or not facts.prediction.microseconds:
        return 1.0
    longest = max(
        (each.microseconds for each in facts.prediction.terms if each.name in terms), default=0.0
    )
    return min(longest / facts.prediction.microseconds, 1.0)


def access_places(facts: Facts, row: MemoryRow, *costs: Cost) -> tuple[str, ...]:
    """The source lines, as `file:line`, that make the accesses of `row`.

    They are ranked by the first of `costs` that any of them has.
    """
    wanted = (row.array, row.space, row.kind)
    return places(
        (each for each in facts.lines if (each.array, each.space, each.kind) == wanted), *costs
    )


def places(rows: Iterable[MemoryRow], *costs: Cost) -> tuple[str, ...]:
    """The source lines of some accesses, as `file:line`, those with the largest cost first."""
    known = [each for each in rows if each.line]
    for cost in costs:
        by_line: dict[str, int] = {}
        for each in known:
            place = f"{each.file}:{each.line}"
            by_line[place] = by_line.get(place, 0) + cost(each)
        most = max(by_line.values(), default=0)
        if most > 0:
            chosen = [place for place, value in by_line.items() if value >= _ALSO * most]
            return tuple(sorted(chosen, key=lambda place: -by_line[place])[:_MOST_PLACES])
    return ()
