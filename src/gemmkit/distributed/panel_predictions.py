"""How long strategies take whose ranks send each other panels of k: SUMMA, and its forms in which
one operand travels alone."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gemmkit.distributed.links import Link
from gemmkit.distributed.panels import PanelSchedule, Shares, panel_schedule
from gemmkit.distributed.predictions import (
    MOST_PLAYED,
    PART_LINES,
    PARTS,
    Predicted,
    fewest_parts_first,
    local,
    pass_time,
    product_time,
    told,
)
from gemmkit.distributed.splits import shares
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.timeline import Timeline, play_panels
from gemmkit.gpu import GpuSpec
from gemmkit.problem import GemmProblem

# Microseconds that a product takes longer for each element of C that it adds to: 4 ps, by products
# in 2, 4 and 8 panels at 8192³ and 16384³ in bf16 (two H100). It reads and writes sums in fp32.
ADDING_US = 4e-6


class PanelMesh(NamedTuple):
    """Over how many ranks k of A is spread, and that of B: 1 where each rank has all of it."""

    a: int
    b: int

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.a * self.b


def panel_predictions(
    problem: GemmProblem, mesh: PanelMesh, board: GpuSpec, link: Link, *, parts_only: bool = False
) -> list[tuple[Predicted, Timeline | None]]:
    """All strategies, the chosen one first, then by their times.

    Args:
        problem: a rank's: the rows and columns of its part of the result, and all of k.
        mesh: the ranks.
        board: the board.
        link: how fast ranks reach each other.
        parts_only: whether a product of all k at once is left out.
    """
    if mesh.ranks == 1:
        return [(local(problem, board, link), None)]
    bytes_a, bytes_b = (size * problem.k * problem.item_bytes for size in (problem.m, problem.n))
    made: list[tuple[Predicted, Timeline | None]] = []
    if not parts_only:
        made.append((_collective(problem, mesh, board, link, bytes_a, bytes_b), None))
    if mesh.ranks <= MOST_PLAYED:
        copies = [Strategy("copies", "whole")] if link.copies and not parts_only else []
        in_parts = [
            Strategy(means, "parts", parts)
            for means in (("copies", "group") if link.copies else ("group",))
            for parts in PARTS
        ]
        made += [_played(problem, mesh, board, link, each) for each in copies + in_parts]
    return fewest_parts_first(problem, made)


def _collective(
    problem: GemmProblem, mesh: PanelMesh, board: GpuSpec, link: Link, bytes_a: int, bytes_b: int
) -> Predicted:
    """All-gathers, one after the other, then the product, for which columns of A have to be put in
    their place."""
    transfer, sent = 0.0, 0
    for ranks, nbytes in ((mesh.a, bytes_a), (mesh.b, bytes_b)):
        if ranks > 1:
            transfer += link.collective_time(nbytes, ranks)
            sent += nbytes - nbytes // ranks
    product_us = product_time(problem, board)
    product_us += pass_time(2 * bytes_a, board) if mesh.a > 1 else 0.0
    total = max(product_us + transfer, link.launch_us)
    return told(Strategy(), total, product_us, transfer, 0.0, sent, 1, link.launch_us)


def _played(
    problem: GemmProblem,
    mesh: PanelMesh,
    board: GpuSpec,
    link: Link,
    strategy: Strategy,
) -> tuple[Predicted, Timeline]:
    m, n, k = problem.m, problem.n, problem.k
    whole, copies = strategy.way == "whole", strategy.means == "copies"
    lines = {"a": m * problem.item_bytes, "b": n * problem.item_bytes}
    each_time = link.copy_time if copies else link.pair_time
    slower = 1.0 if whole else link.copy_slowdown if copies else link.slowdown
    schedules = mesh_schedules(k, mesh, strategy)
    count = len(schedules[0][0].products)
    wide = not whole and count > 1 and problem.out_item_bytes < 4
    # Sums that are added to are read and written by each product but the first.
    summed = problem
    if count > 1 and not whole:
        summed = replace(problem, beta=1.0, out_dtype="float32" if wide else problem.out_dtype)

    adding = 0.0 if summed is problem else ADDING_US * m * n * (count - 1) / count

    def product(depth: int) -> float:
        return product_time(summed.resized(m, n, depth), board) * slower + adding

    last = pass_time(m * n * (4 + problem.out_item_bytes), board) if wide else 0.0
    if whole:
        last = pass_time(2 * k * sum(lines.values()), board)
    timeline = play_panels(
        schedules,
        product,
        lambda operand, depth: each_time(depth * lines[operand]),
        last,
        whole=whole,
    )
    own = [each for each in timeline.intervals if each.rank == 0]
    busy = sum(each.stop - each.start for each in own if each.lane == "product") + last
    sends = [each for each in own if each.lane == "send"]
    transfer = sum(each.stop - each.start for each in sends)
    sent = sum(
        each.piece.span.size * lines[operand]
        for operand, step in schedules[0][0].exchanges
        for each in step.sends
    )
    products = 1 if whole else count
    host = link.launch_us * (products + 0.5 * len(sends) + 1)
    total = max(timeline.total, host)
    exposed = max(timeline.total - busy, 0.0)
    return told(strategy, total, busy, transfer, exposed, sent, products, host), timeline


def mesh_schedules(k: int, mesh: PanelMesh, strategy: Strategy) -> list[list[PanelSchedule]]:
    """The schedules of all ranks, by their place along the dimension of B's panels, then along that
    of A's; with shares as `torch.chunk` makes them."""
    sizes_a, sizes_b = (tuple(each.size for each in shares(k, ranks)) for ranks in (mesh.a, mesh.b))
    parts, whole = strategy.parts, strategy.way == "whole"
    return [
        [
            panel_schedule(
                Shares(sizes_a, column), Shares(sizes_b, row), parts, PART_LINES, whole=whole
            )
            for column in range(mesh.a)
        ]
        for row in range(mesh.b)
    ]
