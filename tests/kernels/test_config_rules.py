"""Configurations that a rung refuses, each with its reason."""

import re

import numpy as np
import pytest

from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION, find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

H100 = find_board("h100")

REFUSED = [
    ("naive", {"BM": 64, "BN": 32}, "2048 threads per block are more than the 1024"),
    ("shared_tiling", {"BK": 16}, "BM, BN and BK must be equal"),
    ("shared_tiling", {"BM": 64, "BN": 64, "BK": 64}, "4096 threads per block"),
    ("coarsening_1d", {"TM": 3}, "TM is the stride: 1, 2, 4, 8, 16"),
    ("coarsening_1d", {"BM": 24, "TM": 16}, "BM = 24 is not a multiple of TM = 16"),
    ("coarsening_1d", {"BK": 3}, "cannot share the A tile evenly"),
    ("coarsening_1d", {"BM": 64, "BN": 64, "BK": 128, "TM": 16}, "more than 48 KiB"),
    ("coarsening_2d", {"TN": 7}, "BN = 64 is not a multiple of TN = 7"),
    ("coarsening_2d", {"TM": 32, "TN": 32}, "1024 results per thread do not fit its registers"),
    ("vectorized", {"TM": 2}, "TM = 2 is not a multiple of 4"),
    ("vectorized", {"BK": 6}, "BK = 6 is not a multiple of 4"),
    ("vectorized", {"BK": 12}, "cannot share the A tile evenly"),
    ("conflict_free", {"BK": 4}, "BK = 4 is not a multiple of 8"),
    ("double_buffered", {"BK": 32}, "more than 48 KiB"),
    ("warp_tiled", {"WM": 48}, "BM = 128 is not a multiple of WM = 48"),
    ("warp_tiled", {"WM": 64, "WN": 64}, "needs 64 lanes; a warp has 32"),
    ("gemm_skinny", {"BN": 48}, "BN = 48 is not a power of two"),
    ("gemm_skinny", {"WN": 256}, "WN = 256: a warp reads 16 to 128 neighbors of a row"),
    ("gemm_skinny", {"BN": 16, "BK": 16}, "BK = 16 is less than the 64 lines that a warp reads"),
    ("gemm_skinny", {"BN": 64}, "1024 threads per block are more than 512"),
    ("gemm_tiled", {"stages": 1}, "stages must be 2 or more"),
    ("gemm_tiled", {"stages": 30}, "its stages take 744960 bytes"),
    ("gemm_tiled", {"WM": 32}, "needs 16 lanes; a warp has 32"),
    ("gemm_split_k", {"slice_k": 16}, "2048 threads per block are more than the 1024"),
    ("gemm_split_k", {"slice_k": 3}, "BK = 32 is not a multiple of slice_k = 3"),
    (
        "gemm_split_k",
        {"slice_k": 8, "BM": 128, "TM": 16, "WM": 64},
        "its slices' sums take 524288 bytes",
    ),
]


@pytest.mark.parametrize(("name", "changes", "reason"), REFUSED)
def test_refusal_says_why(name, changes, reason):
    kernel = find_kernel(name)
    config = kernel.configure(changes)
    assert reason in str(kernel.rule(config, H100))
    with pytest.raises(UnsupportedProblem) as refusal:
        kernel.plan(GemmProblem(64, 64, 64), config, H100)
    assert str(refusal.value).startswith(f"{name} ({config}): ")


def test_cp_async_needs_its_architecture():
    kernel = find_kernel("gemm_tiled")
    assert kernel.rule(kernel.default, find_board("t4")) == (
        "cp.async needs compute capability 8.0; T4 has 7.5"
    )


def test_stages_depend_on_the_boards_shared_memory():
    kernel = find_kernel("gemm_tiled")
    config = kernel.configure({"stages": 6})
    assert kernel.rule(config, H100) is None
    assert "RTX 3090 allows" in str(kernel.rule(config, find_board("rtx3090")))


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("tile", [16, 32, 64])
def test_all_strides_on_tiles_that_leave_few_enough_threads(stride, tile):
    kernel = find_kernel("coarsening_1d")
    config = kernel.configure({"BM": tile, "BN": tile, "BK": tile, "stride": stride})
    refused = kernel.rule(config, H100) is not None
    assert refused == (tile * tile // stride > 1024)


@pytest.mark.parametrize("kernel", [*LADDER, *PRODUCTION], ids=lambda kernel: kernel.name)
@pytest.mark.sample(11)
def test_the_space_holds_small_tiles_and_none_that_are_refused(kernel):
    allowed = list(kernel.configurations(H100))
    assert allowed
    assert all(kernel.rule(config, H100) is None for config in allowed)
    # Two consumers have 128 rows, and two blocks at least 64 columns of B each.
    small = 128 if kernel.rung is not None and kernel.rung >= 19 else 64
    assert any((config.BM or 1) * config["BN"] <= small * small for config in allowed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"BM": 0}, "BM = 0: values must be 1 or more"),
        ({"BN": -4}, "BN = -4: values must be 1 or more"),
        ({"split_k": 0}, "split_k = 0: values must be 1 or more"),
        ({"BM": 1.5}, "BM = 1.5 is of type float: use a positive integer"),
        ({"stages": "2"}, "stages = '2' is of type str: use a positive integer"),
        ({"order": True}, "order = True is of type bool: use a positive integer"),
    ],
)
def test_configurations_are_of_positive_integers(changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        TileConfig(**changes)


def test_numpys_integers_are_integers():
    config = TileConfig(BM=np.int32(64))
    assert config == TileConfig(BM=64)
    assert type(config.BM) is int
