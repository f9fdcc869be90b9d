"""Products of which panels of k travel, on PyTorch's tensors: SUMMA on a mesh, or along one
dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmkit.distributed.agreements import Agreement
from gemmkit.distributed.communicator import Communicator
from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.operand_scales import PanelScales, line_scales
from gemmkit.distributed.panel_run import PanelArrays, run_panels
from gemmkit.distributed.panels import PanelSchedule, Shares, panel_schedule
from gemmkit.distributed.predictions import PART_LINES
from gemmkit.distributed.scale_parts import LineScales
from gemmkit.distributed.splits import Span
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team
from gemmkit.float8_products import CHUNK

# Those of A and of B.
_Scales = tuple[LineScales | None, LineScales | None]


@dataclass(frozen=True, slots=True)
class PanelPlan:
    """How a rank goes about it: the same for all calls that are alike."""

    schedule: PanelSchedule
    means: tuple[Communicator | None, Communicator | None]
    teams: tuple[Team | None, Team | None]
    shares: tuple[Shares, Shares]
    whole: bool
    dtype: str
    result: Any


def panel_plan(asked: SpreadProduct, agreement: Agreement, strategy: Strategy) -> PanelPlan:
    """How this rank goes about a product of which panels travel.

    Raises:
        DistributedError: A and B have different k.
        UnsupportedProblem: a group has no such means.
    """
    assert agreement.panels is not None
    shares, teams = [], []
    for at, side in zip(agreement.panels, (asked.a.shape[1], asked.b.shape[0]), strict=True):
        team = None if at is None else asked.teams[at]
        teams.append(team)
        shares.append(
            Shares((side,), 0)
            if at is None or team is None
            else Shares(agreement.sizes[at].k, team.rank)
        )
    multiple = 1
    if asked.a.is_cuda:
        multiple = PART_LINES
    elif any(each.of_chunks for each in agreement.kinds):
        multiple = CHUNK
    whole = strategy.way == "whole"
    parts = strategy.parts if strategy.way == "parts" else 1
    made = panel_schedule(shares[0], shares[1], parts, multiple, whole=whole)
    means = [None if team is None else team.means(strategy) for team in teams]
    return PanelPlan(
        made,
        (means[0], means[1]),
        (teams[0], teams[1]),
        (shares[0], shares[1]),
        whole,
        str(asked.a.dtype).removeprefix("torch."),
        asked.dtype,
    )


def multiply_panels(
    asked: SpreadProduct, agreement: Agreement, strategy: Strategy, product: LocalProduct, out: Any
) -> Any:
    """This rank's part of the result.

    Args:
        asked: what this rank asks for.
        agreement: what all ranks do.
        strategy: how.
        product: how panels are multiplied, with the epilogue.
        out: the array for the result, or None.

    Raises:
        DistributedError: a rank failed.
        UnsupportedProblem: there is no such product.
    """
    plan = panel_plan(asked, agreement, strategy)
    own = line_scales(asked.scale_a, asked.scale_b, agreement.kinds)
    return run_plan(plan, asked.a, asked.b, product, out, own)


def run_plan(
    plan: PanelPlan,
    a: Any,
    b: Any,
    product: LocalProduct,
    out: Any,
    own: _Scales,
) -> Any:
    """This rank's part of the result, by a plan; `own` are the scales of its parts of A and B.

    Raises:
        DistributedError: a rank failed.
        UnsupportedProblem: scales cannot be those of the panels.
    """
    scales = None
    if own != (None, None):
        product, scales = _scaled(plan, product, own)
    if out is None:
        out = a.new_empty((a.shape[0], b.shape[1]), dtype=plan.result)
    wide: Callable[[], Any] | None = None
    if out.element_size() < 4:
        shape = out.shape

        def wide() -> Any:
            return a.new_empty(shape, dtype=torch.float32)

    arrays = PanelArrays(a, b, out, product, wide, scales)
    run_panels(plan.schedule, arrays, plan.means, plan.dtype, whole=plan.whole)
    return out


def _scaled(
    plan: PanelPlan, product: LocalProduct, own: _Scales
) -> tuple[LocalProduct, dict[Span, _Scales] | None]:
    """The product with scales, if it is made once, and otherwise the scales of each panel.

    Raises:
        UnsupportedProblem: as `PanelScales.of` and `PanelScales.joined`.
    """
    a, b = (
        None if each is None else PanelScales.gathered(each, team, shares.sizes)
        for each, team, shares in zip(own, plan.teams, plan.shares, strict=True)
    )
    if plan.whole:
        lines, fixed = (None if each is None else each.joined() for each in (a, b))
        return replace(product, scale_lines=lines, scale_fixed=fixed), None
    scales = {
        each.span: (
            None if a is None else a.of(each.span, each.owner_a),
            None if b is None else b.of(each.span, each.owner_b),
        )
        for each in plan.schedule.products
    }
    if not scales:
        product = replace(product, scale_lines=own[0], scale_fixed=own[1])
    return product, scales
