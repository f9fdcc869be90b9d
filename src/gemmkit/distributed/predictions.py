"""How long each strategy of a product over ranks would take, by estimates of products and links."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from gemmkit.dispatch.choose import choose
from gemmkit.distributed.fused import choose_fused
from gemmkit.distributed.links import Link
from gemmkit.distributed.placements import Rule
from gemmkit.distributed.schedule import schedule
from gemmkit.distributed.splits import parts_of, shares
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.timeline import Timeline, play
from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.one_shot import ADDED, MOST_RANKS, sums_sent
from gemmkit.problem import GemmProblem
from gemmkit.scales import NONE

Limiter = Literal["product", "link", "launch"]

# Parts have whole multiples of this many lines, but for the last one: of the tallest tile.
PART_LINES = 256
PARTS = (1, 2, 4)

# What each part more must gain, of the time, to be worth it. On tensor cores products of few rows
# differ more from their predictions, up to 18 % on 2 H100, and so do hosts that start more of them;
# with FFMA, where products take ten times as long, parts take what is predicted within 0.5 %.
_PART_GAIN, _PART_GAIN_FFMA = 0.03, 0.005
# The same beside one launch under all transfers: tables have times of products that were measured
# hours apart, by which two halves of 16384x8192x16384 take 4 % less than the whole, and in turn on
# 2 H200 they take 2 to 7 % more.
_PART_GAIN_FUSED = 0.05

# How much longer the host takes for products that take up other ranks' sums: 1.23 to 1.35 times
# on 4 H100.
_SUMS_SLOWER = 1.3

# What adds up sums reads and writes at this share of the memory's bandwidth.
_ADD_SHARE = 0.8

# A rank sends so many bytes at most by one launch: beyond, transfers run under products.
ONE_SHOT_BYTES = 16 << 20
# The host's part of a launch that exchanges lines and a product, in that of an operation of NCCL
# and a product.
_ONE_SHOT_HOST = 0.6

# Playing schedules through takes the square of the ranks' number and more: 64 take seconds.
MOST_PLAYED = 64

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


def alone(problem: GemmProblem, ranks: int, found: Rule) -> GemmProblem:
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
def product_time(problem: GemmProblem, board: GpuSpec) -> float:
    """Microseconds of a product on one GPU, as dispatch estimates it."""
    if not problem.results:
        return 0.0
    return choose(problem, board).microseconds


class _OrderOfSums(NamedTuple):
    """What the order of an element's sum depends on, where blocks do not share the k of a tile."""

    kernel: str
    cluster_k: int
    shared: bool


@lru_cache(maxsize=4096)
def _order_of_sums(problem: GemmProblem, board: GpuSpec) -> _OrderOfSums:
    choice = choose(problem, board)
    shared = choice.kernel.work(problem, choice.config, board).parts > 1
    cluster_k = choice.config.as_dict().get("cluster_k", 1)
    return _OrderOfSums(choice.kernel.name, cluster_k, shared)


def _sums_alike(problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, parts: int) -> bool:
    """Whether parts of a product have the bits of the product as a whole, or this has none to keep:
    if blocks share the k of a tile, as with stream-K, which tiles they share depends on its shape.
    """
    whole = alone(problem, ranks, found)
    lines = whole.n if found.transposes else whole.m
    pieces = {
        part.size for span in shares(lines, ranks) for part in parts_of(span, parts, PART_LINES)
    } | {span.size for span in shares(lines, ranks)}
    expected = _order_of_sums(whole, board)
    if expected.shared:
        return True
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


def predictions(
    problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, link: Link
) -> list[tuple[Predicted, Timeline | None]]:
    """All strategies, the chosen one first, then by their times."""
    if found.form == "local" or ranks == 1:
        return [(local(alone(problem, ranks, found), board, link), None)]
    made = [
        _predict(problem, ranks, found, board, link, each)
        for each in _candidates(problem, ranks, found, board, link)
        if found.form != "gather"
        or each.way != "parts"
        or _sums_alike(problem, ranks, found, board, each.parts)
    ]
    return fewest_parts_first(problem, made)


def local(problem: GemmProblem, board: GpuSpec, link: Link) -> Predicted:
    """A rank's own product, where nothing travels."""
    product_us = product_time(problem, board)
    return Predicted(
        strategy="local",
        total_us=max(product_us, link.launch_us),
        product_us=product_us,
        transfer_us=0.0,
        hidden=1.0,
        sent_bytes=0,
        products=1,
        limiter="launch" if product_us < link.launch_us else "product",
    )


def fewest_parts_first(
    problem: GemmProblem, made: list[tuple[Predicted, Timeline | None]]
) -> list[tuple[Predicted, Timeline | None]]:
    """Strategies by their times, but first the one to choose: what gains little by its parts comes
    after fewer of them, or none."""
    gain = _PART_GAIN
    if problem.dtype == "float32" and problem.precision == "ieee":
        gain = _PART_GAIN_FFMA
    elif any(Strategy.parse(each.strategy).way == "fused" for each, _ in made):
        gain = _PART_GAIN_FUSED
    # Of equals the first: sorting keeps their order.
    ordered = sorted(made, key=lambda each: each[0].total_us)
    best = min(ordered, key=lambda each: each[0].total_us * (1 + gain * _parts(each[0])))
    ordered.remove(best)
    ordered.insert(0, best)
    return ordered


def _parts(predicted: Predicted) -> int:
    """The parts of each rank's share, 0 where a strategy has one product."""
    strategy = Strategy.parse(predicted.strategy)
    return strategy.parts if strategy.way == "parts" else 0


def _candidates(
    problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, link: Link
) -> Iterator[Strategy]:
    """Those that compute the problem: an activation follows the complete sums alone."""
    epilogue = problem.epilogue
    linear = epilogue.activation == "none" and epilogue.scale == 1
    if linear or found.form == "gather":
        yield Strategy()
        if link.copies and ranks <= MOST_RANKS and _in_one_shot(problem, ranks, found):
            yield Strategy("one-shot")
        if ranks > MOST_PLAYED:
            return
        if link.copies:
            yield Strategy("copies", "whole")
            if _fused_time(problem, ranks, found, board) is not None:
                yield Strategy("copies", "fused")
    for means in ("copies", "group") if link.copies else ("group",):
        yield from (Strategy(means, "parts", parts) for parts in PARTS)


def _in_one_shot(problem: GemmProblem, ranks: int, found: Rule) -> bool:
    """Whether one launch is to exchange what travels: not much, without scales of its own, and sums
    that it adds up."""
    if _sent_by_one_shot(problem, ranks, found) > ONE_SHOT_BYTES:
        return False
    if found.form == "gather":
        return (problem.scales.b if found.transposes else problem.scales.a) == NONE
    return problem.out_dtype in ADDED


def _sent_by_one_shot(problem: GemmProblem, ranks: int, found: Rule) -> int:
    """Bytes that the first rank sends: its share to all others, or their sums."""
    lines, other = _sides(problem, found)
    own = shares(lines, ranks)[0].size
    if found.form == "gather":
        return (ranks - 1) * own * problem.k * problem.item_bytes
    line = other * problem.out_item_bytes
    return sums_sent(lines * line, ranks) if found.form == "reduce" else (lines - own) * line


def _sides(problem: GemmProblem, found: Rule) -> tuple[int, int]:
    """The lines of the whole product, and the columns of these in its result."""
    m, n = problem.m, problem.n
    return (n, m) if found.transposes else (m, n)


@lru_cache(maxsize=1024)
def _fused_time(problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec) -> float | None:
    """Microseconds of one launch for all lines that are gathered, once they are there; None where
    none waits for them itself."""
    lines, _ = _sides(problem, found)
    sizes = [each.size for each in shares(lines, ranks)]
    try:
        return choose_fused(alone(problem, ranks, found), found, sizes, board).microseconds
    except UnsupportedProblem:
        return None


def _predict(
    problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, link: Link, strategy: Strategy
) -> tuple[Predicted, Timeline | None]:
    whole = alone(problem, ranks, found)
    lines, other = _sides(problem, found)
    sizes = tuple(each.size for each in shares(lines, ranks))
    gathers = found.form == "gather"
    line = problem.k * problem.item_bytes if gathers else other * problem.out_item_bytes

    # Of the one launch, of which each share is a part.
    fused = _fused_time(problem, ranks, found, board) if strategy.way == "fused" else None

    def product(count: int) -> float:
        if fused is not None:
            return fused / lines * count
        m, n = (whole.m, count) if found.transposes else (count, whole.n)
        return product_time(whole.resized(m, n, whole.k), board)

    def add(count: int) -> float:
        return pass_time(_added_bytes(ranks, other * count, problem.out_item_bytes), board)

    if strategy.around:
        product_us, host = product(lines), link.launch_us
        if strategy.means == "one-shot":
            sent = _sent_by_one_shot(problem, ranks, found)
            transfer, host = link.one_shot_time(sent), host * _ONE_SHOT_HOST
        else:
            times = 2 if found.form == "reduce" else 1
            sent = times * (lines - sizes[0]) * line
            transfer = times * link.collective_time(lines * line, ranks)
        # The host's part takes as long as a step of other strategies.
        total = max(product_us + transfer, host)
        return told(strategy, total, product_us, transfer, 0.0, sent, 1, host), None
    copies = strategy.means == "copies"
    slower = 1.0
    if strategy.way != "whole":
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
    products = 1 if fused is not None else sum(each.lane == "product" for each in own)
    launch_us = link.launch_us if gathers else link.launch_us * _SUMS_SLOWER
    host = launch_us * (products + 0.5 * len(sends) + 1)
    total = max(timeline.total, host)
    sent = sum(each.span.size for each in sends) * line
    return told(strategy, total, busy, transfer, exposed, sent, products, host), timeline


def _added_bytes(ranks: int, elements: int, item: int) -> int:
    """What is read and written to add up all ranks' sums, term by term: two at once, the first of
    more is copied in fp32 at least, and the last ends in the result."""
    wide = max(item, FLOAT_BYTES)
    if ranks == 2:
        return 3 * item * elements
    copied = item + wide if item < wide else 0
    between = (ranks - 2) * (2 * wide + item)
    return (copied + between + wide + 2 * item) * elements


def pass_time(nbytes: int, board: GpuSpec) -> float:
    """Microseconds of reading and writing so many bytes in all."""
    return nbytes / (board.dram_gb_per_s * _ADD_SHARE) / 1e3


def told(
    strategy: Strategy,
    total: float,
    product: float,
    transfer: float,
    exposed: float,
    sent: int,
    products: int,
    host: float,
) -> Predicted:
    """A strategy with what limits it.

    Args:
        strategy: which.
        total: its time, in microseconds, as all others here.
        product: of all products.
        transfer: of all that a rank sends.
        exposed: of what no product runs over.
        sent: the bytes that a rank sends.
        products: how many there are.
        host: the time that the host takes.
    """
    if strategy.around:
        exposed = transfer
    limiter: Limiter = "product"
    if total <= host:
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
