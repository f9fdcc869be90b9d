"""`grouped_matmul` of arrays on a GPU: what is used in place, what is copied, on which stream.

The emulator plays the GPU; of the driver, copies from pinned memory are played here.
"""

from __future__ import annotations

import ctypes
import logging

import numpy as np
import pytest

import gemmkit
from emulated_gpu import STREAM, GpuArray, install
from gemmkit.dispatch.choose import Choice
from gemmkit.errors import UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.ops import grouped_gpu
from gemmkit.ops.tables import Tables

TILES = TileConfig(BM=16, BN=32, BK=16, WM=16, WN=32, TM=4, TN=4, stages=2, interleave=1, order=2)
CHOICE = Choice(find_kernel("gemm_grouped"), TILES, "for the test", "heuristic", 1.0)


SLOTS = 2


class Pinned:
    """Pinned memory and its copies, as the driver has them; `waits` counts those for an event."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.blocks, self.sources, self.waits = [], [], 0

    def cuMemHostAlloc(self, nbytes, flags):
        self.blocks.append(ctypes.create_string_buffer(nbytes))
        return 0, ctypes.addressof(self.blocks[-1])

    def cuMemFreeHost(self, address):
        return (0,)

    def cuMemcpyHtoDAsync(self, target, source, nbytes, stream):
        self.sources.append(source)
        ctypes.memmove(target, source, nbytes)
        return (0,)

    def cuEventCreate(self, flags):
        return 0, object()

    def cuEventRecord(self, event, stream):
        return (0,)

    def cuEventSynchronize(self, event):
        self.waits += 1
        return (0,)

    def cuStreamIsCapturing(self, stream):
        return 0, self.gpu.capturing

    def cuStreamGetCaptureInfo(self, stream):
        return 0, 1, 12, None


@pytest.fixture
def gpu(monkeypatch):
    from cuda.bindings import driver

    gpu, library = install(monkeypatch)
    pinned = Pinned(gpu)
    for name in dir(pinned):
        if name.startswith("cu"):
            monkeypatch.setattr(driver, name, getattr(pinned, name))
    monkeypatch.setattr("gemmkit.ops.tables.SLOTS", SLOTS)
    tables = Tables(gpu)
    monkeypatch.setattr(grouped_gpu, "context_of", lambda ordinal: gpu)
    monkeypatch.setattr(grouped_gpu, "tables_of", lambda context: tables)
    monkeypatch.setattr(grouped_gpu, "check_stream", lambda handle, context: None)
    monkeypatch.setattr(grouped_gpu, "choose", lambda problem, spec: CHOICE)
    gpu.pinned, gpu.maker = pinned, library
    return gpu


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.DEBUG, logger="gemmkit")
    return lambda: [record.getMessage() for record in caplog.records]


def whole(*shape, seed=0):
    """Whole numbers, whose products are exact."""
    values = np.random.default_rng([seed, *shape]).integers(-4, 5, shape)
    return GpuArray.of(values.astype(np.float32))


def products(a, b):
    return [x.values @ y.values for x, y in zip(a, b, strict=True)]


def same(results, expected):
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.values, right)


def test_rows_are_read_and_written_in_place(gpu, told):
    square, beside = whole(9, 20), GpuArray.of(np.full((20, 30), np.nan, np.float32))
    a = [whole(m, 6) for m in (5, 0, 20)]
    b = [square[:6, start:stop] for start, stop in ((0, 7), (3, 9), (19, 20))]
    outs = [beside[:5, :7], beside[:0, 7:13], beside[:, 13:14]]
    results = gemmkit.grouped_matmul(a, b, out=outs)
    assert all(result is each for result, each in zip(results, outs, strict=True))
    same(results, products(a, b))
    assert len(gpu.launches) == 1
    assert not told()


def test_columns_are_read_in_place_in_a_launch_for_each_layout(gpu, told):
    b = [whole(6, 7), whole(6, 4)]
    # A single row lies both ways.
    for other, launches in ((whole(6, 18).T, 1), (whole(1, 6), 1), (whole(3, 6), 2)):
        gpu.launches.clear()
        a = [whole(6, 5).T, other]
        same(gemmkit.grouped_matmul(a, b), products(a, b))
        assert len(gpu.launches) == launches
    assert not told()


def test_what_cannot_be_used_in_place_is_copied_and_told(gpu, told):
    a, b = [whole(5, 12)[:, ::2], whole(8, 6)], [whole(6, 7), whole(6, 7)]
    outs = [whole(7, 5).T, whole(8, 7)]
    results = gemmkit.grouped_matmul(a, b, out=outs)
    assert results == outs
    same(outs, products(a, b))
    assert told() == [f"1 of 2 arrays {role} cannot be used in place" for role in ("a", "out")]


def test_c_is_brought_to_the_results_unless_it_is_there(gpu):
    a, b = [whole(5, 6)] * 2, [whole(6, 7)] * 2
    c = [whole(5, 7, seed=each) for each in range(2)]
    right = [x - y.values for x, y in zip(products(a, b), c, strict=True)]
    before = [each.values.copy() for each in c]
    same(gemmkit.grouped_matmul(a, b, c=c, beta=-1), right)
    same(c, before)
    same(gemmkit.grouped_matmul(a, b, out=c, c=c, beta=-1), right)
    same(c, right)


def test_a_residual_in_the_results_place_survives_c(gpu):
    a, b, c = [whole(5, 6)], [whole(6, 7)], [whole(5, 7, seed=1)]
    outs = [whole(5, 7, seed=2)]
    right = products(a, b)[0] + c[0].values + outs[0].values
    same(gemmkit.grouped_matmul(a, b, out=outs, c=c, beta=1, residual=outs), [right])


def test_a_stream_is_that_of_all_that_is_done(gpu):
    a, b = [whole(5, 6)], [whole(6, 7)]
    for given, stream in ((None, STREAM), (9, 9)):
        same(gemmkit.grouped_matmul(a, b, stream=given), products(a, b))
        assert gpu.launches[-1][1] == stream
    assert gpu.maker.stream == STREAM


def test_a_device_is_for_host_arrays(gpu):
    with pytest.raises(UsageError, match="the arrays are on GPU 0"):
        gemmkit.grouped_matmul([whole(5, 6)], [whole(6, 7)], device="emulator")


# --- tables -------------------------------------------------------------------------------------


def test_pinned_memory_is_used_in_turn_and_grows(gpu):
    for count in (1, 300, 600, 900):
        a, b = [whole(3, 4)] * count, [whole(4, 5)] * count
        same(gemmkit.grouped_matmul(a, b), products(a, b))
    assert gpu.pinned.waits == 2
    first, second, third, last = gpu.pinned.sources
    assert len({first, second, last}) == 3
    assert third == first
    assert [len(each) for each in gpu.pinned.blocks] == [65536, 65536, 131072]


def test_a_graph_keeps_what_it_copies(gpu):
    a, b = [whole(3, 4)], [whole(4, 5)]
    gpu.capturing = 1
    for _ in range(2):
        gemmkit.grouped_matmul(a, b)
    gpu.capturing = 0
    captured = set(gpu.pinned.sources)
    assert len(captured) == 2
    for _ in range(SLOTS + 1):
        gemmkit.grouped_matmul(a, b)
    assert not captured & set(gpu.pinned.sources[2:])
