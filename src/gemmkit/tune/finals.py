"""Who enters the finals of a search: those close to the fastest, by times that compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gemmkit.trials.entry import Entry


@dataclass(frozen=True)
class Round:
    """Who takes part: so close to the leader, at most so many; its share of the finals' time."""

    closeness: float
    most: int
    share: float


SEMIFINAL = Round(1.05, 12, 0.4)
FINAL = Round(1.015, 4, 0.6)


def looks(entries: Mapping[int, Entry]) -> list[tuple[float, int]]:
    """The times of brief looks, with the candidates' numbers, of those that gave right results.

    Longer times are slower at the power limit, and would put the leaders behind the others.
    """
    return [
        (each.brief_us, number)
        for number, each in entries.items()
        if each.outcome == "ok" and each.brief_us is not None
    ]


def close(
    timed: Sequence[tuple[float, int]],
    round_: Round,
    accept: Callable[[int], bool] = lambda _: True,
) -> list[int]:
    """Of candidates' times and numbers, the fastest first, those that take part in a round.

    One that `accept` refuses makes room for the next in line.
    """
    found: list[int] = []
    fastest_us = 0.0
    for time_us, number in timed:
        if len(found) == round_.most or (found and time_us > round_.closeness * fastest_us):
            break
        if accept(number):
            fastest_us = fastest_us or time_us
            found.append(number)
    return found
