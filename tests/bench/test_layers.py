"""Layers of the suite, small: gemmkit's on the emulator and PyTorch's, judged by their bounds."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit import nn
from gemmkit.bench.layers import LAYERS, Attention, Conv2d, Linear, Recurrent

SMALL = [
    Linear(10, 24, 17, "gelu", residual=True),
    Linear(9, 33, 20, "relu"),
    Conv2d(2, 3, 9, 5, 3, 2, "im2col"),
    Conv2d(2, 4, 6, 5, 3, 1, "implicit"),
    Conv2d(2, 4, 6, 5, 1, 1, "im2col"),
    Attention(2, 2, 20, 8),
    Attention(1, 2, 33, 8, causal=True),
    Recurrent("lstm", 4, 3, 8),
    Recurrent("gru", 4, 3, 8),
]


@pytest.mark.parametrize("layer", SMALL, ids=str)
@pytest.mark.sample(4)
def test_gemmkits_own_is_right_and_what_is_wrong_is_found(layer):
    arrays = layer.arrays(1)
    assert [each.shape for each in arrays] == [shape for shape, _ in layer.shapes]
    result = np.array(layer.ours(nn, arrays, device="emulator"))
    assert result.shape == layer.result
    judge = layer.judge(arrays)
    verdict = judge(result)
    assert verdict.correct, verdict.detail
    assert 0 < verdict.max_error < verdict.error_bound < 1e-4
    place = tuple(size // 2 for size in result.shape)
    for spoiled in (result[place] + 3e-4, np.nan):
        wrong = result.copy()
        wrong[place] = spoiled
        assert not judge(wrong).correct
    # A neighbor's result is not right here.
    assert not judge(np.roll(result, 1, axis=-1)).correct


@pytest.mark.parametrize("layer", SMALL, ids=str)
def test_pytorchs_is_right(layer):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    arrays = layer.arrays(1)
    function, given = layer.theirs(torch, [torch.from_numpy(each) for each in arrays])
    with torch.inference_mode():
        verdict = layer.judge(arrays)(function(*given).numpy())
    assert verdict.correct, verdict.detail


def test_flops_and_bytes():
    linear, conv, attention, lstm = LAYERS[0], LAYERS[4], LAYERS[-4], LAYERS[-2]
    assert linear.flops == 2 * 64 * 4096 * 4096
    assert linear.minimal_bytes == 4 * (64 * 4096 + 4096 * 4096 + 4096 + 64 * 4096)
    assert conv.result == (32, 64, 112, 112)
    assert conv.flops == 2 * 32 * 64 * 3 * 49 * 112 * 112
    assert attention.flops == 4 * 256 * 512 * 512 * 64
    assert lstm.flops == 4 * 64 * 64 * 4 * 512 * 512
    assert len({(each.name, each.sizes) for each in LAYERS}) == len(LAYERS)
