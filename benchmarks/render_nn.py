"""Write the table of layers in `docs/library.md` anew, from what `nn.py` has measured.

`.venv/bin/python benchmarks/render_nn.py [FILE]`, by default `results/h100-nn.json`; no GPU needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from limiters import busiest_unit

from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION
from gemmkit.record import JsonLine, TimeRecord
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.readme import replace_generated

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "benchmarks" / "results" / "h100-nn.json"
PAGE = ROOT / "docs" / "library.md"
SECTION, WRITER = "layers", "benchmarks/render_nn.py"
BOARD = find_board("h100")
PRODUCTS = {kernel.name for kernel in (*LADDER, *PRODUCTION)}
# A kernel that is not a product is listed from this share of the kernels' time on.
LEAST_TOLD = 0.1


class Part(msgspec.Struct, frozen=True):
    """Launches of a kernel in one call of a layer, and their microseconds together."""

    launches: float
    us: float


class LayerRecord(JsonLine, frozen=True, kw_only=True):
    """A layer, and PyTorch's own: microseconds per call, and largest errors over the largest
    result.

    `way` is how it was timed: "graph" or "calls". `speedup` is PyTorch's time / gemmkit's,
    `minimal_bytes` those of inputs and result. `parts` and `torch_parts` are the kernels of a call
    by name, the longest first, as PyTorch's profiler timed them.
    """

    layer: str
    sizes: str
    way: str
    correct: bool
    error: float
    torch_error: float
    time_us: TimeRecord
    torch_us: TimeRecord
    speedup: float
    tflops: float
    minimal_bytes: int
    parts: dict[str, Part]
    torch_parts: dict[str, Part]
    environment: dict[str, Any]


COLUMNS = (
    Column("layer", "left"),
    Column("sizes", "left"),
    Column("TFLOP/s"),
    Column("µs"),
    Column("× PyTorch"),
    Column("µs per call"),
    Column("× PyTorch"),
    Column("error / PyTorch's"),
    Column("limiter", "left"),
)


def limiter(record: LayerRecord) -> str:
    """What limits a layer that was timed as a graph.

    The unit that is busy for half of the time at least; else how much of the kernels' time products
    take, and how near they come to the fp32 peak. And the other kernels that take a tenth or more.
    """
    parts, time = record.parts, record.time_us.median
    found = busiest_unit(record.tflops, record.minimal_bytes / time / 1e3, BOARD)
    total = sum(part.us for part in parts.values())
    products = [part for name, part in parts.items() if name in PRODUCTS]
    if found is None and products:
        spent = sum(part.us for part in products)
        peak = record.tflops * time / spent / BOARD.peak_tflops
        count = round(sum(part.launches for part in products))
        each = f"{count} products" if count > 1 else "the product"
        found = f"{each}: {spent / total:.0%} of the time, {peak:.0%} of the fp32 peak"
    told = [
        f"{name}: {part.us / total:.0%} of the time"
        for name, part in parts.items()
        if name not in PRODUCTS and part.us >= LEAST_TOLD * total
    ]
    return "; ".join([found, *told] if found else told) or MISSING


def table(records: Sequence[LayerRecord]) -> Table:
    """A row for each layer and its sizes: as a graph, and as calls one after the other."""
    seen: dict[tuple[str, str], dict[str, LayerRecord]] = {}
    for record in records:
        seen.setdefault((record.layer, record.sizes), {})[record.way] = record
    rows = []
    for (layer, sizes), ways in seen.items():
        graph, calls = ways.get("graph"), ways.get("calls")
        ratio = MISSING
        if graph and graph.torch_error:
            ratio = f"{graph.error / graph.torch_error:.1f}"
        words = [
            layer,
            sizes,
            f"{graph.tflops:.1f}" if graph else MISSING,
            *_timed(graph),
            *_timed(calls),
            ratio,
            limiter(graph) if graph else MISSING,
        ]
        rows.append(Row(tuple(map(Cell, words))))
    return Table("Layers beside PyTorch's own", COLUMNS, tuple(rows))


def section(records: Sequence[LayerRecord]) -> str:
    """The table with what it was measured on, in Markdown."""
    where = records[0].environment
    wrong = sum(not record.correct for record in records)
    verdict = "all right" if not wrong else f"{wrong} WRONG"
    return (
        f"{table(records).to_markdown()}\n"
        "Medians, timed in turn: first as CUDA graphs, which is what the GPU needs, then as calls "
        "one after the other, where the host may be what takes longest. The limiter is that of the "
        "graph: shares of peaks count the layer's own multiply-adds, and its arrays once; shares "
        "of the time are the profiler's. Results against float64: "
        f"{verdict}. {where['gpu']}, PyTorch {where['torch']}, cuDNN {where['cudnn']}, TF32 off, "
        f"commit {where.get('commit', 'unknown')}.\n"
    )


def _timed(record: LayerRecord | None) -> tuple[str, str]:
    if record is None:
        return MISSING, MISSING
    return f"{record.time_us.median:,.1f}", f"{record.speedup:.2f}"


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    records = [LayerRecord.from_json(line) for line in path.read_bytes().splitlines()]
    text = replace_generated(PAGE.read_text("utf-8"), {SECTION: section(records)}, WRITER)
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
