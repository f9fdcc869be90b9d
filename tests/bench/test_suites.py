"""The suites hold what the benchmark promises."""

import re
from pathlib import Path

import pytest

from gemmkit.bench.peers import LIBRARIES
from gemmkit.bench.suites import SUITES, TOPICS, find_suite
from gemmkit.errors import UsageError


def sizes(name):
    return [(each.m, each.n, each.k) for each in find_suite(name)]


def test_each_suite_has_distinct_problems_and_a_topic():
    assert list(TOPICS) == list(SUITES)
    for name in SUITES:
        assert len(set(sizes(name))) == len(sizes(name)) > 1


def test_promised_sizes():
    cubes = {m for m, n, k in sizes("square") if m == n == k}
    assert min(cubes) == 256
    assert {1536, 3072, 4096, 8192, 16384} <= cubes
    assert len(sizes("k1024")) == 15
    assert {(1536, 1536, 1024), (3072, 3072, 1024)} <= set(sizes("k1024"))
    assert [m for m, _, _ in sizes("off-tile")] == [1000, 1023, 1025, 2047, 2049, 3001, 4095, 4097]
    assert set(sizes("skinny")) == {(m, n, n) for m in (1, 2, 4, 8, 16) for n in (4096, 8192)}
    assert {str(each.epilogue) for each in find_suite("fused")} == {"bias+relu"}
    assert (1, 32000, 4096) in sizes("llm")
    batches = find_suite("batched")
    cubes = {each.m: each.batch for each in batches if each.m == each.n == each.k}
    assert cubes == {32: 4096, 64: 2048, 128: 1024, 256: 256, 512: 64}
    assert min(each.batch for each in batches) > 1


def test_unknown_suites_are_told():
    with pytest.raises(UsageError, match="did you mean square"):
        find_suite("squares")


def test_the_page_lists_all_suites_and_peers():
    page = Path(__file__).resolve().parents[2] / "docs" / "benchmark.md"
    listed = re.findall(r"^\| `([^`]+)` \|", page.read_text("utf-8"), re.MULTILINE)
    assert listed == [*SUITES, *LIBRARIES]
