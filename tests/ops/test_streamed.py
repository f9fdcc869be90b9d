"""Streamed products of host arrays on the emulator: NumPy's results, whatever the cut."""

import _thread
import errno
import os
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import gemmkit
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.streamed import StreamedEmulator
from gemmkit.errors import DeviceError, FileError, UnsupportedType, UsageError
from gemmkit.gpu import BOARDS
from gemmkit.ops.streamed import multiply, transfers, worker
from gemmkit.ops.streamed.files import MappedFile
from gemmkit.ops.streamed.host_matrices import HostStack
from gemmkit.ops.streamed.sizes import Tiling
from gemmkit.ops.streamed.traversal import Deal


def whole_numbers(shape, seed=0, low=-4, high=5):
    """Numbers whose products and sums are exact in fp32."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(transfers, "PIECE_BYTES", 1024)
    monkeypatch.setattr(transfers, "PIECES", 3)


@pytest.fixture
def allocated(monkeypatch):
    """The sizes of device memory that is allocated."""
    sizes, own = [], StreamedEmulator.allocate

    def allocate(self, nbytes):
        sizes.append(nbytes)
        return own(self, nbytes)

    monkeypatch.setattr(StreamedEmulator, "allocate", allocate)
    return sizes


@pytest.fixture
def plans(monkeypatch):
    """The plans that are made."""
    made, own = [], multiply.planned

    def planned(*args):
        made.append(own(*args))
        return made[-1]

    monkeypatch.setattr(multiply, "planned", planned)
    return made


A, B = whole_numbers((70, 90)), whole_numbers((90, 65), 1)


@pytest.mark.parametrize("devices", [[0], [0, 1]])
@pytest.mark.parametrize("memory", [6_000, 20_000, 30_000])
def test_products_in_little_memory(allocated, plans, small_pieces, memory, devices):
    out = gemmkit.matmul(A, B, device="emulator", device_memory=memory, devices=devices)
    np.testing.assert_array_equal(out, A @ B)
    assert len(allocated) == len(devices)
    assert max(allocated) <= memory
    tiling, problem = plans[0].tiling, plans[0].problem
    assert np.prod(tiling.counts(problem)) * tiling.chunks(problem) > 1


@pytest.fixture
def cut(monkeypatch):
    """Have products cut in a way that is given."""

    def cut(**tiling):
        def plan(problem, memory, rates, devices):
            made = multiply.StreamPlan(problem, Tiling(**tiling), devices, None, 0.0)
            assert made.device_bytes <= memory
            return made

        monkeypatch.setattr(multiply, "plan_stream", plan)

    return cut


def test_devices_ask_for_tiles_of_others_when_their_own_are_almost_computed(cut, monkeypatch):
    cut(m=10, n=13, k=15)
    begin, others = worker.Worker._begin, Deal.others
    own, left = threading.local(), []

    def begun(self):
        own.worker = self
        begin(self)

    def asked(self):
        left.append(len(own.worker._ahead))
        return others(self)

    monkeypatch.setattr(worker.Worker, "_begin", begun)
    monkeypatch.setattr(Deal, "others", asked)
    out = gemmkit.matmul(A, B, device="emulator", device_memory=60_000, devices=[0, 1, 2])
    np.testing.assert_array_equal(out, A @ B)
    assert len(left) >= 3
    assert max(left) == 1


@pytest.mark.parametrize(
    "tiling",
    [
        {"m": 24, "n": 32, "k": 32, "by_rows": False},
        {"m": 70, "n": 16, "k": 48, "slots_a": 1, "slots_b": 1, "tiles": 1},
        {"m": 32, "n": 65, "k": 90, "slots_b": 3},
        {"m": 32, "n": 24, "k": 48, "slots_a": 6, "slots_b": 6, "squares": True},
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.sample
def test_every_operand_of_the_epilogue_comes_in_tiles(cut, tiling, dtype):
    cut(**tiling)
    c, residual = whole_numbers((70, 65), 2), whole_numbers((70, 65), 3)
    bias, auxiliary = whole_numbers(70, 4), np.full((70, 65), np.nan, dtype)
    given = [each.astype(dtype) for each in (A, B, c, residual, bias)]
    out = gemmkit.matmul(
        given[0],
        given[1],
        alpha=2,
        c=given[2],
        beta=-1,
        residual=given[3],
        bias=given[4],
        auxiliary=auxiliary,
        epilogue="row_bias+relu+residual",
        device="emulator",
        device_memory="1MiB",
    )
    inner = 2 * (A @ B) - c + bias[:, None]
    np.testing.assert_array_equal(auxiliary, inner.astype(dtype))
    np.testing.assert_array_equal(out, (np.maximum(inner, 0) + residual).astype(dtype))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_shapes_and_strides(data):
    m, n, k = (data.draw(st.integers(1, 40), label=side) for side in "mnk")
    stack = data.draw(st.lists(st.integers(1, 3), max_size=2), label="stack")

    def strided(rows, columns, name):
        ones = [data.draw(st.booleans(), label=f"{name} broadcasts") for _ in stack]
        own = [1 if one else size for one, size in zip(ones, stack, strict=True)]
        steps = [data.draw(st.sampled_from((1, 1, 2, -1)), label=f"{name}'s step") for _ in "rc"]
        wide = whole_numbers((*own, 2 * columns, 2 * rows), len(name))
        turned = wide.swapaxes(-1, -2)[..., :: steps[0], :: steps[1]][..., :rows, :columns]
        if data.draw(st.booleans(), label=f"{name} lies in columns"):
            return turned
        return np.ascontiguousarray(turned)

    a, b = strided(m, k, "a"), strided(k, n, "bb")
    wanted = a @ b
    wide = whole_numbers((*wanted.shape[:-2], 2 * n, 2 * m), 3)
    across = data.draw(st.sampled_from((1, 2, -1)), label="out's step")
    out = wide.swapaxes(-1, -2) if data.draw(st.booleans(), label="out lies in columns") else wide
    out = out.reshape(*wanted.shape[:-2], 2 * m, 2 * n) if out is wide else out
    out = out[..., :m, ::across][..., :n]
    memory = data.draw(st.sampled_from((4_000, 12_000, 10**6)), label="memory")
    devices = data.draw(st.sampled_from(([0], [0, 1, 2])), label="devices")
    before, untouched = out.copy(), wide.sum() - out.sum()
    gemmkit.matmul(
        a, b, out=out, c=out, beta=2, device="emulator", device_memory=memory, devices=devices
    )
    np.testing.assert_array_equal(out, wanted + 2 * before)
    assert wide.sum() - out.sum() == untouched


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *[((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,)), ((5, 0), (0, 3)), ((0, 7), (7, 3))],
        *[((6, 5, 7), (7, 3)), ((4, 5, 7), (4, 7, 3)), ((2, 1, 5, 7), (3, 7, 3))],
    ],
)
def test_vectors_stacks_and_nothing(a, b):
    x, y = whole_numbers(a), whole_numbers(b, 1)
    result = gemmkit.matmul(x, y, device="emulator", device_memory=4_000)
    assert type(result) is type(x @ y)
    np.testing.assert_array_equal(result, x @ y)


def test_many_small_products_are_computed_together(allocated):
    a, b = whole_numbers((60, 5, 7)), whole_numbers((60, 7, 3), 1)
    out = np.zeros((60, 5, 6), np.float32)
    gemmkit.matmul(a, b, out=out[..., ::2], device="emulator", device_memory=20_000)
    np.testing.assert_array_equal(out[..., ::2], a @ b)
    assert not out[..., 1::2].any()


def test_gemm_adds_to_c_tile_by_tile():
    a, b, c = whole_numbers((40, 9)), whole_numbers((40, 33), 1), whole_numbers((9, 33), 2)
    want = 2 * (a.T @ b) - c
    told = []
    made = gemmkit.gemm(
        *(a, b, c),
        transa=True,
        alpha=2,
        beta=-1,
        device="emulator",
        device_memory="16KiB",
        progress=told.append,
    )
    assert made is c
    assert np.array_equal(c, want)
    assert told[-1] == 1


def test_with_alpha_0_neither_operand_is_read():
    nan, c = np.full((40, 40), np.nan, np.float32), whole_numbers((40, 40))
    found = gemmkit.matmul(nan, nan, alpha=0, c=c, beta=3, device="emulator", device_memory=6_000)
    np.testing.assert_array_equal(found, 3 * c)


@pytest.mark.parametrize("scale", ["tensor", "rows", "blocks"])
def test_scales_of_8_bits_are_those_of_each_tile(scale):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = ml_dtypes.float8_e4m3fn
    rng = np.random.default_rng(0)
    a, b = whole_numbers((150, 300), low=-2, high=3), whole_numbers((300, 140), 1, -2, 3)
    shapes = {
        "tensor": ((1,), (1,)),
        "rows": ((150, 1), (1, 140)),
        "blocks": ((150, 3), (3, 2)),
    }[scale]
    scales = [2.0 ** rng.integers(-1, 2, shape).astype(np.float32) for shape in shapes]
    given = {"scale_a": scales[0], "scale_b": scales[1], "device": "emulator"}
    args = a.astype(kind), b.astype(kind)
    whole = gemmkit.matmul(*args, **given)
    tiled = gemmkit.matmul(*args, **given, device_memory=150_000)
    np.testing.assert_array_equal(tiled, whole)


def test_the_same_bits_from_one_device_and_from_three(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((96, 96)).astype(np.float32) for _ in range(2))
    # The plan for one device, for both.
    plan = multiply.plan_stream
    monkeypatch.setattr(
        multiply,
        "plan_stream",
        lambda problem, memory, rates, devices: plan(problem, memory, rates, 1),
    )
    options = {"device": "emulator", "device_memory": 20_000}
    one = gemmkit.matmul(a, b, devices=[0], **options)
    three = gemmkit.matmul(a, b, devices=[0, 1, 2], **options)
    assert one.tobytes() == three.tobytes()


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Memory maps of A, B and a result, each with bytes before it."""

    def mapped(name, values, mode="r+"):
        path = tmp_path / name
        path.write_bytes(bytes(96) + values.tobytes())
        return np.memmap(path, values.dtype, mode, 96, values.shape)

    return mapped


def test_memory_maps_are_read_and_written_as_files(files, monkeypatch, small_pieces):
    calls = {"preadv": 0, "pwritev": 0}
    for name in calls:
        own = getattr(os, name)

        def call(*args, own=own, name=name):
            calls[name] += 1
            return own(*args)

        monkeypatch.setattr(os, name, call)
    a, b, out = files("a", A, "r"), files("b", B), files("out", np.zeros((80, 65), np.float32))
    result = gemmkit.matmul(a, b, out=out[5:75], device="emulator", device_memory=15_000)
    np.testing.assert_array_equal(result, A @ B)
    np.testing.assert_array_equal(np.asarray(out)[5:75], A @ B)
    assert not out[:5].any()
    assert not out[75:].any()
    assert min(calls.values()) > 3


def test_changes_of_a_private_mapping_count(files):
    a, b = files("a", A, "c"), files("b", B)
    a[3] = 1
    wanted = np.asarray(a) @ B
    found = gemmkit.matmul(a, b, device="emulator", device_memory=20_000)
    np.testing.assert_array_equal(found, wanted)
    assert MappedFile.of(a, writable=False) is None


def test_a_file_that_has_become_shorter_is_one_clear_error(files, tmp_path):
    a, b = files("a", A), files("b", B)
    os.truncate(tmp_path / "a", 96 + A.nbytes // 2)
    with pytest.raises(FileError, match=r"reading .*a failed: .* where the file ends"):
        gemmkit.matmul(a, b, device="emulator", device_memory=20_000)


def test_a_full_disk_is_one_clear_error(files, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = files("out", np.zeros((70, 65), np.float32))
    monkeypatch.setattr(os, "pwritev", full)
    before = threading.active_count()
    with pytest.raises(FileError, match=r"writing .*out failed at byte [\d,]+: No space left"):
        gemmkit.matmul(A, B, out=out, device="emulator", device_memory=9_000, devices=[0, 1])
    assert threading.active_count() == before


def test_a_stack_has_whole_lines_where_it_can():
    stack = HostStack(np.zeros((3, 8, 6), np.float32).view(np.uint32), "float32")
    (lines, first), *more = stack.lines(range(1, 3), range(8), range(6))
    assert (lines.shape, first, more) == ((16, 6), 0, [])
    parts = list(stack.lines(range(1, 3), range(4), range(6)))
    assert [(part.shape, first) for part, first in parts] == [((4, 6), 0), ((4, 6), 4)]


# --- how it ends --------------------------------------------------------------------------------


def test_an_interrupt_ends_it_and_leaves_no_thread(monkeypatch):
    before = threading.active_count()
    seen, devices = [], []
    own = worker.Worker._store

    def store(self, *args):
        own(self, *args)
        if not seen:
            _thread.interrupt_main()
        seen.append(args)

    closed = StreamedEmulator.close
    monkeypatch.setattr(worker.Worker, "_store", store)
    monkeypatch.setattr(
        StreamedEmulator, "close", lambda self: (devices.append(self), closed(self))
    )
    out = np.full((70, 65), np.nan, np.float32)
    with pytest.raises(KeyboardInterrupt):
        gemmkit.matmul(A, B, out=out, device="emulator", device_memory=6_000, devices=[0, 1])
    assert threading.active_count() == before
    assert 0 < np.isnan(out).sum() < out.size
    assert len(devices) == 2
    assert all(not each._device.memory.regions().size for each in devices)


def test_an_error_of_the_callback_is_the_callers():
    def report(fraction):
        raise LookupError("not found")

    with pytest.raises(LookupError):
        gemmkit.matmul(A, B, device="emulator", device_memory=9_000, progress=report)


def test_progress_is_told_tile_by_tile():
    seen = []
    gemmkit.matmul(A, B, device="emulator", device_memory=9_000, progress=seen.append)
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_a_device_that_fails_is_one_error(monkeypatch):
    def fail(self, nbytes):
        raise DeviceError("no memory")

    monkeypatch.setattr(StreamedEmulator, "allocate", fail)
    before = threading.active_count()
    with pytest.raises(DeviceError, match="no memory"):
        gemmkit.matmul(A, B, device="emulator", devices=[0, 1, 2])
    assert threading.active_count() == before


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"device_memory": 100}, UsageError, "too little"),
        ({"device_memory": "8 apples"}, UsageError, "8GiB"),
        ({"device_memory": 0}, UsageError, "8GiB"),
        ({"device_memory": "9" * 400}, UsageError, "8GiB"),
        ({"device_memory": 1.5}, UnsupportedType, "8GiB"),
        ({"device_memory": "900TiB"}, UsageError, "are free"),
        ({"devices": "every"}, UsageError, "'all'"),
        ({"devices": []}, UnsupportedType, "'all'"),
        ({"devices": 3}, UnsupportedType, "'all'"),
        ({"devices": [-1]}, UsageError, "0 or more"),
        ({"devices": ["x"]}, UsageError, "device = 'x'"),
        ({"progress": 3}, UnsupportedType, "progress = 3"),
        ({"device_memory": "1GiB", "stream": 1}, UsageError, "stream is for arrays on a GPU"),
    ],
)
def test_options_that_are_not_valid(options, kind, message):
    with pytest.raises(kind, match=message):
        gemmkit.matmul(A, B, device="emulator", **options)


def test_devices_may_be_open_ones():
    devices = [EmulatedDevice(BOARDS["h100"]) for _ in range(2)]
    np.testing.assert_array_equal(gemmkit.matmul(A, B, devices=devices), A @ B)


def test_pinned_memory_is_ordinary_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr("gemmkit.ops.pinned_arrays.gpu_problem", lambda: "none here")
    made = gemmkit.empty_pinned((3, 4), np.float16)
    assert (made.shape, made.dtype) == ((3, 4), np.float16)
    assert gemmkit.empty_pinned(5).shape == (5,)
