"""`Tuned`: what came of tuning one problem; one JSON line."""

from __future__ import annotations

from typing import Any

import msgspec

from gemmkit.record import JsonLine
from gemmkit.trials.entry import Entry, ProblemClass


class Tuned(JsonLine, frozen=True, kw_only=True):
    """One problem's tuning on one GPU.

    `best` is the fastest configuration of those searched, now or before, `runner_up` the second
    fastest, each None where nothing gave a right result. `tried` counts the trials of this run by
    outcome, `known` those of earlier runs that were not repeated, `left_out` what was never tried
    by reason, with the sentence of one configuration in `examples`; `excluded` says of each kernel
    that has none left why. `untried` is what the budget did not reach, `total` the whole space.
    `ended` says why it ended: "budget", "all tried" or "interrupted". Seconds are wall-clock.
    """

    problem: ProblemClass
    epilogue: str
    gpu: str
    board: str
    best: Entry | None
    runner_up: Entry | None
    tried: dict[str, int]
    known: int
    untried: int
    left_out: dict[str, int]
    total: int
    ended: str
    seconds: float
    budget_seconds: float
    strategy: str
    seed: int
    store: str
    examples: dict[str, str] = msgspec.field(default_factory=dict)
    excluded: dict[str, str] = msgspec.field(default_factory=dict)
    environment: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Trials of this run."""
        return sum(self.tried.values())
