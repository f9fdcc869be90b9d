"""`grouped_matmul` of arrays on a GPU: what is used in place, what is copied, and on which stream.

Without a GPU, a library of arrays in the emulator's memory stands for those of a GPU.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from gemmkit.devices.choose import open_device
from gemmkit.errors import UsageError
from gemmkit.kernels.plan import TileConfig
from gemmkit.ops import grouped_gpu, groups
from gemmkit.ops.grouped import grouped_matmul
from gemmkit.ops.operands import Operand, View

TILES = TileConfig(BM=16, BN=32, BK=16, WM=16, WN=32, TM=4, TN=4, stages=2, bursts=1, order=2)
STREAM = 7


class Array:
    """A matrix in the emulator's memory; `values` is NumPy's view of it."""

    def __init__(self, buffer, values):
        self.buffer, self.values = buffer, values

    @property
    def T(self):
        return Array(self.buffer, self.values.T)

    def __getitem__(self, index):
        return Array(self.buffer, self.values[index])


class Library:
    """Arrays of one GPU, and what was asked for."""

    NAME, WRITABLE, CURRENT_STREAMS = "fake", True, True

    def __init__(self):
        self.device = open_device("emulator", "h100", sanitize=True)
        self.asked, self.current = [], STREAM

    def array(self, values):
        values = np.array(values, np.float32)
        buffer = self.device.upload(values)
        view = self.device.memory.view(buffer.address, values.nbytes).view(np.float32)
        return Array(buffer, view.reshape(values.shape))

    def read(self, array, role):
        base = self.device.memory.view(array.buffer.address, array.buffer.nbytes)
        offset = array.values.ctypes.data - base.ctypes.data if array.values.size else 0
        return Operand(
            array=array,
            address=array.buffer.address + offset,
            view=View(array.values.shape, tuple(step // 4 for step in array.values.strides)),
            dtype="float32",
            device=0,
            writable=True,
        )

    def empty(self, like, shape, dtype, stream):
        assert stream == self.current
        return self.read(self.array(np.full(shape, np.nan)), "the result")

    def empty_like(self, target, *, by_columns):
        self.asked.append("empty_like")
        return self.read(self.array(np.full(target.view.shape, np.nan)), "a copy")

    def finished(self, result):
        return result.array

    def copied(self, operand, shape, *, by_columns):
        self.asked.append("copied")
        return self.read(self.array(operand.array.values), "a copy")

    def assign(self, target, source):
        self.asked.append("assign")
        target.array.values[...] = source.array.values

    def current_stream(self, device):
        return self.current

    @contextmanager
    def on_stream(self, stream, device):
        before, self.current = self.current, stream
        yield
        self.current = before

    def wait_for(self, operand, stream):
        assert stream in (STREAM, 9)

    # What `Tables` does on a GPU.
    def launch(self, plan, binary, arguments, table, stream):
        assert stream == self.current
        self.asked.append(plan.entry.split(", ")[11])
        listed = self.device.upload(table)
        launched = self.device.launch(binary, plan, {**arguments, "groups": listed.address})
        assert not launched.findings


@pytest.fixture(scope="module")
def library():
    return Library()


@pytest.fixture(autouse=True)
def gpu(library, monkeypatch):
    context = SimpleNamespace(spec=library.device.spec)
    monkeypatch.setattr(groups, "library_of", lambda array, role: library)
    monkeypatch.setattr(grouped_gpu, "context_of", lambda ordinal: context)
    monkeypatch.setattr(grouped_gpu, "tables_of", lambda given: library)
    monkeypatch.setattr(grouped_gpu, "check_stream", lambda handle, given: None)
    monkeypatch.setattr(grouped_gpu, "choose_tiles", lambda problem, spec: TILES)
    library.asked.clear()


def integers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(np.float32)


def same(results, expected):
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.values, right)


def test_rows_are_read_and_written_in_place(library):
    whole = library.array(integers(9, 20))
    a = [library.array(integers(m, 6)) for m in (5, 0, 20)]
    b = [whole[:6, start:stop] for start, stop in ((0, 7), (3, 9), (19, 20))]
    out = library.array(np.full((20, 30), np.nan))
    outs = [out[:5, :7], out[:0, 7:13], out[:, 13:14]]
    results = grouped_matmul(a, b, out=outs)
    assert all(result is each for result, each in zip(results, outs, strict=True))
    same(results, [x.values @ y.values for x, y in zip(a, b, strict=True)])
    assert library.asked == ["A_B"]


def test_columns_are_read_in_place_in_a_launch_for_each_layout(library):
    a = [library.array(integers(6, m)).T for m in (5, 18)]
    b = [library.array(integers(6, n)) for n in (7, 4)]
    same(grouped_matmul(a, b), [x.values @ y.values for x, y in zip(a, b, strict=True)])
    assert library.asked == ["AT_B"]
    library.asked.clear()
    # A single row or column lies both ways.
    a[1], b[1] = library.array(integers(1, 6)), library.array(integers(6, 4))
    same(grouped_matmul(a, b), [x.values @ y.values for x, y in zip(a, b, strict=True)])
    assert library.asked == ["AT_B"]
    library.asked.clear()
    a[1] = library.array(integers(3, 6))
    same(grouped_matmul(a, b), [x.values @ y.values for x, y in zip(a, b, strict=True)])
    assert library.asked == ["A_B", "AT_B"]


def test_what_cannot_be_used_in_place_is_copied_and_told(library, caplog):
    caplog.set_level(logging.DEBUG, logger="gemmkit")
    a = [library.array(integers(5, 12))[:, ::2], library.array(integers(8, 6))]
    b = [library.array(integers(6, 7)), library.array(integers(6, 7))]
    outs = [library.array(np.zeros((7, 5))).T, library.array(np.zeros((8, 7)))]
    same(grouped_matmul(a, b, out=outs), [x.values @ y.values for x, y in zip(a, b, strict=True)])
    same(outs, [x.values @ y.values for x, y in zip(a, b, strict=True)])
    assert library.asked == ["copied", "empty_like", "A_B", "assign"]
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 2 arrays a cannot be used in place",
        "1 of 2 arrays out cannot be used in place",
    ]


def test_c_is_brought_to_the_results_unless_it_is_there(library):
    a, b = [library.array(integers(5, 6))] * 2, [library.array(integers(6, 7))] * 2
    c = [library.array(integers(5, 7, seed=each)) for each in range(2)]
    right = [x.values @ y.values - z.values for x, y, z in zip(a, b, c, strict=True)]
    same(grouped_matmul(a, b, c=c, beta=-1), right)
    assert library.asked == ["assign", "assign", "A_B"]
    library.asked.clear()
    same(grouped_matmul(a, b, out=c, c=c, beta=-1), right)
    assert library.asked == ["A_B"]


def test_a_residual_in_the_results_place_survives_c(library):
    a, b = [library.array(integers(5, 6))], [library.array(integers(6, 7))]
    c, residual = [library.array(integers(5, 7, seed=1))], integers(5, 7, seed=2)
    outs = [library.array(residual)]
    results = grouped_matmul(a, b, out=outs, c=c, beta=1, residual=outs)
    same(results, [a[0].values @ b[0].values + c[0].values + residual])


def test_a_stream_is_that_of_all_that_is_done(library):
    a, b = [library.array(integers(5, 6))], [library.array(integers(6, 7))]
    same(grouped_matmul(a, b, stream=9), [a[0].values @ b[0].values])
    assert library.current == STREAM


def test_a_device_is_for_host_arrays(library):
    a, b = [library.array(integers(5, 6))], [library.array(integers(6, 7))]
    with pytest.raises(UsageError, match="the arrays are on GPU 0"):
        grouped_matmul(a, b, device="emulator")
