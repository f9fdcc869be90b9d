"""Boards: names, peaks, and limits that the kernels rely on."""

from __future__ import annotations

import pytest

from gemmkit.errors import UsageError
from gemmkit.gpu import BOARDS, find_board


@pytest.mark.parametrize("name", ["RTX 3090", "rtx3090", "RTX-3090"])
def test_spelling_does_not_matter(name):
    assert find_board(name).name == "RTX 3090"


@pytest.mark.parametrize(
    ("name", "tflops"), [("RTX 3090", 35.58), ("H100", 66.9), ("A100", 19.5), ("RTX 4090", 82.6)]
)
def test_published_peaks(name, tflops):
    assert find_board(name).peak_tflops == pytest.approx(tflops, rel=2e-3)


def test_an_unknown_board_gets_near_names():
    with pytest.raises(UsageError, match="rtx3090"):
        find_board("RTX 3091")


def test_limits_fit_each_other():
    for board in BOARDS.values():
        capability = board.capability
        assert capability.max_warps_per_sm * 32 == capability.max_threads_per_sm
        assert capability.max_shared_per_block <= capability.shared_per_sm
        assert board.arch == f"sm_{capability.major}{capability.minor}" + "a" * (
            capability.major >= 9
        )
