"""Which strategy a product over ranks gets, and why: predicted for a board, without any GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import msgspec

from gemmkit.dispatch.choose import choose
from gemmkit.distributed.links import Link, link_of
from gemmkit.distributed.placements import Rule, Word, read_placement, rule
from gemmkit.distributed.schedule import schedule
from gemmkit.distributed.splits import parts_of, shares
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.timeline import Timeline, play
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.problem import GemmProblem, Shape, read_problem

Limiter = Literal["product", "link", "launch"]

# Parts have whole multiples of this many lines, but for the last one: of the tallest tile.
PART_LINES = 256
_PARTS = (1, 2, 4)

# What each part more must gain, of the time, to be worth it: products of few rows differ more from
# their predictions, up to 18 % on 2 H100.
_PART_GAIN = 0.03

# What adds up sums reads and writes at this share of the memory's bandwidth.
_ADD_SHARE = 0.8

# A link is the limiter where products wait for it this share of the time, or more.
_WAITING = 0.1


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy's predicted time, in microseconds.

    `product_us` are all products of the slowest rank, `transfer_us` all that it sends, and
    `hidden` the share of this, 0 to 1, that runs under products. `sent_bytes` are what it sends.
    """

    strategy: str
    total_us: float
    product_us: float
    transfer_us: float
    hidden: float
    sent_bytes: int
    products: int
    limiter: Limiter


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
    alone = _alone(problem, ranks, found)
    predicted = [each for each, _ in _predictions(problem, ranks, found, board, link)]
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
        alone_us=_product_time(alone, board),
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
    predicted, _ = _predictions(problem, ranks, found, board, link)[0]
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
    for predicted, timeline in _predictions(problem, ranks, found, board, link_of(board, ranks)):
        if timeline is not None and strategy in (None, predicted.strategy):
            return timeline
    raise UsageError(
        f"strategy {strategy or 'collective'}: there is no timeline of it for this product"
    )


# --- predictions --------------------------------------------------------------------------------


def _alone(problem: GemmProblem, ranks: int, found: Rule) -> GemmProblem:
    """This rank's whole product, with the share of the first rank."""

    def share(size: int) -> int:
        return shares(size, ranks)[0].size

    m, n, k = problem.m, problem.n, problem.k
    if found.a == "S(1)":
        k = share(k)
    elif found.form == "gather" or found.form == "local":
        if found.made == "S(0)":
            m = share(m)
        if found.made == "S(1)":
            n = share(n)
    return problem.resized(m, n, k)


@lru_cache(maxsize=4096)
def _product_time(problem: GemmProblem, board: GpuSpec) -> float:
    if not problem.results:
        return 0.0
    return choose(problem, board).microseconds


@lru_cache(maxsize=4096)
def _order_of_sums(problem: GemmProblem, board: GpuSpec) -> tuple[object, ...]:
    """What the order of an element's sum depends on: the kernel, and how it splits k, if it does.

    Where it does, tiles of one product may be split differently from those of another.
    """
    choice = choose(problem, board)
    splits = choice.kernel.work(problem, choice.config, board).parts
    config = choice.config.as_dict()
    if splits > 1:
        return choice.kernel.name, problem.shape, tuple(config.items())
    return choice.kernel.name, config.get("cluster_k", 1)


def _sums_alike(problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, parts: int) -> bool:
    """Whether parts of a product have the bits of the product as a whole."""
    whole = _alone(problem, ranks, found)
    lines = whole.n if found.transposes else whole.m
    pieces = {
        part.size for span in shares(lines, ranks) for part in parts_of(span, parts, PART_LINES)
    } | {span.size for span in shares(lines, ranks)}
    expected = _order_of_sums(whole, board)
    return all(
        _order_of_sums(
            whole.resized(whole.m, count, whole.k)
            if found.transposes
            else whole.resized(count, whole.n, whole.k),
            board,
        )
        == expected
        for count in pieces - {0}
    )


def _predictions(
    problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, link: Link
) -> list[tuple[Predicted, Timeline | None]]:
    """All strategies, the chosen one first, then by their times."""
    if found.form == "local" or ranks == 1:
        alone = _product_time(_alone(problem, ranks, found), board)
        limiter: Limiter = "launch" if alone < link.launch_us else "product"
        local = Predicted(
            strategy="local",
            total_us=max(alone, link.launch_us),
            product_us=alone,
            transfer_us=0.0,
            hidden=1.0,
            sent_bytes=0,
            products=1,
            limiter=limiter,
        )
        return [(local, None)]
    made = [
        _predict(problem, ranks, found, board, link, each)
        for each in _candidates(problem, found, link)
        if found.form != "gather"
        or each.way == "whole"
        or _sums_alike(problem, ranks, found, board, each.parts)
    ]
    # Of equals the first: sorting keeps their order.
    ordered = sorted(made, key=lambda each: each[0].total_us)
    if _parts(ordered[0][0]):
        in_parts = [each for each in ordered if _parts(each[0])]
        best = min(in_parts, key=lambda each: each[0].total_us * (1 + _PART_GAIN * _parts(each[0])))
        ordered.remove(best)
        ordered.insert(0, best)
    return ordered


def _parts(predicted: Predicted) -> int:
    """The parts of each rank's share, 0 where a strategy has one product."""
    strategy = Strategy.parse(predicted.strategy)
    return strategy.parts if strategy.way == "parts" else 0


def _candidates(problem: GemmProblem, found: Rule, link: Link) -> Iterator[Strategy]:
    """Those that compute the problem: an activation follows the complete sums alone."""
    epilogue = problem.epilogue
    linear = epilogue.activation == "none" and epilogue.scale == 1
    if linear or found.form == "gather":
        yield Strategy()
        if link.copies:
            yield Strategy("copies", "whole")
    for means in ("copies", "group") if link.copies else ("group",):
        yield from (Strategy(means, "parts", parts) for parts in _PARTS)


def _predict(
    problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, link: Link, strategy: Strategy
) -> tuple[Predicted, Timeline | None]:
    whole = _alone(problem, ranks, found)
    lines = problem.n if found.transposes else problem.m
    sizes = tuple(each.size for each in shares(lines, ranks))
    gathers = found.form == "gather"
    other = problem.m if found.transposes else problem.n
    line = problem.k * problem.item_bytes if gathers else other * problem.out_item_bytes

    def product(count: int) -> float:
        m, n = (whole.m, count) if found.transposes else (count, whole.n)
        return _product_time(whole.resized(m, n, whole.k), board)

    def add(count: int) -> float:
        bandwidth = board.dram_gb_per_s * _ADD_SHARE
        return (ranks + 1) * count * line / bandwidth / 1e3 if count else 0.0

    if strategy.means == "collective":
        times = 2 if found.form == "reduce" else 1
        transfer = times * link.collective_time(lines * line, ranks)
        alone = product(lines)
        sent = times * (lines * line - sizes[0] * line)
        total = max(alone + transfer, 2 * link.launch_us)
        return _told(strategy, total, alone, transfer, 0.0, sent, 1, link), None
    copies = strategy.means == "copies"
    slower = 1.0
    if strategy.way == "parts":
        slower = link.copy_slowdown if copies else link.slowdown
    each_time = link.copy_time if copies else link.pair_time
    steps = [
        schedule(found.form, strategy.way, sizes, rank, strategy.parts, PART_LINES)
        for rank in range(ranks)
    ]
    timeline = play(
        steps,
        lambda count: product(count) * slower,
        lambda count: each_time(count * line),
        add,
    )
    own = [each for each in timeline.intervals if each.rank == 0]
    busy = sum(each.stop - each.start for each in own if each.lane == "product")
    sends = [each for each in own if each.lane == "send"]
    transfer = sum(each.stop - each.start for each in sends)
    exposed = max(timeline.total - busy, 0.0)
    # In one call the host starts every product, and a transfer takes it about half as long.
    products = sum(each.lane == "product" for each in own)
    host = link.launch_us * (products + 0.5 * len(sends) + 1)
    total = max(timeline.total, host)
    sent = sum(each.span.size for each in sends) * line
    return _told(strategy, total, busy, transfer, exposed, sent, products, link), timeline


def _told(
    strategy: Strategy,
    total: float,
    product: float,
    transfer: float,
    exposed: float,
    sent: int,
    products: int,
    link: Link,
) -> Predicted:
    if strategy.means == "collective":
        exposed = transfer
    limiter: Limiter = "product"
    if total <= link.launch_us * (products + 2):
        limiter = "launch"
    elif exposed > _WAITING * total:
        limiter = "link"
    hidden = 1.0 - min(exposed / transfer, 1.0) if transfer else 1.0
    return Predicted(
        strategy=str(strategy),
        total_us=total,
        product_us=product,
        transfer_us=transfer,
        hidden=hidden,
        sent_bytes=sent,
        products=products,
        limiter=limiter,
    )
