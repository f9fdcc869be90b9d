"""The counting rules against what an H100 counted for one-warp micro kernels.

`data/*.csv` holds, per kernel: what it executes (`lds8`: a shared load of 8 bytes a lane; `ldga`
and `ldgg`: a global load cached in L1 or not), Nsight Compute's counts for one request, and the 32
lanes' byte offsets, negative where a lane is inactive.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from gemmkit.emulator.counters.rules import (
    global_lines,
    global_sectors,
    local_sectors,
    shared_phases,
    shared_wavefronts,
)

DATA = Path(__file__).parents[1] / "data"


def measured(name: str, kinds: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return [row for row in csv.DictReader(file) if re.match(kinds, row["kind"])]


def read(row: dict[str, str]) -> tuple[list[int], list[bool], int]:
    offsets = [int(each) for each in row["offsets"].split()]
    nbytes = int(re.findall(r"\d+", row["kind"])[0])
    return offsets, [offset >= 0 for offset in offsets], nbytes


@pytest.mark.parametrize("kind", ["lds4", "lds8", "lds16", "sts4", "sts8", "sts16"])
def test_shared_wavefronts_and_conflicts_are_the_hardwares(kind: str) -> None:
    rows = measured("shared_memory.csv", f"{kind}$")
    assert len(rows) > 50
    for row in rows:
        offsets, active, nbytes = read(row)
        counted = shared_wavefronts(offsets, active, nbytes, store=kind.startswith("st"))
        assert counted == (int(row["wavefronts"]), int(row["conflicts"])), row


@pytest.mark.parametrize("kind", ["ldg", "stg"])
def test_global_sectors_and_lines_are_the_hardwares(kind: str) -> None:
    rows = measured("global_memory.csv", kind)
    assert len(rows) > 60
    for row in rows:
        offsets, active, nbytes = read(row)
        addresses = [offset for offset, on in zip(offsets, active, strict=True) if on]
        assert global_sectors(addresses, nbytes) == int(row["sectors"]), row
        assert global_lines(addresses, nbytes) == int(row["lines"]), row


def test_no_active_lane_costs_nothing() -> None:
    assert global_sectors([], 4) == 0
    assert shared_wavefronts([0] * 32, [False] * 32, 16, store=False) == (0, 0)


@pytest.mark.parametrize(
    ("addresses", "nbytes", "store", "wavefronts"),
    [
        ([0] * 32, 16, False, 2),  # uniform
        ([0] * 32, 16, True, 4),
        ([16 * lane for lane in range(32)], 16, False, 4),  # unit stride
        ([16 * (lane % 8) for lane in range(32)], 16, False, 4),
        ([16 * (lane // 2 % 8) for lane in range(32)], 16, False, 2),  # pairs agree
        ([128 * lane for lane in range(32)], 4, False, 32),  # a column of [32][32] floats
        ([132 * lane for lane in range(32)], 4, False, 1),  # a column of [32][33] floats
        (list(range(32)), 1, False, 1),
    ],
)
def test_wavefronts_of_patterns_in_gemm_kernels(
    addresses: list[int], nbytes: int, store: bool, wavefronts: int
) -> None:
    assert shared_wavefronts(addresses, [True] * 32, nbytes, store)[0] == wavefronts


def test_an_inactive_lane_agrees_with_its_partner() -> None:
    addresses = [8 * lane for lane in range(32)]
    even = [lane % 2 == 0 for lane in range(32)]
    assert shared_phases(addresses, even, 8, store=False) == [list(range(0, 32, 2))]
    assert len(shared_phases(addresses, [True] * 32, 8, store=False)) == 2


def test_local_memory_interleaves_lanes() -> None:
    everyone = range(32)
    assert local_sectors(dict.fromkeys(everyone, 8), 4) == 4
    assert local_sectors(dict.fromkeys(everyone, 0), 16) == 16
    assert local_sectors({lane: 4 * lane for lane in everyone}, 4) == 32
    assert local_sectors({0: 1, 1: 2}, 1) == 1
