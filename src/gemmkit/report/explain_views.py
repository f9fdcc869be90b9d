"""What the page of `gemmkit explain` draws besides tables: source lines, accesses, the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from gemmkit.analysis.explain import Explanation, Facts
from gemmkit.analysis.occupancy import Limiter, launch_resources, occupancy
from gemmkit.analysis.patterns import (
    WORDS_PER_SECTOR,
    has_tiles,
    lines_of,
    ownership,
    phases_of,
)
from gemmkit.analysis.roofline import roofline
from gemmkit.analysis.trace import Trace, sectors, wavefronts
from gemmkit.emulator.watching import WatchedAccess
from gemmkit.gpu import WARP_SIZE
from gemmkit.kernels.plan import ceil_div
from gemmkit.report.document import View
from gemmkit.report.explain_text import source_table
from gemmkit.report.layout import Cell, Column, Row, Table, value_text
from gemmkit.report.pictures.board import pipe_of, roofline_points
from gemmkit.report.pictures.captions import (
    access_name,
    address_caption,
    bank_caption,
    element_name,
    owner_caption,
)

# Lines of a request that are drawn; a strided one has 32, all alike.
MOST_LINES = 8


def explain_views(
    explained: Explanation, gathered: Sequence[Facts], traces: Sequence[Trace]
) -> Mapping[str, tuple[View, ...]]:
    """Views for `explanation_document`, by section.

    Args:
        explained: what the page is about.
        gathered: the facts of each kernel that was launched.
        traces: one block of each.
    """
    found: dict[str, tuple[View, ...]] = {}
    if explained.source:
        table = source_table(explained)
        lines = msgspec.to_builtins(explained.source)
        found[table.caption] = (View("source", {"lines": lines}, table),)
    if traces:
        found["Accesses of a warp"] = tuple(map(access_view, traces))
    found["Tiles of a block"] = tuple(tile_view(each) for each in traces if has_tiles(each))
    found["What if"] = tuple(
        occupancy_view(each)
        for each in gathered
        if each.occupancy is not None and each.binary.resources is not None
    )
    found["Roofline"] = tuple(roofline_views(gathered))
    return {title: views for title, views in found.items() if views}


def occupancy_view(facts: Facts) -> View:
    """Occupancy over registers, shared memory and threads, to be changed together.

    Occupancy is the least of limits that each depend on one or two of them; the page looks them up.
    """
    seen, taken = facts.occupancy, launch_resources(facts.plan, facts.binary)
    assert seen is not None
    capability = facts.gpu.capability
    warps = range(1, capability.max_threads_per_block // WARP_SIZE + 1)
    registers = range(8, capability.max_registers_per_thread + 2, 8)
    units = range(0, capability.max_shared_per_block + 1, capability.shared_unit)

    def limits(registers: int, warps: int, shared_bytes: int) -> Mapping[Limiter, int]:
        return occupancy(
            facts.gpu,
            registers=min(registers, capability.max_registers_per_thread),
            threads=WARP_SIZE * warps,
            shared_bytes=shared_bytes,
            blocks=1,
        ).limits

    data = {
        "kernel": facts.name,
        "board": facts.gpu.name,
        "here": {
            "registers": taken["registers"],
            "threads": taken["threads"],
            "shared": taken["shared_bytes"],
        },
        "most_warps": capability.max_warps_per_sm,
        "registers": [min(each, capability.max_registers_per_thread) for each in registers],
        "shared": list(units),
        "by_registers": [
            [limits(each, count, 0)["registers"] for each in registers] for count in warps
        ],
        "by_shared": [limits(8, 1, each)["shared memory"] for each in units],
        "by_warps": [limits(8, count, 0)["warps"] for count in warps],
        "blocks": capability.max_blocks_per_sm,
        "barriers": seen.limits["barriers"],
    }
    rows = tuple(Row((Cell(name), Cell(str(limit)))) for name, limit in seen.limits.items())
    columns = (Column("limit", "left"), Column("blocks per SM"))
    return View("occupancy", data, Table(f"Limits of {facts.name}", columns, rows))


def tile_view(trace: Trace) -> View:
    """The elements of A, B and C that a block loads and stores, by thread."""
    owned = [ownership(trace, array) for array in "ABC"]
    rows = tuple(
        Row(
            (
                Cell(each.array),
                Cell("×".join(map(str, each.threads.shape))),
                Cell(owner_caption(each)),
            )
        )
        for each in owned
    )
    columns = (Column("matrix", "left"), Column("elements"), Column("by", "left"))
    tiles = [
        {
            "array": each.array,
            "caption": owner_caption(each),
            "row": each.row,
            "column": each.col,
            "columns": each.threads.shape[1],
            # A line per row of the tile; runs of one thread as pairs of thread and length.
            "rows": [_lengths(line) for line in each.threads.tolist()],
        }
        for each in owned
    ]
    data = {"kernel": trace.kernel, "warps": trace.warps, "tiles": tiles}
    return View("tiles", data, Table(f"Tiles of a block of {trace.kernel}", columns, rows))


def _lengths(line: Sequence[int]) -> list[int]:
    """Each run of equal values as the value and its length."""
    return [part for value, run in groupby(line) for part in (value, len(list(run)))]


def access_view(trace: Trace) -> View:
    """The different requests of a block's first warp, with the words and banks of each lane."""
    accesses = trace.representatives()
    rows = tuple(
        Row(
            (
                Cell(f"{each.file}:{each.line}"),
                Cell(access_name(each).partition(":")[0]),
                Cell(each.opcode),
                Cell(_caption(each)),
            )
        )
        for each in accesses
    )
    columns = tuple(Column(name, "left") for name in ("line", "access", "instruction", "cost"))
    table = Table(f"Requests of warp 0 of {trace.kernel}", columns, rows)
    data = {"kernel": trace.kernel, "accesses": [_access(trace, each) for each in accesses]}
    return View("accesses", data, table)


def _caption(access: WatchedAccess) -> str:
    return bank_caption(access) if access.space == "shared" else address_caption(access)


def _access(trace: Trace, access: WatchedAccess) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": access_name(access),
        "caption": _caption(access),
        "file": access.file,
        "line": access.line,
        "space": access.space,
        "worse": False,
    }
    if access.space == "shared":
        phases = phases_of(access)
        told["rows"] = [
            {
                "label": f"phase {number}" if not depth else "conflict",
                "conflict": depth > 0,
                "cells": [
                    list(words[depth]) if depth < len(words) else [] for words in phase.banks
                ],
            }
            for number, phase in enumerate(phases)
            for depth in range(phase.wavefronts)
        ]
        told["worse"] = wavefronts(access) > len(phases)
        return told
    lines = lines_of(access)
    told["rows"] = [
        {
            "label": element_name(trace, access, line.offset),
            "conflict": False,
            "cells": [list(lanes) for lanes in line.words],
        }
        for line in lines[:MOST_LINES]
    ]
    told["more"] = max(len(lines) - MOST_LINES, 0)
    words = sum(bool(lanes) for line in lines for lanes in line.words)
    told["worse"] = sectors(access) > ceil_div(words, WORDS_PER_SECTOR)
    return told


def roofline_views(gathered: Sequence[Facts]) -> Iterator[View]:
    """The board's roofs and the kernels under them, apart for each pipe that multiplies."""
    predicted = [each for each in gathered if each.prediction is not None]
    for pipe in dict.fromkeys(map(pipe_of, predicted)):
        yield _roofline_view([each for each in predicted if pipe_of(each) == pipe])


def _roofline_view(gathered: Sequence[Facts]) -> View:
    points = roofline_points(gathered)
    first = gathered[0]
    roofs = roofline(first.gpu, pipe_of(first))
    rows = tuple(
        Row(
            (
                Cell(each.label),
                Cell(each.level),
                Cell(value_text(each.intensity)),
                Cell(value_text(each.tflops)),
                Cell(value_text(roofs.attainable(each.level, each.intensity))),
            )
        )
        for each in points
    )
    columns = (
        Column("kernel", "left"),
        Column("level", "left"),
        Column("FLOP per byte"),
        Column("TFLOP/s, predicted"),
        Column("attainable"),
    )
    data = {
        "board": roofs.board,
        "pipe": str(roofs.pipe),
        "peak": roofs.peak_tflops,
        "ceilings": [
            {"level": each.level, "gb_per_s": each.gb_per_s, "source": each.source}
            for each in roofs.ceilings
        ],
        "points": [
            {
                "label": each.label,
                "level": each.level,
                "intensity": each.intensity,
                "tflops": each.tflops,
            }
            for each in points
        ],
    }
    return View("roofline", data, Table(f"Roofline of {roofs.board}", columns, rows))
