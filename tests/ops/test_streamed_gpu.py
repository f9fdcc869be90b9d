"""Streamed products on a GPU that the emulator plays, whose streams do everything late."""

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")

import emulated_gpu
import gemmkit
import gemmkit.devices.streamed_gpu
from deferred_streams import DeferredStreams
from gemmkit.devices.pinned import pinned_bytes

UNTOUCHED = 77.0


def whole_numbers(shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.fixture
def played(monkeypatch):
    def play(seed):
        gpu, _ = emulated_gpu.install(monkeypatch)
        streams = DeferredStreams(seed)
        streams.install(monkeypatch, gpu)
        return gpu, streams

    return play


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.sample(7)
def test_nothing_is_overwritten_while_it_is_used(played, monkeypatch, seed, pinned, dtype):
    monkeypatch.setattr("gemmkit.ops.streamed.transfers.PIECE_BYTES", 256)
    monkeypatch.setattr("gemmkit.ops.streamed.transfers.PIECES", 3)
    gpu, streams = played(seed)

    def host(values):
        if not pinned:
            return values
        made = pinned_bytes(values.nbytes, gpu).view(values.dtype).reshape(values.shape)
        made[...] = values
        return made

    a, b, c = (whole_numbers(size, seed) for size in ((70, 100), (100, 66), (70, 66)))
    residual = host(whole_numbers((70, 66), 5).astype(dtype))
    out = host(c.astype(dtype))
    gemmkit.matmul(
        *(host(each.astype(dtype)) for each in (a, b)),
        out=out,
        c=out,
        beta=2,
        residual=residual,
        bias=host(b[0, :66].astype(dtype)),
        epilogue="bias+relu",
        device="cuda",
        device_memory=16_000,
    )
    wanted = np.maximum(a @ b + 2 * c + b[0], 0) + residual.astype(np.float32)
    np.testing.assert_array_equal(out, wanted.astype(dtype))
    assert streams.done > 20
    assert not any(streams.queues.values())


def test_rows_of_pinned_arrays_are_copied_in_place(played):
    gpu, streams = played(0)
    wide = pinned_bytes(4 * 40 * 90, gpu).view(np.float32).reshape(40, 90)
    wide[...] = whole_numbers((40, 90))
    a, b = wide[3:36, 5:75], wide[:35, 7:40].T
    out = pinned_bytes(4 * 40 * 40, gpu).view(np.float32).reshape(40, 40)
    out[...] = UNTOUCHED
    pinned = len(streams.pinned)
    gemmkit.matmul(a[:, :35], b.T, out=out[2:35, 4:37], device="cuda", device_memory=9000)
    np.testing.assert_array_equal(out[2:35, 4:37], a[:, :35] @ b.T)
    out[2:35, 4:37] = UNTOUCHED
    assert np.all(out == UNTOUCHED)
    assert len(streams.pinned) == pinned, "no staging memory"
