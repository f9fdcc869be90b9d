"""Which strategy a product over ranks gets, and why: predicted for a board, without any GPU."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from gemmkit.distributed.links import link_of
from gemmkit.distributed.placements import Rule, Word, read_placement, rule
from gemmkit.distributed.predictions import Predicted, alone, predictions, product_time
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.timeline import Timeline
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.problem import GemmProblem, Shape, read_problem


class DistributedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How ranks compute a product.

    `a`, `b` and `result` are placements, `form` what travels ("gather": shares of an operand,
    "scatter" and "reduce": sums, "local": nothing), `travels` the matrix, and `first` what is
    redistributed before. `alone_us` is the time of this rank's product without communication.
    `strategies` are all that were considered, the chosen one first, then by predicted time.
    """

    shape: str
    dtype: str
    gpu: str
    ranks: int
    a: Word
    b: Word
    result: Word
    form: str
    travels: str
    first: tuple[str, ...]
    alone_us: float
    link: str
    strategies: tuple[Predicted, ...]

    @property
    def chosen(self) -> Predicted:
        """The fastest, but for more parts that gain little."""
        return self.strategies[0]

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def plan(
    shape: Shape,
    ranks: int,
    placements: tuple[str, str],
    placement: str | None = None,
    *,
    gpu: str | GpuSpec = "H200",
    copies: bool | None = None,
) -> DistributedPlan:
    """How ranks would compute a product; no GPU and no PyTorch is needed.

    Args:
        shape: the whole problem: M×N×K, or a `GemmProblem` with types and epilogue.
        ranks: how many there are, one GPU each, on one host.
        placements: of A and B: "S(0)", "S(1)", "R" or "P".
        placement: that of the result; by default what follows from those of A and B.
        gpu: the board.
        copies: whether the ranks' GPUs write to each other's memory; by default as the board's
            table of links says.

    Raises:
        UsageError: a placement or a number is not valid.
        UnsupportedProblem: there is no such product.
    """
    problem, board = read_problem(shape), find_board(gpu)
    if problem.batch != 1 or problem.groups is not None:
        raise UnsupportedProblem("over several ranks there are products of matrices, no batches")
    a, b = (read_placement(each) for each in placements)
    wanted = None if placement is None else read_placement(placement)
    bytes_a = problem.m * problem.k * problem.item_bytes
    bytes_b = problem.k * problem.n * problem.item_bytes
    found = rule(a, b, wanted, bytes_a=bytes_a, bytes_b=bytes_b)
    link = link_of(board, ranks)
    if copies is not None:
        link = msgspec.structs.replace(link, copies=copies)
    whole = alone(problem, ranks, found)
    predicted = [each for each, _ in predictions(problem, ranks, found, board, link)]
    first = [
        f"{name}: {before} → {after}"
        for name, before, after in (("A", a, found.a), ("B", b, found.b))
        if before != after
    ]
    return DistributedPlan(
        shape=problem.shape,
        dtype=problem.dtype,
        gpu=board.name,
        ranks=ranks,
        a=a,
        b=b,
        result=found.result,
        form=found.form,
        travels=_travels(found),
        first=tuple(first),
        alone_us=product_time(whole, board),
        link=link.source,
        strategies=tuple(predicted),
    )


def _travels(found: Rule) -> str:
    if found.form == "gather":
        return "B" if found.transposes else "A"
    return {"local": "nothing"}.get(found.form, "sums of C")


@lru_cache(maxsize=1024)
def best_strategy(
    problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, copies: bool
) -> Strategy:
    """The strategy with the shortest predicted time, of those that a group of ranks has."""
    link = msgspec.structs.replace(link_of(board, ranks), copies=copies)
    predicted, _ = predictions(problem, ranks, found, board, link)[0]
    return Strategy() if predicted.strategy == "local" else Strategy.parse(predicted.strategy)


def predicted_timeline(
    shape: Shape,
    ranks: int,
    placements: tuple[str, str],
    placement: str | None = None,
    *,
    strategy: str | None = None,
    gpu: str | GpuSpec = "H200",
) -> Timeline:
    """When products and transfers of all ranks would run.

    Args:
        shape: as for `plan`.
        ranks: as for `plan`.
        placements: as for `plan`.
        placement: as for `plan`.
        strategy: by its text; by default the fastest that has a timeline.
        gpu: the board.

    Returns:
        The intervals of all ranks, in microseconds, and when the last rank is done.

    Raises:
        UsageError, UnsupportedProblem: as `plan`; the strategy has no timeline, since it is one
            operation of the process group and one product.
    """
    problem, board = read_problem(shape), find_board(gpu)
    a, b = (read_placement(each) for each in placements)
    wanted = None if placement is None else read_placement(placement)
    found = rule(
        a,
        b,
        wanted,
        bytes_a=problem.m * problem.k * problem.item_bytes,
        bytes_b=problem.k * problem.n * problem.item_bytes,
    )
    for predicted, timeline in predictions(problem, ranks, found, board, link_of(board, ranks)):
        if timeline is not None and strategy in (None, predicted.strategy):
            return timeline
    raise UsageError(
        f"strategy {strategy or 'collective'}: there is no timeline of it for this product"
    )
