"""Products under which an operand is gathered from several GPUs, on one that the emulator plays."""

from __future__ import annotations

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu import GpuArray
from gemmkit.dispatch.choose import Choice
from gemmkit.kernels.production.allgather_wgmma import Shares, allgather_kernel
from gemmkit.ops import allgather
from gemmkit.ops.allgather import GatheredRows, multiply_gathered
from gemmkit.ops.arrays import library_of

SMALL = {"BM": 64, "BN": 32, "stages": 2, "consumers": 1, "cluster_m": 1}
RANKS, SHARE, LINES, N, K = 3, 64, 152, 40, 72


@pytest.fixture
def gpu(monkeypatch):
    found, _ = emulated_gpu.install(monkeypatch)

    def choose(problem, ranks, rows, gpu):
        kernel = allgather_kernel(ranks, rows)
        assert kernel.accepts(problem, gpu) is None
        return Choice(kernel, kernel.configure(SMALL), "", "heuristic", 1.0)

    monkeypatch.setattr(allgather, "choose_allgather", choose)
    monkeypatch.setattr(allgather, "_ready", allgather._Ready())
    return found


def whole_numbers(seed, *shape):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float16)


class Inbox:
    """Rows of all ranks but one, whose own lie apart, with their flags; `shift` moves those."""

    def __init__(self, seed, rank, shift=0):
        self.lines = whole_numbers(seed, LINES, K)
        span = slice(rank * SHARE, min((rank + 1) * SHARE, LINES))
        rows = self.lines.copy()
        rows[span] = np.nan
        space = GpuArray.of(np.append(np.zeros(shift, np.float16), self.lines[span]))
        size = self.lines[span].shape
        own = GpuArray(space.values[shift:].reshape(size), space.buffer)
        self.flags = GpuArray.of(np.ones(RANKS - 1, np.int32))
        address = self.flags.values.ctypes.data
        self.rows = GatheredRows(GpuArray.of(rows), own, address, Shares(rank, RANKS, SHARE))


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.sample(3)
def test_one_launch_for_all_rows(gpu, rank, transposed):
    fixed, bias, residual = (whole_numbers(9, *shape) for shape in ((K, N), (N,), (LINES, N)))
    given = {"epilogue": "row_bias+relu+residual" if transposed else "bias+relu+residual"}
    # In other memory, by the same launch.
    for seed in range(2):
        inbox, out = Inbox(seed, rank), GpuArray.empty((LINES, N), np.float16)
        beside = {"bias": GpuArray.of(bias), "residual": GpuArray.of(residual)}
        of = GpuArray.of(fixed)
        if transposed:
            beside["residual"] = beside["residual"].T
        assert multiply_gathered(
            inbox.rows,
            of.T if transposed else of,
            out.T if transposed else out,
            transposed=transposed,
            alpha=0.5,
            **beside,
            **given,
        )
        sums = 0.5 * (inbox.lines.astype(float) @ fixed) + bias
        assert np.array_equal(out.values, np.maximum(sums, 0) + residual)
    assert len(gpu.launches) == 2
    assert len(gpu._functions) == 1


def test_beta_times_what_is_there(gpu):
    inbox, fixed = Inbox(1, 1), whole_numbers(2, K, N)
    out = GpuArray.of(whole_numbers(3, LINES, N))
    expected = inbox.lines.astype(float) @ fixed + 2.0 * out.values
    assert multiply_gathered(inbox.rows, GpuArray.of(fixed), out, c=out, beta=2.0)
    assert np.array_equal(out.values, expected)


def test_what_has_no_launch_is_left_to_the_caller(gpu):
    fixed, out = GpuArray.of(whole_numbers(2, K, N)), GpuArray.of(whole_numbers(3, LINES, N))
    inbox = Inbox(1, 1)
    # Rows that TMA cannot load, another C than what is written, rows of A that are columns of the
    # result, own rows in the memory of the result, and host memory.
    assert not multiply_gathered(Inbox(1, 1, shift=1).rows, fixed, out)
    assert not multiply_gathered(inbox.rows, fixed, out, c=GpuArray.of(out.values), beta=1.0)
    turned = GpuArray.empty((N, LINES), np.float16)
    assert not multiply_gathered(inbox.rows, fixed.T, turned, transposed=True)
    own = GpuArray(out.values.reshape(-1)[: SHARE * K].reshape(SHARE, K), out.buffer)
    assert not multiply_gathered(inbox.rows._replace(own=own), fixed, out)
    host = GatheredRows(inbox.rows.rows.values, inbox.rows.own.values, 0, inbox.rows.shares)
    assert not multiply_gathered(host, fixed.values, out.values)
    assert not gpu.launches


def test_a_product_that_is_watched_is_left_to_matmul(gpu, monkeypatch):
    inbox, fixed = Inbox(1, 1), GpuArray.of(whole_numbers(2, K, N))
    out = GpuArray.empty((LINES, N), np.float16)
    monkeypatch.setattr(library_of(out, "out"), "watched", lambda: True)
    assert not multiply_gathered(inbox.rows, fixed, out)
    assert not gpu.launches
