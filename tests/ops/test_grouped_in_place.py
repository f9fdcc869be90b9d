"""`grouped_matmul` of arrays on a GPU: what is used in place, what is copied, on which stream.

The emulator plays the GPU; of the driver, copies from pinned memory are played here.
"""

from __future__ import annotations

import ctypes
import logging
import threading

import numpy as np
import pytest

import gemmkit
from emulated_gpu import STREAM, GpuArray, install
from gemmkit.dispatch.choose import Choice
from gemmkit.errors import UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.ops import grouped_gpu, grouped_product
from gemmkit.ops.tables import Tables
from gemmkit.trials import changes

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
        return 0, 1, 12, None, []


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
    monkeypatch.setattr(grouped_gpu, "choose_alike", lambda problem, spec: CHOICE)
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


# --- warm calls ---------------------------------------------------------------------------------


@pytest.fixture
def readings(monkeypatch):
    """The calls that were read in full."""
    read, found = grouped_product.read_groups, []
    monkeypatch.setattr(
        grouped_product,
        "read_groups",
        lambda *given, **rest: found.append(1) or read(*given, **rest),
    )
    return found


SHAPES = ((5, 7, 6), (0, 3, 4), (20, 9, 0), (17, 33, 12))


def matrices(seed):
    a = [whole(m, k, seed=seed) for m, _, k in SHAPES]
    b = [whole(k, n, seed=seed) for _, n, k in SHAPES]
    return a, b


@pytest.mark.parametrize("written", [False, True])
def test_a_call_like_an_earlier_one_only_launches(gpu, readings, written):
    for seed in range(3):
        a, b = matrices(seed)
        outs = [GpuArray.of(np.full((m, n), np.nan, np.float32)) for m, n, _ in SHAPES]
        results = gemmkit.grouped_matmul(a, b, out=outs if written else None)
        same(results, products(a, b))
        assert all(mine is each for mine, each in zip(results, outs, strict=True)) == written
    assert len(readings) == 1
    assert len(gpu.launches) == 3
    assert len(gpu.maker.overwrites) == 3 * len(SHAPES) * written


def test_calls_of_other_precisions_are_kept_apart(gpu, readings):
    a, b = matrices(0)
    for _ in range(2):
        gemmkit.grouped_matmul(a, b)
        gemmkit.grouped_matmul(a, b, precision="ieee")
        gemmkit.grouped_matmul(a, b, precision="tf32")
        with gemmkit.precision("tf32"):
            gemmkit.grouped_matmul(a, b)
    assert len(readings) == 2
    assert len(gpu.launches) == 8


def test_epilogues_are_kept_with_all_their_operands(gpu, readings):
    for seed in range(2):
        a, b = matrices(seed)
        bias = [whole(n, seed=seed) for _, n, _ in SHAPES]
        residual = [whole(m, n, seed=seed) for m, n, _ in SHAPES]
        auxiliary = [whole(m, n, seed=7) for m, n, _ in SHAPES]
        outs = [whole(m, n, seed=8) for m, n, _ in SHAPES]
        sums = [
            2 * x + 3 * y.values + z.values
            for x, y, z in zip(products(a, b), outs, bias, strict=True)
        ]
        options = {"alpha": 2, "beta": 3, "out": outs, "c": outs, "epilogue": "bias+relu"}
        gemmkit.grouped_matmul(a, b, bias=bias, residual=residual, auxiliary=auxiliary, **options)
        same(auxiliary, sums)
        same(outs, [np.maximum(x, 0) + y.values for x, y in zip(sums, residual, strict=True)])
    assert len(readings) == 1


def test_what_a_launch_depends_on_is_looked_at_each_time(gpu, readings):
    a, b = [whole(8, 16)], [whole(16, 8)]
    wide, bias = whole(16, 12), [whole(8)]
    odd = GpuArray.of(np.zeros(16 * 8 + 1, np.float32))
    odd.values[1:] = b[0].values.ravel()
    shifted = GpuArray(odd.values[1:].reshape(16, 8), odd.buffer)
    right = a[0].values @ b[0].values
    # What differs in sizes, strides and the number of products alone is not read in full.
    for arguments, expected, read in (
        ({}, right, 1),
        ({"alpha": 2}, 2 * right, 1),
        ({"bs": [wide[:, :8]]}, a[0].values @ wide.values[:, :8], 0),
        ({"bs": [shifted]}, right, 1),
        ({"bias": bias, "epilogue": "bias"}, right + bias[0].values, 1),
        ({"epilogue": "relu"}, np.maximum(right, 0), 1),
        ({"as_": [whole(16, 8).T]}, whole(16, 8).values.T @ b[0].values, 0),
        ({"as_": a * 2, "bs": b * 2}, right, 0),
    ):
        count = len(readings)
        for _ in range(2):
            options = {"as_": a, "bs": b} | arguments
            for result in gemmkit.grouped_matmul(options.pop("as_"), options.pop("bs"), **options):
                np.testing.assert_array_equal(result.values, expected)
        assert len(readings) == count + read


def test_new_sizes_are_not_read_in_full(gpu, readings):
    b = [whole(16, 8), whole(16, 12), whole(16, 4)]
    for rows in ((3, 40, 5), (0, 1, 70), (7, 7, 7), (0, 2, 3)):
        a = [whole(m, 16, seed=m) for m in rows]
        for _ in range(2):
            results = gemmkit.grouped_matmul(a, b)
            assert [each.shape for each in results] == list(zip(rows, (8, 12, 4), strict=True))
            same(results, products(a, b))
    assert len(readings) == 1


def test_new_sizes_that_do_not_go_together_are_refused(gpu, readings):
    b = [whole(16, 8)] * 2
    gemmkit.grouped_matmul([whole(3, 16)] * 2, b)
    for a, words in (
        ([whole(4, 16), whole(4, 15)], r"as_\[1\] of shape \(4, 15\) has 15 columns"),
        ([whole(4, 16), whole(16)], r"as_\[1\] has 1 dimension"),
        ([whole(4, 16)], "bs has 2 arrays"),
    ):
        with pytest.raises(UsageError, match=words):
            gemmkit.grouped_matmul(a, b)
    # Of these, one lies in rows and one in columns: two launches.
    a = [whole(4, 16), whole(16, 4).T]
    same(gemmkit.grouped_matmul(a, b), products(a, b))
    assert len(gpu.launches) == 3


def test_copies_and_streams_are_looked_at_in_full(gpu, readings):
    a, b = [whole(5, 12)[:, ::2]], [whole(6, 7)]
    for options in ({}, {"stream": STREAM}, {"alpha": np.array(1.0)}):
        for _ in range(2):
            same(gemmkit.grouped_matmul(a, b, **options), products(a, b))
    assert len(readings) == 6


def test_overlaps_are_refused_once_a_call_is_warm(gpu, readings):
    a, b = [whole(4, 4), whole(4, 4)], [whole(4, 4)] * 2
    apart = whole(16, 4)
    for rows in ((0, 4), (12, 8), (5, 9)):
        outs = [apart[row : row + 4] for row in rows]
        same(gemmkit.grouped_matmul(a, b, out=outs), products(a, b))
    assert len(readings) == 1
    # Columns of one matrix share a stretch of memory, but no element.
    beside = whole(4, 8)
    for _ in range(2):
        outs = [beside[:, :4], beside[:, 4:]]
        same(gemmkit.grouped_matmul(a, b, out=outs), products(a, b))
    with pytest.raises(UsageError, match=r"out\[0\] overlaps out\[1\]"):
        gemmkit.grouped_matmul(a, b, out=[apart[:4], apart[3:7]])
    for place, role in ((a[0], r"as_\[0\]"), (a[1], r"as_\[1\]"), (b[0], r"bs\[0\]")):
        with pytest.raises(UsageError, match=rf"out\[1\] overlaps {role}"):
            gemmkit.grouped_matmul(a, b, out=[apart[:4], place])


def test_other_arrays_and_lengths_are_refused_once_a_call_is_warm(gpu, readings):
    a, b, outs = [whole(4, 4)] * 2, [whole(4, 4)] * 2, [whole(4, 4), whole(4, 4)]
    gemmkit.grouped_matmul(a, b, out=outs)
    with pytest.raises(UsageError, match="bs has 1 array"):
        gemmkit.grouped_matmul(a, b[:1], out=outs)
    with pytest.raises(UsageError, match="c has 1 array"):
        gemmkit.grouped_matmul(a, b, out=outs, c=outs[:1])
    with pytest.raises(UsageError, match="host memory"):
        gemmkit.grouped_matmul(a, [b[0], b[0].values], out=outs)


def test_tuning_makes_a_call_be_read_anew(gpu, readings):
    a, b = [whole(4, 4)], [whole(4, 4)]
    gemmkit.grouped_matmul(a, b)
    changes.note()
    for _ in range(2):
        same(gemmkit.grouped_matmul(a, b), products(a, b))
    assert len(readings) == 2


def test_threads_prepare_launches_of_their_own(gpu, readings):
    a, b = [whole(4, 4)], [whole(4, 4)]
    for _ in range(2):
        thread = threading.Thread(target=gemmkit.grouped_matmul, args=(a, b))
        thread.start()
        thread.join()
    assert len(readings) == 2


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
