"""Layers beside PyTorch's own as a table, with what limits each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.analysis.limiters import busiest_unit
from gemmkit.bench.linear_peer import COMPILED, EAGER
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION
from gemmkit.record import PeerRecord, Record, TimeRecord
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.tables import correctness, number

_PRODUCTS = {kernel.name for kernel in (*LADDER, *PRODUCTION)}
# A kernel that is not a product is listed from this share of the kernels' time on.
_LEAST_TOLD = 0.1


def limiter(record: Record, board: GpuSpec) -> str:
    """What limits a layer that was timed as a graph.

    The unit that is busy for half of the time at least; else how much of the kernels' time products
    take, and how near they come to the fp32 peak. And the other kernels that take a tenth or more.
    """
    layer, time, tflops = record.layer, record.time_us, record.tflops
    if layer is None or time is None or tflops is None:
        return MISSING
    found = busiest_unit(tflops, layer.minimal_bytes / time.median / 1e3, board)
    total = sum(part.us for part in layer.parts.values())
    products = [part for name, part in layer.parts.items() if name in _PRODUCTS]
    if found is None and products:
        spent = sum(part.us for part in products)
        peak = tflops * time.median / spent / board.peak_tflops
        count = round(sum(part.launches for part in products))
        each = f"{count} products" if count > 1 else "the product"
        found = (
            f"{each}: {100 * spent / total:.0f} % of the time, {100 * peak:.0f} % of the fp32 peak"
        )
    told = [
        f"{name}: {100 * part.us / total:.0f} % of the time"
        for name, part in layer.parts.items()
        if name not in _PRODUCTS and part.us >= _LEAST_TOLD * total
    ]
    return "; ".join([found, *told] if found else told) or MISSING


def layers_table(records: Sequence[Record], title: str) -> Table:
    """A row for each layer: as a graph, and as calls one after the other."""
    board = find_board(records[0].device.gpu)
    compiled = any(_peer(each, COMPILED) for each in records)
    bounded = any(each.error_bound is not None for each in records)
    columns = (
        Column("layer", "left"),
        Column("sizes", "left"),
        *((Column("max error / bound", drop=3),) if bounded else ()),
        Column("TFLOP/s"),
        Column("median\nµs"),
        Column("20 % to 80 %\nµs", drop=5),
        Column("× PyTorch,\nop by op"),
        *((Column("× PyTorch,\ncompiled"),) if compiled else ()),
        Column("µs per\ncall", drop=4),
        Column("× PyTorch,\nop by op", drop=4),
        *((Column("× PyTorch,\ncompiled", drop=4),) if compiled else ()),
        Column("error /\nPyTorch's", drop=2),
        Column("limiter", "left", drop=1),
    )
    choices = [EAGER, *([COMPILED] if compiled else [])]
    rows = tuple(Row(tuple(_cells(record, choices, board, bounded=bounded))) for record in records)
    return Table(title, columns, rows, tuple(_footnotes(records)))


def _cells(
    record: Record, choices: Sequence[str], board: GpuSpec, *, bounded: bool
) -> Iterable[Cell]:
    layer, time = record.layer, record.time_us
    assert layer is not None
    eager = _peer(record, EAGER)
    yield Cell(layer.name if record.correct else f"{layer.name} WRONG")
    yield Cell(layer.sizes)
    if bounded:
        yield correctness(record)
    yield number(record.tflops, 1)
    yield number(time.median if time else None, 1)
    yield Cell(f"{time.p20:,.1f} to {time.p80:,.1f}" if time else MISSING)
    for choice in choices:
        peer = _peer(record, choice)
        yield number(peer.speedup if peer else None, 2)
    yield number(layer.call_us.median if layer.call_us else None, 1)
    for choice in choices:
        yield number(_call_speedup(layer.call_us, _peer(record, choice)), 2)
    yield number(None if eager is None else _error_ratio(record, eager), 1)
    yield Cell(limiter(record, board))


def _peer(record: Record, choice: str) -> PeerRecord | None:
    return next((each for each in record.peers if each.choice == choice), None)


def _call_speedup(ours: TimeRecord | None, peer: PeerRecord | None) -> float | None:
    if ours is None or peer is None or peer.call_us is None:
        return None
    return peer.call_us.median / ours.median


def _error_ratio(record: Record, peer: PeerRecord) -> float | None:
    """The layer's largest error over PyTorch's, both over the same bound where that is all that is
    known."""
    for ours, theirs in (
        (record.max_error, peer.max_error),
        (record.error_ratio, peer.error_ratio),
    ):
        if ours is not None and theirs:
            return ours / theirs
    return None


def _footnotes(records: Sequence[Record]) -> Iterable[str]:
    for record in records:
        sizes = record.layer.sizes if record.layer is not None else ""
        if not record.correct:
            yield f"WRONG: {record.kernel} {sizes}: {record.check}."
        for peer in record.peers:
            if not peer.correct:
                yield f"{peer.name} is wrong at {sizes}: {peer.check}."
