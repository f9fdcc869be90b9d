"""Fit dispatch's heuristic to measured times: `python benchmarks/dispatch_fit.py FILE…`.

The files are of `dispatch_regret.py` and, typed and grouped, of `run_suites.py --candidates`. The
costs of each candidate are fitted to every other shape of each, and the regret on the other shapes
is printed, with these costs, with those that were there, and with those that follow from tile sizes
(`closed_form.py` fits what the latter rest on). Costs that are fitted to all shapes are written to
`src/gemmkit/dispatch/fitted/`; candidates that the files do not have keep theirs. The files may be
of several boards of one compute capability. No GPU is needed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from dispatch_results import Row, read, summary
from numpy.typing import NDArray

from gemmkit.analysis.closed_form.costs import BoardCosts, Correction
from gemmkit.bench.peers import CANDIDATE, GEMMKIT
from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.candidates import candidates_for
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dispatch.costed import CostedCandidate, board_costs
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import ProblemRecord
from gemmkit.report.readme import read_records

FITTED = Path(__file__).resolve().parent.parent / "src" / "gemmkit" / "dispatch" / "fitted"

# Names of files of `run_suites.py` end like this.
SUITES = ("-typed", "-grouped")

# Costs and those of the board are fitted by turns.
ROUNDS = 4
# A cost e times as large as the derived one weighs as much as a time that is off by this: board's
# costs, and those of a configuration. The time of a step hardly shows where there are few of them,
# as in most shapes, and all others follow from it where there are many: so it stays near.
PRIOR = 0.05
LAYOUTS = ("nt", "tn", "tt")
PRIORS = {
    "step": 3.0,
    "latency": 2.0,
    "tile": 0.1,
    "unaligned": 0.1,
    "sharing": 0.1,
} | dict.fromkeys(LAYOUTS, 2.0)

Floats = NDArray[np.float64]
Residuals = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured launch on a board; what is far behind its shape's best weighs less."""

    gpu: GpuSpec
    candidate: Candidate
    problem: GemmProblem
    microseconds: float
    weight: float


def samples_of(rows: Sequence[Row], gpu: GpuSpec) -> list[list[Sample]]:
    """The measured launches of each shape that dispatch still considers."""
    dispatcher = Dispatcher(gpu, None)
    found = []
    for row in rows:
        best = min(row.times.values())
        candidates = (each.costed.candidate for each in dispatcher.ranked(row.problem))
        found.append(
            [
                Sample(gpu, each, row.problem, time, best / time)
                for each in candidates
                if (time := row.times.get(each.label)) is not None
            ]
        )
    return found


def suite_samples(path: Path, gpu: GpuSpec) -> list[list[Sample]]:
    """The same of a file of `run_suites.py --candidates`."""
    known = {each.label: each for each in candidates_for(gpu)}
    found = []
    for record in read_records(path):
        if not record.correct or record.time_us is None:
            continue
        times = {f"{record.kernel}:{TileConfig(**record.config)}": record.time_us.median}
        for each in record.peers:
            if each.vendor == GEMMKIT and each.choice == CANDIDATE and each.correct:
                kernel = each.name.partition(":")[0]
                times[f"{kernel}:{TileConfig(**each.config)}"] = each.time_us.median
        best = min(times.values())
        found.append(
            [
                Sample(gpu, known[label], problem_of(record.problem), time, best / time)
                for label, time in times.items()
                if label in known
            ]
        )
    return found


def problem_of(given: ProblemRecord) -> GemmProblem:
    """The problem of a record: its sizes, types, precision and layout."""
    types: dict[str, Any] = {
        "dtype": given.dtype,
        "out_dtype": given.out_dtype,
        "precision": given.precision,
    }
    if given.groups:
        return GemmProblem.of_groups(given.groups, **types).laid_out(given.layout)
    sizes = given.m, given.n, given.k
    return GemmProblem(*sizes, batch=given.batch, **types).laid_out(given.layout)


def fit(
    samples: Sequence[Sample],
    shipped: BoardCosts,
    registers: Mapping[str, int],
    kernel: str | None = None,
) -> BoardCosts:
    """The costs with which the estimates of these launches are nearest to their times; of one
    kernel's configurations, or all. The others are those that ship.

    What all configurations share follows from float32 off tensor cores: without any, and where one
    kernel is fitted, it stays as it ships.
    """
    by_instance: dict[str, list[Sample]] = {}
    for each in samples:
        # Kernels of a higher precision than is asked for have costs of their own measurements.
        if each.problem.precision != each.candidate.kernel.precision:
            continue
        if kernel not in (None, each.candidate.name):
            continue
        by_instance.setdefault(each.candidate.costed_as(each.problem.dtype), []).append(each)
    corrections = {
        instance: Correction(registers=registers.get(instance, 0)) for instance in by_instance
    }
    # Other types were timed over arrays that the L2 cache holds: they tell nothing of memory.
    plain = ("float32", "ieee")
    of_board = [
        each
        for each in samples
        if kernel is None and (each.problem.dtype, each.problem.precision) == plain
    ]
    board = BoardCosts() if of_board else shipped
    corrections = {**shipped.corrections, **corrections}
    board = msgspec.structs.replace(board, corrections=corrections)
    for _ in range(ROUNDS if of_board else 1):
        if of_board:
            board = _fit_board(board, of_board)
        corrections = corrections | {
            instance: _fit_correction(board, instance, some)
            for instance, some in by_instance.items()
        }
        board = msgspec.structs.replace(board, corrections=corrections)
    return board


def _fit_correction(board: BoardCosts, instance: str, samples: Sequence[Sample]) -> Correction:
    before, weights = board.corrections[instance], np.array([*PRIORS.values()])

    def corrected(vector: Floats) -> Correction:
        factors = dict(zip(PRIORS, np.exp(vector).round(6).tolist(), strict=True))
        return Correction(**factors, registers=before.registers)

    def residuals(vector: Floats) -> Floats:
        tried = msgspec.structs.replace(board, corrections={instance: corrected(vector)})
        return np.append(_errors(tried, samples), weights * vector)

    start = np.log([getattr(before, name) for name in PRIORS])
    return corrected(least_squares(residuals, start))


def _fit_board(board: BoardCosts, samples: Sequence[Sample]) -> BoardCosts:
    efficiencies = ("dram_efficiency", "store_efficiency")
    names = ("launch_us", *efficiencies, "partial_bytes", "exponent", "unaligned_tile", *LAYOUTS)
    prior = np.log([getattr(BoardCosts(), name) for name in names])

    def board_of(vector: Floats) -> BoardCosts:
        values = dict(zip(names, np.exp(vector).tolist(), strict=True))
        values |= {name: min(values[name], 1.0) for name in efficiencies}
        return msgspec.structs.replace(board, **values)

    def residuals(vector: Floats) -> Floats:
        return np.append(_errors(board_of(vector), samples), PRIOR * (vector - prior))

    start = np.log([getattr(board, name) for name in names])
    return board_of(least_squares(residuals, start))


def _errors(board: BoardCosts, samples: Iterable[Sample]) -> Floats:
    """Logarithms of estimated over measured time, by weight."""
    costed: dict[tuple[Candidate, GpuSpec], CostedCandidate] = {}
    found = []
    for each in samples:
        key = each.candidate, each.gpu
        if key not in costed:
            costed[key] = CostedCandidate(*key, board)
        estimate = costed[key].estimate(each.problem).microseconds
        found.append(each.weight * math.log(estimate / each.microseconds))
    return np.array(found)


def least_squares(residuals: Residuals, start: Floats, steps: int = 20) -> Floats:
    """Levenberg's and Marquardt's method, with differences for derivatives."""
    vector, damping, nudge = start, 1e-2, 1e-3
    errors = residuals(vector)
    for _ in range(steps):
        slopes = np.stack(
            [(residuals(vector + nudge * unit) - errors) / nudge for unit in np.eye(vector.size)],
            axis=1,
        )
        normal = slopes.T @ slopes
        step = np.linalg.solve(
            normal + damping * (np.diag(np.diag(normal)) + 1e-9 * np.eye(vector.size)),
            -slopes.T @ errors,
        )
        tried = residuals(vector + step)
        if tried @ tried < errors @ errors:
            gain = 1 - (tried @ tried) / (errors @ errors)
            vector, errors, damping = vector + step, tried, damping / 3
            if gain < 1e-5:
                break
        else:
            damping *= 5
    return vector


def regrets(board: BoardCosts, shapes: Iterable[Sequence[Sample]]) -> list[float]:
    """For each shape the time of the candidate that these costs choose, over the best one's."""
    found = []
    for samples in shapes:
        estimates = [
            CostedCandidate(each.candidate, each.gpu, board).estimate(each.problem).microseconds
            for each in samples
        ]
        chosen = samples[int(np.argmin(estimates))]
        found.append(chosen.microseconds / min(each.microseconds for each in samples))
    return found


def _board_of(path: Path) -> str:
    """The board of a file, of either kind."""
    if path.stem.endswith(SUITES):
        return next(iter(read_records(path))).device.gpu
    return read(path)[0].gpu


def _told(
    before: BoardCosts, rests_on: str, fitted: Collection[str], kernel: str | None = None
) -> str:
    """What the costs rest on: for the configurations fitted now, and the others."""
    if kernel is not None:
        others = (each for each in before.fitted.split(" | ") if not each.startswith(f"{kernel}: "))
        return " | ".join((*others, f"{kernel}: {rests_on}"))
    if set(before.corrections) <= set(fitted) or not before.fitted:
        return rests_on
    return f"{before.fitted.partition(' | ')[0]} | {rests_on}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--kernel", help="fit the costs of its configurations alone")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    boards = {each: find_board(_board_of(each)) for each in arguments.files}
    names_of_boards = sorted({gpu.name for gpu in boards.values()})
    limits, *others = {gpu.capability for gpu in boards.values()}
    if others:
        told = ", ".join(names_of_boards)
        parser.error(f"the files are of boards of different compute capability: {told}")
    before = board_costs(limits.major, limits.minor)
    fitted_on: list[list[Sample]] = []
    held_out: list[list[Sample]] = []
    registers: dict[str, int] = {}
    for file, gpu in boards.items():
        together = 1
        if file.stem.endswith(SUITES):
            shapes = [each for each in suite_samples(file, gpu) if each]
        else:
            head, rows = read(file)
            registers |= head.registers
            shapes = [each for each in samples_of(rows, gpu) if each]
            # Kinds of problems take turns in a file.
            together = len({row.kind for row in rows})
        for number, some in enumerate(shapes):
            (held_out if number // together % 2 else fitted_on).append(some)
    board = fit([each for some in fitted_on for each in some], before, registers, arguments.kernel)
    # What ships rests on all shapes: the others tell how far such costs may be trusted.
    whole = fit(
        [each for some in fitted_on + held_out for each in some],
        before,
        registers,
        arguments.kernel,
    )
    errors = np.abs(
        _errors(
            board,
            [
                each
                for some in held_out
                for each in some
                if arguments.kernel in (None, each.candidate.name)
            ],
        )
    )
    told = summary(regrets(board, held_out))
    names = " and ".join(file.name for file in arguments.files)
    number = len(fitted_on) + len(held_out)
    listed = {
        each.costed_as(dtype)
        for gpu in boards.values()
        for each in candidates_for(gpu)
        for dtype in ITEM_BYTES
    }
    kept = {name: each for name, each in whole.corrections.items() if name in listed}
    whole = msgspec.structs.replace(
        whole,
        corrections=kept,
        fitted=_told(
            before,
            f"{number} shapes of {names} on {' and '.join(names_of_boards)}; "
            f"fitted to every other one, regret on {told}",
            [name for name in kept if kept[name] != before.corrections.get(name)],
            arguments.kernel,
        ),
    )
    for name, costs in (
        ("derived costs", BoardCosts()),
        ("as they were", before),
        ("fitted costs", board),
    ):
        print(f"{name:14} fitted on {summary(regrets(costs, fitted_on))}")
        print(f"{'':14} held out  {summary(regrets(costs, held_out))}")
    print(f"estimates of held-out launches: median error {np.median(errors):.1%}")
    if not arguments.dry:
        path = FITTED / f"sm_{limits.major}{limits.minor}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
