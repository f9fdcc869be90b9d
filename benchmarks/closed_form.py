"""How well the closed form orders configurations: `python benchmarks/closed_form.py STORE`.

The file is a tuner's store. For each shape with enough trials its right ones are put in the order
of their estimates: the rank correlation with their times (of all, and of those within 1.5 times the
best), the place of the fastest, and how much slower the best of the first and of the first eight is
than the best of all. `--fit` fits what derived costs rest on to every other shape and to the rungs
before 10 of `results/<gpu>-ladder.json` and `-sweep.json`, prints it, and compares it with the
other shapes. No GPU is needed.

What it bounds: the tuner looked first at what its estimate liked, and a first look at a
configuration that is far behind is short, so that some times are wrong by a factor.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from dispatch_fit import Floats, least_squares

from gemmkit.analysis.closed_form.costs import FIGURES, GENERAL, BoardCosts, Figures
from gemmkit.analysis.closed_form.form import ClosedForm
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.fitting import SKINNY
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.trials.entry import gpu_key
from gemmkit.trials.store import Store

RESULTS = Path(__file__).resolve().parent / "results"
# Shapes with fewer trials tell too little of an order.
LEAST_TRIALS = 25
NEAR = 1.5
# Of each shape so many are fitted to, none slower than so many times the best; half of them are the
# fastest. An error of `CAP` in the logarithm counts little more than half, a greater one no more.
MOST_SAMPLES, SLOWEST, CAP = 110, 2.5, 0.4
# The weight of a rung's default beside that of a leader.
PAGE_WEIGHT = 0.35
# A figure that is e times the old one weighs as much as a time that is off by this at each launch.
PRIOR = 0.001

OF_FIGURES = tuple(each.name for each in dataclasses.fields(Figures) if each.name != "streaming")
OF_BOARD = ("launch_us", "partial_bytes", "exponent", "unaligned", "sharing")
# Rungs before the one that copies by cp.async are timed at their defaults alone.
EARLY = range(1, 10)


class Trial(NamedTuple):
    """One measured launch, and how much it counts in a fit."""

    kernel: Kernel
    config: TileConfig
    problem: GemmProblem
    microseconds: float
    weight: float


class Order(NamedTuple):
    """How the estimates of one shape order its trials; see the head of this file."""

    correlation: float
    near_correlation: float
    place: int
    first: float
    first_eight: float
    error: float


class Model(NamedTuple):
    """The figures that estimates rest on."""

    figures: Figures = FIGURES
    board: BoardCosts = GENERAL

    def estimates(self, trials: Iterable[Trial], gpu: GpuSpec) -> Floats:
        """Microseconds of each."""
        forms: dict[tuple[str, TileConfig], ClosedForm] = {}
        found = []
        for each in trials:
            key = each.kernel.name, each.config
            if key not in forms:
                forms[key] = ClosedForm(
                    each.kernel, each.config, gpu, board=self.board, figures=self.figures
                )
            found.append(forms[key].estimate(each.problem).microseconds)
        return np.array(found)


def stored_trials(path: Path, gpu: GpuSpec) -> list[list[Trial]]:
    """The trials of each shape that are right and of the newest source of their kernel."""
    entries = [each for each in Store(path).entries(gpu_key(gpu), epilogue="none") if each.time_us]
    newest: dict[str, tuple[float, str]] = {}
    for each in entries:
        newest[each.kernel] = max(
            newest.get(each.kernel, (0.0, "")), (each.measured_at, each.source)
        )
    shapes: dict[GemmProblem, list[Trial]] = {}
    for each in entries:
        if each.outcome != "ok" or each.source != newest[each.kernel][1]:
            continue
        problem = each.problem.problem
        trial = Trial(find_kernel(each.kernel), each.tile_config, problem, each.time_us or 0.0, 1.0)
        shapes.setdefault(problem, []).append(trial)
    return [
        shapes[key]
        for key in sorted(shapes, key=lambda each: (each.m, each.n, each.k, each.batch))
        if len(shapes[key]) >= LEAST_TRIALS
    ]


def page_trials(gpu: GpuSpec) -> list[Trial]:
    """The defaults of the rungs before 10 at every other size that was measured."""
    found: dict[str, list[Trial]] = {}
    for name in ("ladder", "sweep"):
        for line in (RESULTS / f"{gpu.key}-{name}.json").read_text().splitlines():
            record = Record.from_json(line)
            kernel, sizes = find_kernel(record.kernel), record.problem
            problem = GemmProblem(sizes.m, sizes.n, sizes.k)
            if kernel.rung in EARLY and sizes.epilogue == "none":
                trial = Trial(
                    kernel,
                    kernel.configure(record.config),
                    problem,
                    record.time_us.median,
                    PAGE_WEIGHT,
                )
                found.setdefault(problem.shape, []).append(trial)
    return [each for shape in sorted(found)[::2] for each in found[shape]]


def order_of(trials: Sequence[Trial], model: Model, gpu: GpuSpec) -> Order:
    """What the estimates of one shape's trials are worth."""
    times, estimates = (
        np.array([each.microseconds for each in trials]),
        model.estimates(trials, gpu),
    )
    best, by_estimate = times.min(), times[np.argsort(estimates, kind="stable")]
    near = times <= NEAR * best
    return Order(
        correlation=_rank_correlation(estimates, times),
        near_correlation=_rank_correlation(estimates[near], times[near]),
        place=int(np.argmin(by_estimate)),
        first=by_estimate[0] / best,
        first_eight=by_estimate[:8].min() / best,
        error=float(np.median(np.abs(np.log(estimates / times)))),
    )


def _rank_correlation(ours: Floats, theirs: Floats) -> float:
    """C. Spearman, The proof and measurement of association between two things, 1904."""
    if len(ours) < 3 or ours.min() == ours.max():
        return 0.0
    ranks = (np.argsort(np.argsort(each, kind="stable"), kind="stable") for each in (ours, theirs))
    return float(np.corrcoef(*ranks)[0, 1])


def summary(orders: Sequence[Order]) -> str:
    """Means and medians over shapes, in words."""
    columns = Order(*np.array(orders).T)  # type: ignore[arg-type]
    return (
        f"{len(orders)} shapes: rank correlation {np.mean(columns.correlation):.2f}, near the best "
        f"{np.mean(columns.near_correlation):.2f}; the fastest at place "
        f"{np.median(columns.place):.0f} (median); the first is {np.median(columns.first) - 1:.1%} "
        f"slower (median), the best of eight {np.mean(columns.first_eight) - 1:.1%} (mean); "
        f"median error {np.median(columns.error):.1%}"
    )


def fit(shapes: Sequence[Sequence[Trial]], pages: Sequence[Trial], gpu: GpuSpec) -> Model:
    """The figures with which the estimates of these launches are nearest to their times."""
    rng = np.random.default_rng(0)
    samples = list(pages)
    for trials in shapes:
        ranked = sorted(trials, key=lambda each: each.microseconds)
        best = ranked[0].microseconds
        ranked = [each for each in ranked if each.microseconds < SLOWEST * best]
        half = MOST_SAMPLES // 2
        chosen = [*range(half), *(half + rng.permutation(max(len(ranked) - half, 0))[:half])]
        samples += [
            ranked[number]._replace(weight=math.sqrt(best / ranked[number].microseconds))
            for number in chosen
            if number < len(ranked)
        ]
    times, weights = (np.array(each) for each in zip(*(each[3:] for each in samples), strict=True))
    start = _vector(Model())

    def residuals(vector: Floats) -> Floats:
        wrong = np.log(_model(vector).estimates(samples, gpu) / times)
        capped = wrong / np.sqrt(1 + (wrong / CAP) ** 2)
        return np.append(weights * capped, PRIOR * math.sqrt(len(samples)) * (vector - start))

    return _model(least_squares(residuals, start))


def _vector(model: Model) -> Floats:
    values = [getattr(model.figures, name) for name in OF_FIGURES]
    values += [getattr(model.board, name) for name in OF_BOARD]
    return np.log(values)


def _model(vector: Floats) -> Model:
    names = (*OF_FIGURES, *OF_BOARD)
    values = dict(zip(names, np.exp(vector).tolist(), strict=True))
    return Model(
        dataclasses.replace(FIGURES, **{name: values[name] for name in OF_FIGURES}),
        msgspec.structs.replace(GENERAL, **{name: values[name] for name in OF_BOARD}),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--gpu", default="h100", help="the board whose trials count")
    parser.add_argument("--fit", action="store_true", help="fit figures to every other shape")
    arguments = parser.parse_args()
    gpu = find_board(arguments.gpu)
    shapes = stored_trials(arguments.store, gpu)
    if not shapes:
        parser.error(f"{arguments.store} has no shape with {LEAST_TRIALS} trials on {gpu.name}")
    models = {"": Model()}
    fitted_on, held_out = shapes[::2], shapes[1::2]
    if arguments.fit:
        # Skinny products take as long as their matrices come from memory: they tell little.
        some = [each for each in fitted_on if min(each[0].problem.m, each[0].problem.n) > SKINNY]
        models["as fitted: "] = fit(some, page_trials(gpu), gpu)
        print(models["as fitted: "])
    for name, model in models.items():
        if not name:
            for trials in shapes:
                order = order_of(trials, model, gpu)
                told = ", ".join(f"{key} {value:.3g}" for key, value in order._asdict().items())
                print(f"{trials[0].problem.shape:16} {len(trials):4} trials: {told}")
        for part, some in (("one half", fitted_on), ("the other", held_out)):
            print(f"{name}{part:9} {summary([order_of(each, model, gpu) for each in some])}")


if __name__ == "__main__":
    main()
