"""Carries out a form of a product on PyTorch's tensors, by a strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gemmkit.distributed.execute import Arrays, run
from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.operand_scales import ScaleGatherer, gathered_with_scales
from gemmkit.distributed.predictions import PART_LINES
from gemmkit.distributed.schedule import Form, Schedule, schedule
from gemmkit.distributed.splits import Span
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team


def perform(
    team: Team,
    form: Form,
    strategy: Strategy,
    split: Any,
    fixed: Any,
    sizes: Sequence[int],
    product: LocalProduct,
    dtype: Any,
    out: Any = None,
) -> Any:
    """This rank's part of the result.

    Args:
        team: the ranks.
        form: what is sent: see `schedule`.
        strategy: how.
        split: the left operand's lines: those of this rank if they are gathered, else all.
        fixed: the other operand, of as many rows as lines have elements.
        sizes: the lines of each rank's share.
        product: how lines are multiplied, with the epilogue; if it is `transposed`, split, fixed
            and the result are transposes. Its scales of lines are those of `split`: they are
            gathered as it is.
        dtype: the type of the result, and of sums that travel.
        out: the array for this rank's part, by default a new one; it may be the product's c.

    Raises:
        DistributedError: a rank failed.
        UnsupportedProblem: the group has no such means.
    """
    lines = sum(sizes)
    own = sizes[team.rank] if form == "scatter" else lines
    if team.size == 1:
        form = "local"

    def new(count: int) -> Any:
        """Lines of the result, which lie as they are computed."""
        return fixed.new_empty((count, fixed.shape[1]), dtype=dtype)

    if form == "gather":
        # In memory of its own before anything is sent: what sends waits for it once.
        split = split.contiguous()
        scales = product.scale_lines
        if scales is not None and strategy.means != "collective":
            every = ScaleGatherer(team, scales.kind, sizes)(scales)
            product = replace(product, scale_lines=every)
    if strategy.around and form != "local":
        return _around(team, form, strategy, split, fixed, sizes, product, new, out)
    if out is None:
        out = new(own if form != "local" else len(split))
    steps = steps_of(form, strategy, sizes, team, on_gpu=split.is_cuda)
    sent = split.dtype if form == "gather" else dtype
    run(
        steps,
        Arrays(split, fixed, out, product, new, product.add),
        team.means(strategy),
        str(sent).removeprefix("torch."),
    )
    return out


def steps_of(
    form: Form, strategy: Strategy, sizes: Sequence[int], team: Team, *, on_gpu: bool
) -> Schedule:
    """This rank's steps; parts of GPUs are whole tiles."""
    multiple = PART_LINES if on_gpu else 1
    return schedule(form, strategy.way, tuple(sizes), team.rank, strategy.parts, multiple)


def _around(
    team: Team,
    form: Form,
    strategy: Strategy,
    split: Any,
    fixed: Any,
    sizes: Sequence[int],
    product: LocalProduct,
    new: Callable[[int], Any],
    out: Any,
) -> Any:
    """One product, with one collective operation before or after it."""
    collectives, scales = team.collectives(strategy), product.scale_lines
    if form == "gather":
        if scales is None or strategy.means != "collective":
            lines = collectives.gather(split, sizes)
        else:
            lines, every = gathered_with_scales(team, split, scales, sizes)
            product = replace(product, scale_lines=every)
        out = new(len(lines)) if out is None else out
        product(lines, fixed, out, None, Span(0, len(out)))
        collectives.ended()
        return out
    sums = new(len(split))
    product(split, fixed, sums, None, None)
    sums = collectives.scatter(sums, sizes) if form == "scatter" else collectives.reduce(sums)
    collectives.ended()
    return finished(product, sums, out)


def finished(product: LocalProduct, sums: Any, out: Any) -> Any:
    """The result of complete sums, with what is added once: in place, or in `out`."""
    if product.adds_once:
        out = sums if out is None else out
        product.add([sums], out, Span(0, len(out)))
        return out
    if out is None:
        return sums
    out.copy_(sums)
    return out
