"""The layers' own kernels, on a GPU that the emulator plays, and what they leave to the library."""

from __future__ import annotations

import numpy as np
import pytest
from bounded import check, normal

from emulated_gpu import STREAM, GpuArray, install
from gemmkit.nn import fused
from gemmkit.verify.running import Bounded

BATCH, HIDDEN = 5, 70


@pytest.fixture
def gpu(monkeypatch):
    found, _ = install(monkeypatch)
    monkeypatch.setattr(fused, "_ready", fused._Ready())
    return found


def on_gpu(*arrays):
    return [GpuArray.of(array) for array in arrays]


def check_all(expected, found):
    for one, other in zip(expected, found, strict=True):
        check(one, other.values)


def test_lstm_cell(gpu):
    gates, c = normal(BATCH, 4 * HIDDEN), normal(BATCH, HIDDEN)
    i, f, g, o = Bounded.of(gates).parts(4)
    next_c = f.sigmoid() * Bounded.of(c) + i.sigmoid() * g.tanh()
    check_all([o.sigmoid() * next_c.tanh(), next_c], fused.lstm_cell(*on_gpu(gates, c)))
    assert gpu.launches == [((1, BATCH, 1), STREAM)]


def test_lstm_cell_of_extremes(gpu):
    gates, c = np.full((1, 4), 200, np.float32), np.zeros((1, 1), np.float32)
    gates[0, 1:3] = -200
    h, c = fused.lstm_cell(*on_gpu(gates, c))
    assert c.values == -1
    np.testing.assert_allclose(h.values, np.tanh(-1), rtol=1e-6)


def test_gru_cell_reads_the_rows_of_one_step_of_many(gpu):
    p, s, h = normal(BATCH, 3, 3 * HIDDEN), normal(BATCH, 3 * HIDDEN), normal(BATCH, HIDDEN)
    own, state = Bounded.of(p[:, 1]).parts(3), Bounded.of(s).parts(3)
    r, z = (own[0] + state[0]).sigmoid(), (own[1] + state[1]).sigmoid()
    n = (own[2] + r * state[2]).tanh()
    p, s, kept = on_gpu(p, s, h)
    h = Bounded.of(h)
    check_all([n + z * (h - n)], fused.gru_cell(p[:, 1], s, kept))


# Rows that are read thrice, and those of which a thread keeps four, eight or sixteen elements.
@pytest.mark.parametrize("keys", [150, 148, 516, 2048, 2052])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.sample(3)
def test_softmax(gpu, causal, keys):
    scores = 4 * normal(2, 9, keys)
    scores[0, 3, 40:] = scores[1, 8] = -np.inf
    expected = scores.astype(np.float64)
    if causal:
        expected[..., np.arange(9)[:, None] < np.arange(keys)] = -np.inf
    (found,) = on_gpu(scores)
    if causal:
        # What lies behind the diagonal does not count.
        found.values[..., np.arange(9)[:, None] < np.arange(keys)] = np.nan
    check(Bounded.of(expected).softmax(), fused.softmax(found, causal=causal).values)
    assert gpu.launches == [((18, 1, 1), STREAM)]


def test_softmax_of_rows_that_begin_at_odd_addresses(gpu):
    scores = normal(9, 148)
    expected = Bounded.of(scores).softmax()
    aligned, whole = on_gpu(scores, np.pad(scores.ravel(), (1, 0)))
    odd = GpuArray(whole.values[1:].reshape(scores.shape), whole.buffer)
    for each in (odd, aligned, odd):
        check(expected, fused.softmax(each, causal=False).values)


# One, two or four places that a thread stores at once.
@pytest.mark.parametrize("rows", [3, 2, 4])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.sample
def test_im2col(gpu, dtype, rows):
    x = normal(5, 6, 2 * rows + 1, 9).astype(dtype)
    (array,) = on_gpu(x)
    # A group of the channels; filters of 3x2, every second row and third column, dilated, padded.
    found = fused.im2col(array[:, 2:5], (3, 2), (rows, 3), (2, 3), (1, 2), (1, 0))
    padded = np.pad(x[:, 2:5], ((0, 0), (0, 0), (1, 1), (0, 0)))
    taps = [
        padded[:, :, row : row + 2 * rows - 1 : 2, column : column + 7 : 3]
        for row in range(3)
        for column in (0, 2)
    ]
    np.testing.assert_array_equal(found.values, np.stack(taps, 2).reshape(5, 18, 3 * rows))


def test_a_launch_is_prepared_once_and_follows_the_addresses(gpu):
    for seed in range(3):
        gates, c = normal(BATCH, 4 * HIDDEN, seed=seed), normal(BATCH, HIDDEN, seed=seed)
        i, f, g, _ = Bounded.of(gates).parts(4)
        next_c = f.sigmoid() * Bounded.of(c) + i.sigmoid() * g.tanh()
        check_all([next_c], fused.lstm_cell(*on_gpu(gates, c))[1:])
    assert len(gpu.launches) == 3
    assert len(gpu._functions) == 1


def test_what_the_kernels_do_not_take_is_left_to_the_library(gpu):
    gates, c = normal(BATCH, 4 * HIDDEN), normal(BATCH, HIDDEN)
    assert fused.lstm_cell(gates, c) is None
    assert fused.lstm_cell(*on_gpu(gates.astype(np.float64), c.astype(np.float64))) is None
    wide = GpuArray.of(normal(BATCH, 2 * HIDDEN))
    assert fused.lstm_cell(*on_gpu(gates), wide[:, ::2]) is None
    empty = GpuArray.empty((0, HIDDEN), np.float32)
    assert fused.lstm_cell(GpuArray.empty((0, 4 * HIDDEN), np.float32), empty) is None
    (x,) = on_gpu(normal(1, 2, 6, 6))
    assert fused.im2col(x[:, :, ::2], (1, 1), (3, 6), (1, 1), (1, 1), (0, 0)) is None
    assert gpu.launches == []
