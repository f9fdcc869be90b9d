"""Runs SUMMA's schedule of a rank on its arrays: panels travel while others are multiplied.

Sums of 16-bit results are accumulated in fp32, in memory of their own, and rounded once, after all
panels; other results hold their own sums. Only where an activation follows 16-bit sums, those of
all panels but the last are rounded once more, for the last product applies it in its write-back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemmkit.distributed.communicator import Arrival, Communicator, Outgoing, Transfers
from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.panels import Operand, PanelProduct, PanelSchedule
from gemmkit.distributed.scale_parts import LineScales
from gemmkit.distributed.schedule import Exchange, Schedule
from gemmkit.distributed.splits import Span


@dataclass(frozen=True, slots=True)
class PanelArrays:
    """What a rank multiplies: its parts of A and B, m×k_a and k_b×n; `out` is its part of the
    result. `wide()` makes an array of its shape for sums of more precision, None where `out` holds
    its own. `scales` are those of each panel's columns of A and rows of B, where there are any."""

    a: Any
    b: Any
    out: Any
    product: LocalProduct
    wide: Callable[[], Any] | None
    scales: Mapping[Span, tuple[LineScales | None, LineScales | None]] | None = None

    def scaled(self, product: LocalProduct, panel: Span) -> LocalProduct:
        """A product with the scales of a panel."""
        if self.scales is None:
            return product
        lines, fixed = self.scales[panel]
        return replace(product, scale_lines=lines, scale_fixed=fixed)


def run_panels(
    schedule: PanelSchedule,
    arrays: PanelArrays,
    means: tuple[Communicator | None, Communicator | None],
    dtype: str,
    *,
    whole: bool = False,
) -> None:
    """Multiply, together with all other ranks of the mesh.

    Args:
        schedule: this rank's.
        arrays: this rank's.
        means: what A's panels travel by, and what B's do; None where they do not.
        dtype: the type of what is sent.
        whole: whether to multiply once, when all panels are there: with the bits of one product,
            for which the arrays' product has all scales.

    Raises:
        DistributedError: a rank failed.
    """
    sides: dict[Operand, _Side] = {
        "a": _Side(schedule.a, means[0], arrays.a, dtype, turned=True),
        "b": _Side(schedule.b, means[1], arrays.b, dtype, turned=False),
    }
    for operand, exchange in schedule.exchanges:
        sides[operand].exchange(exchange)
    if whole or not schedule.products:
        _one_product(schedule.products, sides, arrays)
    else:
        _accumulated(schedule.products, sides, arrays)
    for side in sides.values():
        side.finish()


def _one_product(
    products: Sequence[PanelProduct], sides: dict[Operand, _Side], arrays: PanelArrays
) -> None:
    """All panels next to each other."""
    spans = [each.span for each in products]
    a, b = sides["a"].joined(spans), sides["b"].joined(spans)
    arrays.product(a, b, arrays.out, None, Span(0, len(arrays.out)))


def _accumulated(
    products: Sequence[PanelProduct], sides: dict[Operand, _Side], arrays: PanelArrays
) -> None:
    """A product for each panel, which adds to the sums of those before."""
    product, out, span = arrays.product, arrays.out, Span(0, len(arrays.out))
    if len(products) == 1:
        (only,) = products
        a, b = sides["a"].take(only.span), sides["b"].take(only.span)
        arrays.scaled(product, only.span)(a, b, out, None, span)
        return
    sums = out if arrays.wide is None else arrays.wide()
    rest = replace(product, c=None, beta=0.0)
    first = replace(product, bias=None, residual=None, epilogue=None)
    if first.c is not None and sums is not out:
        first = replace(first, c=widened(first.c, sums))
    *before, last = products
    for number, each in enumerate(before):
        a, b = sides["a"].take(each.span), sides["b"].take(each.span)
        if number:
            arrays.scaled(rest, each.span)(a, b, sums, sums, None)
        else:
            arrays.scaled(first, each.span)(a, b, sums, None, span)
    a, b = sides["a"].take(last.span), sides["b"].take(last.span)
    rest = arrays.scaled(rest, last.span)
    if sums is not out and rest.is_linear:
        rest(a, b, sums, sums, None)
        rest.add([sums], out, span)
        return
    if sums is not out:
        out[:] = sums
    rest(a, b, out, out, span)


def widened(array: Any, like: Any) -> Any:
    """An array in the type of another one."""
    return array.astype(like.dtype) if isinstance(array, np.ndarray) else array.to(like.dtype)


class _Side:
    """One operand's panels: its own lie in `operand`, others arrive.

    Panels of A are columns, which are `turned` for their way: what is sent as lines of m elements
    is the panel's memory, row by row.
    """

    def __init__(
        self,
        schedule: Schedule | None,
        means: Communicator | None,
        operand: Any,
        dtype: str,
        *,
        turned: bool,
    ) -> None:
        self._operand, self._turned = operand, turned
        self._base = 0 if schedule is None else schedule.own.start
        self._arrivals: dict[Span, Arrival] = {}
        self._sent: dict[Span, Any] = {}
        self._transfers: Transfers | None = None
        self._width = operand.shape[0 if turned else 1]
        if schedule is None or means is None:
            return
        # In memory of their own before anything is sent: what sends waits for it once.
        exchanges = [each for each in schedule.steps if isinstance(each, Exchange)]
        for span in dict.fromkeys(each.piece.span for step in exchanges for each in step.sends):
            self._sent[span] = _contiguous(self._own(span))
        self._transfers = means.start(schedule, operand, dtype, self._width)

    def _own(self, span: Span) -> Any:
        part = slice(span.start - self._base, span.stop - self._base)
        return self._operand[:, part] if self._turned else self._operand[part]

    def exchange(self, step: Exchange) -> None:
        """Start transfers, where there are any."""
        if self._transfers is None:
            return
        sends = [
            Outgoing(self._sent[each.piece.span].reshape(each.piece.span.size, self._width), each)
            for each in step.sends
        ]
        arrivals = self._transfers.exchange(sends, step.receives)
        for transfer, arrival in zip(step.receives, arrivals, strict=True):
            self._arrivals[transfer.piece.span] = arrival

    def take(self, span: Span) -> Any:
        """A panel, once it is there: m×k or k×n elements."""
        arrival = self._arrivals.get(span)
        if arrival is None:
            found = self._sent.get(span)
            return self._own(span) if found is None else found
        lines = arrival.take()
        return lines.reshape(self._width, span.size) if self._turned else lines

    def joined(self, spans: Sequence[Span]) -> Any:
        """Panels next to each other; of none, all that this rank has."""
        if self._transfers is None or not spans:
            return self._operand
        panels = [self.take(each) for each in spans]
        if len(panels) == 1:
            return panels[0]
        return _joined(panels, 1 if self._turned else 0)

    def finish(self) -> None:
        """As `Transfers.finish`."""
        if self._transfers is not None:
            self._transfers.finish()


def _contiguous(array: Any) -> Any:
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.contiguous()


def _joined(arrays: list[Any], axis: int) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, axis)
    import torch

    return torch.cat(arrays, axis)
