"""`--ranks` of `gemmkit which` and `gemmkit bench`: products over several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gemmkit.cli import WRONG_RESULT
from gemmkit.cli.board import board_at_hand
from gemmkit.cli.output import Printer, RecordWriter
from gemmkit.distributed.measure import Task, measure
from gemmkit.distributed.placements import read_placement, read_placements
from gemmkit.distributed.planning import plan, predicted_timeline
from gemmkit.distributed.strategy import Strategy
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.problem import GemmProblem
from gemmkit.report.figures import check_form, check_matplotlib
from gemmkit.report.pictures.ranks import RanksPicture
from gemmkit.report.ranks import measured_text, plan_text

_DEFAULT_PLACEMENTS = {1: "S(0),S(1)->S(1)", 2: "S(0) S(1),S(0) S(1)->S(0) S(1)"}


def show_ranks(
    problem: GemmProblem,
    ranks: tuple[int, ...],
    placement: str | None,
    gpu: str | None,
    as_json: bool,
    picture: Path | None = None,
) -> None:
    """How ranks compute a problem, with a timeline of what runs when, also as a figure in a file.

    Raises:
        UsageError: the figure cannot be drawn or written, or a mesh has no default placement.
    """
    if picture is not None:
        check_form(picture)
        check_matplotlib()
    if placement is None and len(ranks) not in _DEFAULT_PLACEMENTS:
        words = " ".join(("S(0)", "S(1)", *["R"] * (len(ranks) - 2)))
        raise UsageError(
            "for a mesh of more than 2 dimensions, give --placement with a word for each of them, "
            f"such as '{words},{words}->{words}'"
        )
    operands, result = read_placements(placement or _DEFAULT_PLACEMENTS[len(ranks)])
    board = board_at_hand(gpu)
    made = plan(problem, ranks, operands, result, gpu=board)
    chosen = made.chosen.strategy
    timeline = None
    if chosen != "local" and not Strategy.parse(chosen).around:
        timeline = predicted_timeline(problem, ranks, operands, result, strategy=chosen, gpu=board)
    if picture is not None:
        if timeline is None:
            raise UsageError(
                f"strategy {chosen} has no timeline: nothing is sent under the product"
            )
        title = (
            f"{made.shape}, {made.dtype}, {made.a} × {made.b} → {made.result} on {made.ranks_text} "
            f"{board.name}: {chosen}"
        )
        RanksPicture(title, timeline, made.ranks).save(picture)
    if as_json:
        click.echo(made.to_json())
        return
    Printer().print(plan_text(made, timeline), end="")


def bench_ranks(
    problems: Sequence[GemmProblem],
    ranks: int,
    placement: str | None,
    gpu: str | None,
    seed: int,
    json_path: str | None,
) -> None:
    """Measure problems over ranks, one record each; exits with status 1 if a result is wrong.

    Raises:
        UnsupportedProblem: a problem has more to it than types and sizes.
        DistributedError: a rank failed.
    """
    (a, b), result = read_placements(placement or _DEFAULT_PLACEMENTS[1])
    if not (isinstance(a, str) and isinstance(b, str) and not isinstance(result, tuple)):
        raise UsageError("bench measures ranks of one dimension: give one word for each matrix")
    board, wrong = board_at_hand(gpu), False
    with RecordWriter(json_path) as writer:
        out = Printer(err=writer.to_stdout)
        for problem in problems:
            if str(problem.epilogue) != "none" or (problem.alpha, problem.beta) != (1, 0):
                raise UnsupportedProblem("over ranks, plain products are measured: leave out rest")
            made = plan(problem, ranks, (a, b), result, gpu=board)
            task = Task(
                m=problem.m,
                n=problem.n,
                k=problem.k,
                dtype=problem.dtype,
                out_dtype=problem.result_dtype,
                precision=problem.precision,
                a=a,
                b=b,
                result=read_placement(made.result),
                gpu=board.name,
                seed=seed,
            )
            record = measure(task, ranks)
            if record is None:
                continue
            writer.write(record)
            out.print(measured_text(record), end="")
            wrong |= not record.correct or not all(each.correct for each in record.peers)
    if wrong:
        raise SystemExit(WRONG_RESULT)
