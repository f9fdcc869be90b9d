"""The counting rules against what an H100 counted for one-warp micro kernels.

`data/*.csv` holds per kernel: the instruction (`lds8`: a shared load of 8 bytes per lane; `ldga`
and `ldgg`: a global load cached in L1 or not; `cpa8`: cp.async.ca; `ldm4`: ldmatrix of four
matrices), Nsight Compute's counts for one of 64 equal requests, the cycles per request with 16
warps, and the 32 lanes' byte offsets, negative for an inactive lane.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from gemmkit.emulator.counters.rules import (
    bypass_sectors,
    bypass_tag_wavefronts,
    bypass_wavefronts,
    copy_wavefronts,
    global_lines,
    global_sectors,
    ideal_sectors,
    local_sectors,
    matrix_wavefronts,
    shared_phases,
    shared_wavefronts,
    tag_bank,
    tag_wavefronts,
)

DATA = Path(__file__).parents[1] / "data"
Row = dict[str, str]


def measured(name: str, kinds: str = "") -> list[Row]:
    with (DATA / name).open(newline="") as file:
        return [row for row in csv.DictReader(file) if re.match(kinds, row["kind"])]


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split()]


def size_of(row: Row) -> int:
    return int(re.findall(r"\d+", row["kind"])[0])


def active_of(offsets: list[int]) -> list[bool]:
    return [offset >= 0 for offset in offsets]


def addresses_of(offsets: list[int], active: list[bool]) -> list[int]:
    return [offset for offset, on in zip(offsets, active, strict=True) if on]


@pytest.mark.parametrize("kind", ["lds4", "lds8", "lds16", "sts4", "sts8", "sts16"])
def test_shared_wavefronts_and_conflicts_are_the_hardwares(kind: str) -> None:
    rows = measured("shared_memory.csv", f"{kind}$")
    assert len(rows) > 90
    for row in rows:
        offsets = numbers(row["offsets"])
        active, store = active_of(offsets), kind.startswith("st")
        counted = shared_wavefronts(offsets, active, size_of(row), store=store)
        if row["wavefronts_per_req"]:
            seen = float(row["wavefronts_per_req"]), float(row["bank_conflicts_per_req"])
            assert counted == seen, row
        else:
            # These rows have only the time. A request takes as many cycles as wavefronts.
            assert float(row["cycles_per_req_16warps"]) == pytest.approx(counted[0], abs=0.1), row


def test_matrix_wavefronts_and_conflicts_are_the_hardwares() -> None:
    rows = measured("ldmatrix_stmatrix.csv")
    assert len(rows) == 96
    for row in rows:
        counted = matrix_wavefronts(numbers(row["offsets"])[: 8 * size_of(row)])
        seen = float(row["wavefronts_per_req"]), float(row["bank_conflicts_per_req"])
        assert counted == seen, row


def test_copies_take_the_hardwares_wavefronts() -> None:
    rows = measured("cp_async.csv")
    assert len(rows) == 72
    for row in rows:
        to, start = numbers(row["dst"]), numbers(row["src"])
        counted, conflicts = copy_wavefronts(to, start, active_of(to), size_of(row))
        wavefronts = float(row["wavefronts_mem_shared_per_req(minus 14 misc)"])
        lines = float(row["set_accesses"])
        if row["pattern"] == "d:s1 s:mis+16":
            # The 128 bytes of a phase begin 16 bytes into a line: half of the requests, which are
            # all in flight together here, take one more wavefront.
            assert counted <= wavefronts < counted + 1
        else:
            assert counted == wavefronts, row
        # The conflict counter misses some while lines are in flight, about one per line.
        assert conflicts - lines <= float(row["bank_conflicts_ldgsts_per_req"]) <= conflicts, row


@pytest.mark.parametrize("kind", ["ldg", "stg"])
def test_global_sectors_lines_and_tag_wavefronts_are_the_hardwares(kind: str) -> None:
    rows = measured("global_memory.csv", kind)
    assert len(rows) > 60
    for row in rows:
        offsets, nbytes = numbers(row["offsets"]), size_of(row)
        addresses = addresses_of(offsets, active_of(offsets))
        assert global_sectors(addresses, nbytes) == float(row["sectors"]), row
        assert global_lines(addresses, nbytes) == float(row["set_accesses"]), row
        assert tag_wavefronts(addresses, nbytes) == float(row["output_wavefronts"]), row


def test_random_rows_were_predicted() -> None:
    """Rows of benchmarks/hardware_rows.py, whose predictions were made before the measurement."""
    rows = measured("h100_random_rows.csv")
    assert len(rows) >= 200
    for row in rows:
        counted = predicted(row)
        assert counted == {
            name: int(row[f"predicted_{name}"])
            for name in ("wavefronts", "conflicts", "sectors", "lines", "tag_wavefronts")
            if row[f"predicted_{name}"]
        }
        for name, count in counted.items():
            seen = float(row[f"measured_{name}"])
            if row["kind"].startswith("cpa") and name in ("wavefronts", "conflicts"):
                # The first copy of 64 misses the cache and may take a few more or less.
                assert seen == pytest.approx(count, abs=16 / 64), row
            else:
                assert seen == count, row


def predicted(row: Row) -> dict[str, int]:
    offsets, nbytes, family = numbers(row["offsets"]), size_of(row), row["kind"][:3]
    active, found = active_of(offsets), {}
    both: tuple[int, int] | None = None
    source = offsets if family in ("ldg", "stg") else numbers(row["source"])
    if family in ("lds", "sts"):
        both = shared_wavefronts(offsets, active, nbytes, store=family == "sts")
    elif family == "ldm":
        both = matrix_wavefronts(offsets[: 8 * nbytes])
    elif family == "cpa":
        both = copy_wavefronts(offsets, source, active, nbytes)
    if both is not None:
        found |= dict(zip(("wavefronts", "conflicts"), both, strict=True))
    if source:
        addresses = addresses_of(source, active)
        found["sectors"] = global_sectors(addresses, nbytes)
        found["lines"] = global_lines(addresses, nbytes)
        found["tag_wavefronts"] = tag_wavefronts(addresses, nbytes)
    return found


def test_copies_past_the_cache_pay_for_each_pair_of_lines() -> None:
    start, all_lanes, none = [16 * lane for lane in range(32)], [True] * 32, [False] * 32
    assert bypass_wavefronts(start, start, all_lanes, 16, all_lanes) == (4, 0)
    assert bypass_sectors(start, start, all_lanes) == 16
    assert bypass_tag_wavefronts(start, start, all_lanes) == 1
    # 16 bytes into a line of shared memory, each line of the source goes to two lines.
    shifted = [each + 16 for each in start]
    assert bypass_wavefronts(shifted, start, all_lanes, 16, all_lanes) == (8, 4)
    assert bypass_sectors(shifted, start, all_lanes) == 20
    assert bypass_tag_wavefronts(shifted, start, all_lanes) == 2
    assert bypass_wavefronts(shifted, start, all_lanes, 16, none) == (4, 0)
    assert bypass_sectors(shifted, start, none) == bypass_tag_wavefronts(shifted, start, none) == 0


def test_lanes_that_write_zeros_wait_at_their_target_alone() -> None:
    to, one_word = [4 * lane for lane in range(32)], [0] * 32
    reading = [lane < 3 for lane in range(32)]
    assert copy_wavefronts(to, one_word, [True] * 32, 4, reading) == (3, 2)
    assert copy_wavefronts(one_word, one_word, [True] * 32, 4, reading) == (32, 31)


def test_no_active_lane_costs_nothing() -> None:
    assert global_sectors([], 4) == ideal_sectors([], 4) == tag_wavefronts([], 4) == 0
    assert shared_wavefronts([0] * 32, [False] * 32, 16, store=False) == (0, 0)
    assert copy_wavefronts([0] * 32, [0] * 32, [False] * 32, 16) == (0, 0)


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


def test_ideal_sectors_are_those_of_distinct_bytes() -> None:
    assert ideal_sectors([0] * 32, 4) == 1
    assert ideal_sectors([128 * lane for lane in range(32)], 4) == 4
    assert ideal_sectors([32 * lane for lane in range(9)], 4) == 2
    assert ideal_sectors([16 * lane for lane in range(32)], 16) == 16


def test_rows_of_a_power_of_two_share_a_tag_bank_eight_at_a_time() -> None:
    assert {tag_bank(line) for line in range(4)} == {0, 1, 2, 3}
    assert tag_wavefronts([2048 * row for row in range(32)], 4) == 8
    assert tag_wavefronts([16 * lane for lane in range(32)], 16) == 1
