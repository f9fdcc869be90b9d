"""Runs the schedule of a rank on its arrays: the same for threads, processes and GPUs.

Everything here is in terms of lines: rows of the left operand and of the result. A product whose
right operand is split by columns is that of the transposes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gemmkit.distributed.communicator import Arrival, Communicator, Outgoing, Transfers
from gemmkit.distributed.schedule import Cargo, Exchange, Product, Schedule, Sum
from gemmkit.distributed.splits import Span
from gemmkit.ops.allgather import GatheredRows


class Multiply(Protocol):
    """The product of this rank's arrays: `out` = lines · fixed, in the call's precision."""

    def __call__(
        self,
        lines: Any,
        fixed: Any,
        out: Any,
        sums: Any,
        span: Span | None,
        place: Span | None = None,
    ) -> None:
        """Write a product.

        Args:
            lines: m×k elements.
            fixed: k×n elements.
            out: m×n elements.
            sums: m×n elements that are added to the product, or None.
            span: the lines of this rank's result for which bias, activation and residual follow;
                None where what is written are sums.
            place: the lines of the whole split side that are multiplied; None for all.
        """

    def under_gather(self, lines: GatheredRows, fixed: Any, out: Any, span: Span) -> bool:
        """Write the product of lines that arrive meanwhile, by one launch that waits for them.

        Args:
            lines: m×k elements, of all ranks.
            fixed: as for a product of lines that are there, as `out` is, and `span`.

        Returns:
            Whether it is written; False where no kernel does that.
        """


@dataclass(frozen=True, slots=True)
class Arrays:
    """What a rank multiplies.

    `split` holds its share of the lines if they are gathered, else all of them; `out` its share if
    sums are scattered, else all. `new(lines)` makes an array of sums, and `add(arrays, out, span)`
    writes sums of all ranks to the result.
    """

    split: Any
    fixed: Any
    out: Any
    multiply: Multiply
    new: Callable[[int], Any]
    add: Callable[[list[Any], Any, Span], None]


def run(schedule: Schedule, arrays: Arrays, communicator: Communicator, dtype: str) -> None:
    """Multiply, together with all other ranks.

    Args:
        schedule: this rank's.
        arrays: this rank's.
        communicator: for a schedule that sends nothing, it is not asked.
        dtype: the type of what is sent.

    Raises:
        DistributedError: a rank failed.
    """
    if schedule.form == "local":
        arrays.multiply(arrays.split, arrays.fixed, arrays.out, None, Span(0, len(arrays.split)))
        return
    gathers = schedule.form == "gather"
    width = arrays.split.shape[1] if gathers else arrays.fixed.shape[1]
    transfers = communicator.start(schedule, arrays.split, dtype, width)
    _Run(schedule, arrays, transfers).all_steps()
    transfers.finish()


class _Run:
    """The state of one call."""

    def __init__(self, schedule: Schedule, arrays: Arrays, transfers: Transfers) -> None:
        self._schedule, self._arrays, self._transfers = schedule, arrays, transfers
        self._arrivals: dict[tuple[Cargo, Span, int], Arrival] = {}
        self._sums: dict[Span, Any] = {}
        self._gathers = schedule.form == "gather"

    def all_steps(self) -> None:
        """Run the steps, in order."""
        for step in self._schedule.steps:
            if isinstance(step, Exchange):
                self._exchange(step)
            elif isinstance(step, Product):
                self._multiply(step)
            else:
                self._add(step)
        # Complete results of others, which nothing else reads.
        for (cargo, span, _), arrival in self._arrivals.items():
            if cargo == "result":
                self._result(span)[:] = arrival.take()

    def _exchange(self, step: Exchange) -> None:
        sends = [Outgoing(self._outgoing(step.cargo, each.piece.span), each) for each in step.sends]
        arrivals = self._transfers.exchange(sends, step.receives)
        for transfer, arrival in zip(step.receives, arrivals, strict=True):
            self._arrivals[step.cargo, transfer.piece.span, transfer.peer] = arrival

    def _outgoing(self, cargo: Cargo, span: Span) -> Any:
        if cargo == "operand":
            return self._own(span)
        if cargo == "result":
            return self._result(span)
        found = self._sums.get(span)
        if found is None:
            # Part of the one product of all lines.
            ((whole, sums),) = self._sums.items()
            return sums[span.start - whole.start : span.stop - whole.start]
        return found

    def _own(self, span: Span) -> Any:
        """Lines of this rank's own operand."""
        base = self._schedule.own.start if self._gathers else 0
        return self._arrays.split[span.start - base : span.stop - base]

    def _relative(self, span: Span) -> Span:
        """Lines of the result as this rank counts its own."""
        base = self._schedule.own.start if self._schedule.form == "scatter" else 0
        return Span(span.start - base, span.stop - base)

    def _result(self, span: Span) -> Any:
        start, stop = self._relative(span)
        return self._arrays.out[start:stop]

    def _multiply(self, step: Product) -> None:
        span = step.span
        if step.reads == "arriving":
            self._multiply_arriving(step)
            return
        if step.reads == "gathered":
            lines = self._transfers.gathered(self._arrays.split)
        elif step.reads == "arrived":
            lines = self._arrivals.pop(("operand", span, step.owner)).take()
        else:
            lines = self._own(span)
        sums = None
        if step.adds:
            before = (self._schedule.rank - 1) % self._schedule.ranks
            sums = self._arrivals.pop(("sums", span, before)).take()
        if step.final:
            self._arrays.multiply(
                lines, self._arrays.fixed, self._result(span), sums, self._relative(span), span
            )
            return
        made = self._sums[span] = self._arrays.new(span.size)
        self._arrays.multiply(lines, self._arrays.fixed, made, sums, None, span)

    def _multiply_arriving(self, step: Product) -> None:
        """One launch, or, where no kernel waits for lines itself, the product of all, once they are
        there: that of each share by itself could have other bits."""
        arrays, transfers = self._arrays, self._transfers
        out, span = self._result(step.span), self._relative(step.span)
        lines = transfers.arriving(self._own(self._schedule.own))
        if lines is not None and arrays.multiply.under_gather(lines, arrays.fixed, out, span):
            transfers.waited()
            return
        gathered = transfers.gathered(arrays.split)
        arrays.multiply(gathered, arrays.fixed, out, None, span, step.span)

    def _add(self, step: Sum) -> None:
        """The sums of all ranks, in the order of ranks: the same on whichever rank adds them."""
        terms = []
        for rank in range(self._schedule.ranks):
            if rank == self._schedule.rank:
                terms.append(self._outgoing("sums", step.span))
            else:
                terms.append(self._arrivals.pop(("sums", step.span, rank)).take())
        self._arrays.add(terms, self._result(step.span), self._relative(step.span))
