"""Sums of memory accesses per source line and per array."""

from __future__ import annotations

from gemmkit.analysis.memory import array_table, memory_table
from gemmkit.record import AccessCounts


def access(**changes: object) -> AccessCounts:
    fields = {
        "file": "k.cu",
        "line": 3,
        "number": 0,
        "opcode": "ld.global.f32",
        "array": "A",
        "space": "global",
        "kind": "load",
        "bytes_per_lane": 4,
        "lanes": 64,
        "instructions": 2,
        "requests": 2,
        "sectors": 8,
        "ideal_sectors": 4,
        "tag_wavefronts": 2,
        "wavefronts": 0,
        "ideal_wavefronts": 0,
        "conflicts": 0,
    }
    return AccessCounts(**{**fields, **changes})


ACCESSES = (
    access(),
    access(number=1, sectors=24),
    access(number=2, line=2, array="B"),
    access(number=3, requests=0, instructions=0, array="C"),
    access(number=4, line=5, array="As", space="shared", sectors=0, ideal_sectors=0, requests=8,
           wavefronts=8, ideal_wavefronts=4, conflicts=4),
)  # fmt: skip


def test_lines_in_order_with_sums():
    rows = memory_table(ACCESSES)
    assert [(each.line, each.array) for each in rows] == [(2, "B"), (3, "A"), (5, "As")]
    both = rows[1]
    assert (both.requests, both.sectors, both.data_bytes) == (4, 32, 2 * 64 * 4)
    assert both.sectors_per_request == 8
    assert both.ideal_sectors_per_request == 2
    assert rows[2].wavefronts_per_instruction == 4


def test_arrays_without_lines():
    rows = array_table((*ACCESSES, access(number=5, line=9)))
    assert {each.array: each.requests for each in rows} == {"A": 6, "B": 2, "As": 8}
    assert {each.line for each in rows} == {None}


def test_nothing_was_made():
    assert memory_table(()) == ()
    (row,) = memory_table([access(instructions=0, requests=1)])
    assert row.wavefronts_per_instruction is None
