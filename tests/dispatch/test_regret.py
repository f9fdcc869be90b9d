"""How far the estimates' choice is from the best of what was measured on an H100."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from gemmkit.dispatch.candidates import candidates_for
from gemmkit.dispatch.costed import CostedCandidate
from gemmkit.dispatch.prices import BoardPrices
from gemmkit.dtypes import Dtype
from gemmkit.gpu import find_board
from gemmkit.problem import GemmProblem

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
H100 = find_board("h100")


class Row(msgspec.Struct):
    """What is read of a line of `benchmarks/dispatch_regret.py`."""

    m: int
    n: int
    k: int
    looks: dict[str, float]
    turns: dict[str, float]
    batch: int = 1
    layout: str = "nn"
    dtype: Dtype = "float32"
    kind: str = "random"

    @property
    def problem(self) -> GemmProblem:
        shape = GemmProblem(self.m, self.n, self.k, batch=self.batch, dtype=self.dtype)
        return shape.laid_out(self.layout)


def rows(name: str) -> list[Row]:
    _, *lines = (RESULTS / f"h100-{name}.json").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Row) for line in lines]


def regrets(measured: list[Row]) -> list[float]:
    """Of each row the time of what is estimated to be the fastest over the best one's."""
    prices = BoardPrices(H100)
    whole = {each.label: each for each in candidates_for(H100)}
    found = []
    for row in measured:
        times = row.looks | row.turns
        estimates: dict[str, float] = {}
        for candidate in whole.values():
            if candidate.kernel.accepts(row.problem, H100) is None:
                costed: CostedCandidate = prices.costed(candidate.name, candidate.config)
                for each in prices.priced(costed, row.problem):
                    label = each.costed.candidate.label
                    if label in times:
                        estimates[label] = each.estimate.microseconds
        chosen = min(estimates, key=estimates.__getitem__)
        found.append(times[chosen] / min(times.values()))
    return found


@pytest.mark.parametrize(
    ("name", "kind", "step", "median", "worst_fifth"),
    [
        ("dispatch", "random", 2, 1.02, 1.08),
        ("dispatch", "random", 1, 1.02, 1.08),
        ("dispatch-wide", "thin", 1, 1.05, 1.14),
        ("dispatch-wide", "wide", 1, 1.03, 1.16),
    ],
)
@pytest.mark.sample(4)
def test_the_choice_is_near_the_best_that_was_measured(name, kind, step, median, worst_fifth):
    found = regrets([row for row in rows(name) if row.kind == kind][::step])
    assert len(found) >= 100
    p50, p80 = np.percentile(found, (50, 80))
    assert p50 <= median
    assert p80 <= worst_fifth
