"""Memory that is another's, such as XLA's, multiplied where it is on a stream that is said."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gemmkit
from emulated_gpu import GpuArray, install
from gemmkit.ops import grouped_gpu, product, ragged_gpu, ragged_product
from gemmkit.ops.libraries import dlpack
from gemmkit.ops.libraries.dlpack import CPU, CUDA, DlpackArray
from gemmkit.ops.operands import View

STREAM = 1234


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        gpu, _ = install(patch)
        for module in (grouped_gpu, ragged_gpu):
            patch.setattr(module, "context_of", lambda ordinal: gpu)
        yield gpu


def borrowed(array, view=None):
    """The elements of an array on the emulated GPU, as XLA gives them."""
    values = array.values
    own = view or View.tight(values.shape)
    return DlpackArray(values.ctypes.data, own, values.dtype.name, (CUDA, 0))


def whole(*shape, seed=0, dtype=np.float32):
    values = np.random.default_rng([seed, *shape]).integers(-3, 4, shape)
    return GpuArray.of(values.astype(dtype))


def test_a_product_is_launched_on_the_stream_that_is_said(gpu, monkeypatch):
    a, b, out = whole(24, 40), whole(16, 40), GpuArray.of(np.zeros((24, 16), np.float32))
    turned = View((40, 16), (1, 40))
    for number in range(3):
        a.values[:] += 1
        gpu.launches.clear()
        with dlpack.on_stream(STREAM + number, 0):
            gemmkit.matmul(borrowed(a), borrowed(b, turned), out=borrowed(out))
        np.testing.assert_array_equal(out.values, a.values @ b.values.T)
        assert [stream for _, stream in gpu.launches] == [STREAM + number]
        # From the second on, it is a launch and nothing else.
        monkeypatch.setattr(product, "_cold", None)
    assert dlpack.current_stream(0) == 0


def test_parts_of_it_are_multiplied_in_groups(gpu):
    a, c = whole(9, 8), whole(9, 16)
    out = GpuArray.of(np.zeros((2, 8, 16), np.float32))
    whole_a, whole_c, results = map(borrowed, (a, c, out))
    ends = [(0, 4), (4, 9)]
    with dlpack.on_stream(STREAM, 0):
        gemmkit.matmul(
            whole_a.part(4 * 8, View((8, 5), (1, 8))),
            whole_c.part(4 * 16, View((5, 16), (16, 1))),
            out=results.part(8 * 16, View((8, 16), (16, 1))),
        )
    start, end = ends[1]
    np.testing.assert_array_equal(out.values[1], a.values[start:end].T @ c.values[start:end])
    assert not out.values[0].any()


def test_offsets_are_read_where_they_are(gpu, monkeypatch):
    ends = np.array([2, 2, 7], np.int32)
    memory = gpu.device.upload(ends)
    offsets = DlpackArray(memory.address, View.tight((3,)), "int32", (CUDA, 0))
    found = offsets.__cuda_array_interface__
    assert (found["typestr"], found["shape"], found["data"][0]) == ("<i4", (3,), memory.address)
    request = ragged_product.RaggedCall(
        *map(borrowed, (whole(7, 8), whole(3, 8, 16))),
        offsets,
        *(None,) * 4,
        *(1, 0, None, None, None, None),
    ).read()
    assert request.offsets == ragged_gpu.GpuOffsets(memory.address, "int")


def test_each_thread_has_a_stream_of_its_own():
    seen = []
    with dlpack.on_stream(STREAM, 0):
        thread = threading.Thread(target=lambda: seen.append(dlpack.current_stream(0)))
        thread.start()
        thread.join()
        with pytest.raises(ZeroDivisionError), dlpack.on_stream(7, 0):
            seen.append(dlpack.current_stream(0) // 0)
        with dlpack.on_stream(7, 0):
            seen.append(dlpack.current_stream(0))
        seen.append(dlpack.current_stream(0))
    assert [*seen, dlpack.current_stream(0)] == [0, 7, STREAM, 0]


def test_what_has_no_name_in_cudas_interface():
    for dtype, device in (("bfloat16", CUDA), ("float8_e5m2", CUDA), ("float32", CPU)):
        array = DlpackArray(4096, View.tight((2, 3)), dtype, (device, 0))
        assert not hasattr(array, "__cuda_array_interface__")
        assert array.__dlpack_device__() == (device, 0)


def test_other_libraries_read_it_on_the_host():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = DlpackArray(values.ctypes.data, View((4, 3), (1, 4)), "float32", (CPU, 0))
    np.testing.assert_array_equal(np.from_dlpack(array), values.T)
    part = array.part(4, View((4,), (1,)))
    np.testing.assert_array_equal(np.from_dlpack(part), values[1])
