"""Boards: names, peaks, and limits that the kernels rely on."""

from __future__ import annotations

import pytest

from gemmkit.errors import UsageError
from gemmkit.gpu import BOARDS, MathPipe, find_board


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


@pytest.mark.parametrize(
    ("board", "pipe", "tflops"),
    [
        # NVIDIA's published peaks, dense.
        ("a100", MathPipe("float16", tensor=True), 312),
        ("a100", MathPipe("float64", tensor=True), 19.5),
        ("a100", MathPipe("float64"), 9.7),
        ("t4", MathPipe("float16", tensor=True), 65),
        ("l40s", MathPipe("bfloat16", tensor=True), 362),
        ("h100", MathPipe("float64", tensor=True), 67),
        ("h100", MathPipe("float64"), 34),
        ("h100", MathPipe("float32"), 67),
        ("rtx3090", MathPipe("float32"), 35.6),
        ("b200", MathPipe("float64"), 37),
        # With fp32 sums, half as much as with fp16 ones on GeForce boards.
        ("rtx2080ti", MathPipe("float16", tensor=True), 53.8),
        ("rtx3060", MathPipe("float16", tensor=True), 25.5),
        ("rtx3090", MathPipe("bfloat16", tensor=True), 71),
        ("rtx4090", MathPipe("float16", tensor=True), 165.2),
        ("rtx5090", MathPipe("float16", tensor=True), 209.5),
        ("rtxa6000", MathPipe("float16", tensor=True), 154.8),
        ("a10", MathPipe("float16", tensor=True), 125),
        ("l4", MathPipe("float16", tensor=True), 121),
        ("l4", MathPipe("float8", tensor=True), 242),
        ("l40s", MathPipe("float8", tensor=True), 733),
        ("rtx4090", MathPipe("float8", tensor=True), 330.3),
        ("rtx5090", MathPipe("float8", tensor=True), 419),
    ],
)
def test_peaks_of_pipes_are_those_that_are_published(board, pipe, tflops):
    assert BOARDS[board].peak(pipe) == pytest.approx(tflops, rel=0.02)


def test_tensor_cores_do_not_multiply_float32():
    with pytest.raises(ValueError, match="float32"):
        BOARDS["h100"].peak(MathPipe("float32", tensor=True))


def test_mma_sync_reaches_all_of_the_fp64_tensor_cores_and_some_of_the_others():
    pipes = BOARDS["h100"].pipes
    double, half = (MathPipe(each, tensor=True) for each in ("float64", "float16"))
    assert pipes.sustained(double) == pipes.multiply_adds(double)
    assert pipes.sustained(half) < pipes.multiply_adds(half)
