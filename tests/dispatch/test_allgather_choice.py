"""Tiles of products whose rows are gathered from several GPUs while they run."""

from __future__ import annotations

import pytest

from gemmkit.dispatch.allgather import choose_allgather
from gemmkit.dispatch.choose import choose
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.problem import GemmProblem

H200 = find_board("h200")
# Its tile has 224 rows.
LARGE = GemmProblem(8192, 4096, 8192, dtype="bfloat16")


def test_the_tile_of_the_whole_where_it_divides_shares():
    problem = GemmProblem(4096, 7168, 8192, dtype="bfloat16")
    whole, found = choose(problem, H200), choose_allgather(problem, 2, 2048, H200)
    assert found.kernel.name == "allgather_wgmma"
    assert (found.config, found.microseconds) == (whole.config, whole.microseconds)


@pytest.mark.parametrize(("ranks", "rows"), [(2, 4096), (8, 1024), (64, 128)])
def test_another_tile_where_it_does_not(ranks, rows):
    whole = choose(LARGE, H200)
    assert rows % (whole.config["BM"] * whole.config["cluster_m"])
    found = choose_allgather(LARGE, ranks, rows, H200)
    assert rows % (found.config["BM"] * found.config["cluster_m"]) == 0
    assert found.config["cluster_k"] == whole.config["cluster_k"]
    assert 0.9 * whole.microseconds < found.microseconds < 1.3 * whole.microseconds
    assert f"its tiles divide shares of {rows} rows" in found.reason


@pytest.mark.parametrize(
    ("changes", "ranks", "rows", "message"),
    [
        ({}, 2, 4000, "8192 rows in shares of 4000 are not those of 2 ranks"),
        ({"m": 8000}, 4, 2000, "no tile of 'gemm_wgmma' divides shares of 2000 rows"),
        ({"dtype": "float32"}, 2, 4096, "only 'gemm_wgmma' has a counterpart"),
        ({"m": 256, "n": 512}, 2, 128, r"cluster_k = \d: blocks that share a tile's k"),
    ],
)
def test_what_has_none(changes, ranks, rows, message):
    sizes = {"m": 8192, "n": 4096, "k": 8192, "dtype": "bfloat16"}
    with pytest.raises(UnsupportedProblem, match=message):
        choose_allgather(GemmProblem(**sizes | changes), ranks, rows, H200)
