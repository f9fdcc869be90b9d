"""The requests of a warp, with the words and banks of each lane."""

from __future__ import annotations

from typing import Any

from gemmkit.analysis.patterns import WORDS_PER_SECTOR, lines_of, phases_of
from gemmkit.analysis.trace import Trace, sectors, wavefronts
from gemmkit.emulator.counters.rules import WORD_BYTES
from gemmkit.emulator.watching import WatchedAccess
from gemmkit.kernels.plan import ceil_div
from gemmkit.report.document import View
from gemmkit.report.layout import Cell, Column, Row, Table
from gemmkit.report.pictures.captions import (
    access_name,
    address_caption,
    bank_caption,
    element_name,
)
from gemmkit.report.source_lines import place_name

# Lines of a request that are drawn; a strided one has 32, all alike.
MOST_LINES = 8


def access_view(trace: Trace, name: str) -> View:
    """The different requests of a block's first warp, with the words and banks of each lane.

    Args:
        trace: the block.
        name: of the kernel, which tells it from another configuration of the same.
    """
    accesses = trace.representatives()
    rows = tuple(
        Row(
            (
                Cell(place_name(each.file, each.line)),
                Cell(access_name(each).partition(":")[0]),
                Cell(each.opcode),
                Cell(_caption(each)),
            )
        )
        for each in accesses
    )
    columns = tuple(Column(name, "left") for name in ("line", "access", "instruction", "cost"))
    table = Table(f"Requests of warp 0 of {name}", columns, rows)
    data = {"kernel": name, "accesses": [_access(trace, each) for each in accesses]}
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
        told["touched"] = _words_touched(access)
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


def _words_touched(access: WatchedAccess) -> list[int]:
    """The words of shared memory that a request touches, by address."""
    last = access.bytes_per_lane - 1
    starts = (access.base + each for each in access.offsets if each is not None)
    touched = {
        word
        for start in starts
        for word in range(start // WORD_BYTES, (start + last) // WORD_BYTES + 1)
    }
    return sorted(touched)
