"""`ragged_matmul`: host arrays, and arrays on a GPU that the emulator plays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import gemmkit
from emulated_gpu import STREAM, GpuArray
from emulated_groups import Offsets, install_groups
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.kernels.production.ragged_wgmma import KERNEL
from gemmkit.kernels.tensor_maps import PlannedMap
from gemmkit.ops import ragged_product
from gemmkit.ops.libraries import dlpack
from gemmkit.ops.libraries.dlpack import CUDA, DlpackArray
from gemmkit.ops.operands import View

CONFIG = KERNEL.configure(
    {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1, "pingpong": 1, "cluster_m": 1}
)
ENDS = [0, 3, 3, 70, 80]
ROWS, N, K = 80, 40, 72


@pytest.fixture(scope="module")
def played():
    with pytest.MonkeyPatch.context() as patch:
        chosen = SimpleNamespace(kernel=KERNEL, config=CONFIG)
        yield install_groups(
            patch,
            lambda problem, spec: None if KERNEL.supports(problem, CONFIG, spec) else chosen,
        )


@pytest.fixture
def gpu(played):
    ragged_product._ready.calls.forget()
    ragged_product._ready.families.forget()
    played[0].launches.clear()
    played[1].overwrites.clear()
    return played[0]


def whole(*shape, seed=0, dtype=np.float16):
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(dtype)


def expected(a, b, ends=ENDS, bias=None):
    """Rows past the last end are zero."""
    result = np.zeros((len(a), b.shape[2]), np.float64)
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        result[start:end] = a[start:end].astype(np.float64) @ b[number]
        if bias is not None:
            result[start:end] += bias[number]
    return result


def operands(dtype=np.float16, seed=0):
    return whole(ROWS, K, seed=seed, dtype=dtype), whole(len(ENDS), K, N, seed=seed, dtype=dtype)


# --- in host memory -----------------------------------------------------------------------------


def test_host_arrays():
    a, b = operands(np.float32)
    bias = whole(len(ENDS), N, dtype=np.float32)
    found = gemmkit.ragged_matmul(a, b, ENDS, bias=bias, epilogue="relu")
    np.testing.assert_array_equal(found, expected(a, b, bias=bias).clip(0))
    out = np.ones((ROWS, N), np.float32)
    ends = np.array([1, 1, 2, 3, 9])
    assert gemmkit.ragged_matmul(a, b, ends, out=out, beta=2) is out
    np.testing.assert_array_equal(out[:9], expected(a, b, ends)[:9] + 2)
    assert (out[9:] == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [1, 2, 3, 4]}, "b has 5 groups"),
        ({"offsets": [1, 2, 1, 4, 5]}, "must be in order.*offset 2 is not"),
        ({"offsets": [1, 2, 3, 4, 2**70]}, "must be in order.*offset 4 is not"),
        ({"offsets": [-1, 2, 3, 4, 5]}, "must be in order"),
        ({"offsets": [1, 2, 3, 4, 81]}, "80 rows of a"),
        ({"offsets": [1.0, 2, 3, 4, 5]}, "not integers"),
        ({"offsets": None}, "not integers"),
        ({"a": whole(K)}, "1 dimension"),
        ({"b": whole(K, N)}, r"\(groups, k, n\)"),
        ({"a": whole(ROWS, K + 1)}, "73 columns"),
        ({"b": whole(5, K, N, dtype=np.float32)}, "b has type float32"),
        ({"bias": whole(4, N)}, r"bias has the shape \(4, 40\); it is \(40,\) or \(5, 40\)"),
        ({"out": whole(ROWS, N + 1)}, "out has the shape"),
        ({"beta": 1.0}, "needs out"),
        ({"stream": 5}, "arrays on a GPU"),
    ],
)
def test_what_does_not_go_together(change, message):
    a, b = operands()
    given = {"a": a, "b": b, "offsets": ENDS, **change}
    with pytest.raises(UsageError, match=message):
        gemmkit.ragged_matmul(given.pop("a"), given.pop("b"), given.pop("offsets"), **given)


# --- on a GPU -----------------------------------------------------------------------------------


def test_offsets_on_the_gpu_are_read_there(gpu, monkeypatch):
    a, b = operands()
    on_gpu, weights = GpuArray.of(a), GpuArray.of(b)
    offsets = Offsets.of(np.array(ENDS, np.int32))
    found = gemmkit.ragged_matmul(on_gpu, weights, offsets)
    np.testing.assert_array_equal(found.values, expected(a, b))
    assert [stream for _, stream in gpu.launches] == [STREAM]
    # Another division of other rows is a launch and nothing else.
    monkeypatch.setattr(ragged_product, "read_ragged", None)
    other, _ = operands(seed=3)
    offsets.values[:] = [10, 20, 20, 20, 79]
    found = gemmkit.ragged_matmul(GpuArray.of(other), weights, offsets)
    right = expected(other, b, [10, 20, 20, 20, 79])
    np.testing.assert_array_equal(found.values[:79], right[:79])


def test_offsets_of_64_bits_and_what_else_goes_in(gpu):
    a, b = operands()
    bias, residual = whole(len(ENDS), N), whole(ROWS, N, seed=5)
    out, auxiliary = GpuArray.of(whole(ROWS, N)), GpuArray.of(np.zeros((ROWS, N), np.float16))
    before = out.values.copy()
    weights = GpuArray.of(b.swapaxes(1, 2))
    turned = GpuArray(weights.values.swapaxes(1, 2), weights.buffer)
    for offsets in (Offsets.of(np.array(ENDS)), ENDS):
        out.values[:] = before
        given = {
            "out": out,
            "beta": 1.0,
            "bias": GpuArray.of(bias),
            "residual": GpuArray.of(residual),
            "auxiliary": auxiliary,
            "epilogue": "relu",
        }
        assert gemmkit.ragged_matmul(GpuArray.of(a), turned, offsets, **given) is out
        argument = expected(a, b, bias=bias) + before
        np.testing.assert_array_equal(auxiliary.values, argument)
        np.testing.assert_array_equal(out.values, argument.clip(0) + residual)


def test_offsets_of_the_host_are_copied_or_stand_in_a_table(gpu, monkeypatch):
    for dtype in (np.float16, np.float32):
        a, b = operands(dtype)
        bias = whole(N, dtype=dtype)
        weights, vector = GpuArray.of(b), GpuArray.of(bias)
        gemmkit.ragged_matmul(GpuArray.of(a), weights, ENDS, bias=vector)
        with monkeypatch.context() as patch:
            patch.setattr(ragged_product, "read_ragged", None)
            for ends in (ENDS, [0, 0, 5, 6, 7], np.array([1, 2, 3, 4, 80])):
                found = gemmkit.ragged_matmul(GpuArray.of(a), weights, ends, bias=vector)
                last = ends[-1]
                right = expected(a, b, ends, [bias] * len(ENDS))
                np.testing.assert_array_equal(found.values[:last], right[:last])
            with pytest.raises(UsageError, match="in order"):
                gemmkit.ragged_matmul(GpuArray.of(a), weights, [5, 4, 3, 2, 1], bias=vector)


@pytest.mark.parametrize("bias", [False, True])
def test_another_number_of_rows_of_the_same_class_is_a_launch_of_other_sizes(
    gpu, monkeypatch, bias
):
    a, b = operands()
    weights = GpuArray.of(b)
    given = {"bias": GpuArray.of(whole(len(ENDS), N))} if bias else {}
    own = given["bias"].values if bias else None
    offsets = Offsets.of(np.array(ENDS, np.int32))
    gemmkit.ragged_matmul(GpuArray.of(a), weights, offsets, **given)
    gemmkit.ragged_matmul(GpuArray.of(a), weights, ENDS, **given)
    monkeypatch.setattr(ragged_product, "read_ragged", None)
    gemmkit.ragged_matmul(GpuArray.of(whole(79, K)), weights, offsets, **given)
    gemmkit.ragged_matmul(GpuArray.of(whole(79, K)), weights, [79] * 5, **given)
    # From here on, nothing looks at the rules of tensor maps.
    monkeypatch.setattr(PlannedMap, "at", None)
    for rows, ends in (
        (81, [0, 0, 64, 70, 81]),
        (73, [73] * 5),
        (80, ENDS),
        (81, [9, 9, 9, 9, 80]),
    ):
        other = whole(rows, K, seed=rows)
        right = expected(other, b, ends, own)
        offsets.values[:] = ends
        for where in (offsets, ends):
            found = gemmkit.ragged_matmul(GpuArray.of(other), weights, where, **given)
            assert found.shape == (rows, N)
            np.testing.assert_array_equal(found.values[: ends[-1]], right[: ends[-1]])
    # Of another class there is nothing to begin with.
    with pytest.raises(TypeError):
        gemmkit.ragged_matmul(GpuArray.of(whole(20, K)), weights, [1, 2, 3, 4, 20], **given)


def test_memory_of_others_on_the_stream_that_is_said(gpu, monkeypatch):
    """As XLA gives it: the second call is a launch and nothing else."""

    def borrowed(array, view=None):
        own = view or View.tight(array.values.shape)
        kind = array.values.dtype.name
        return DlpackArray(array.values.ctypes.data, own, kind, (CUDA, 0))

    a, b = operands()
    arrays = (
        GpuArray.of(a),
        GpuArray.of(b.swapaxes(1, 2)),
        GpuArray.of(np.zeros((ROWS, N), a.dtype)),
    )
    turned = View((len(ENDS), K, N), (K * N, 1, K))
    offsets = GpuArray.of(np.array(ENDS, np.int32))
    for stream in (5, 6):
        x, weights, out = arrays
        out.values[:] = 0
        with dlpack.on_stream(stream, 0):
            gemmkit.ragged_matmul(
                borrowed(x), borrowed(weights, turned), borrowed(offsets), out=borrowed(out)
            )
        np.testing.assert_array_equal(out.values, expected(a, b))
        assert gpu.launches[-1][1] == stream
        monkeypatch.setattr(ragged_product, "read_ragged", None)


def test_what_does_not_lie_in_rows_is_copied(gpu):
    a, b = operands()
    wide = GpuArray.of(np.zeros((2 * N, ROWS), np.float16))
    out = GpuArray(wide.values[::2].T, wide.buffer)
    columns = GpuArray.of(a.T)
    spread = GpuArray(np.broadcast_to(GpuArray.of(b[:1]).values, b.shape), None)
    gemmkit.ragged_matmul(
        GpuArray(columns.values.T, columns.buffer), spread, Offsets.of(np.array(ENDS)), out=out
    )
    np.testing.assert_array_equal(out.values, expected(a, np.broadcast_to(b[:1], b.shape)))
    assert not wide.values[1::2].any()


def test_a_warm_call_sees_what_would_overlap(gpu):
    a, b = operands()
    memory = GpuArray.of(np.zeros((2 * ROWS, K), np.float16))
    memory.values[:ROWS] = a
    x, weights = memory[:ROWS], GpuArray.of(b)
    offsets = Offsets.of(np.array(ENDS))
    apart = GpuArray.of(np.zeros((ROWS, K), np.float16))[:, :N]
    gemmkit.ragged_matmul(x, weights, offsets, out=apart)
    np.testing.assert_array_equal(apart.values, expected(a, b))
    with pytest.raises(UsageError, match="out overlaps a"):
        gemmkit.ragged_matmul(x, weights, offsets, out=memory[8 : 8 + ROWS, :N])


def test_what_offsets_on_the_gpu_need(gpu):
    offsets = Offsets.of(np.array(ENDS))
    a, b = operands(np.float32)
    with pytest.raises(UnsupportedProblem, match=r"float32.*host memory"):
        gemmkit.ragged_matmul(GpuArray.of(a), GpuArray.of(b), offsets)
    a, b = operands()
    with pytest.raises(UnsupportedType, match="int32 or int64"):
        gemmkit.ragged_matmul(GpuArray.of(a), GpuArray.of(b), Offsets.of(np.array(ENDS, np.int16)))
    with pytest.raises(UsageError, match="contiguous"):
        gemmkit.ragged_matmul(
            GpuArray.of(a), GpuArray.of(b), Offsets(np.repeat(np.array(ENDS), 2)[::2], None)
        )
    with pytest.raises(UsageError, match="a is in host memory"):
        gemmkit.ragged_matmul(a, b, offsets)


def test_nothing_to_compute(gpu):
    a, b = operands()
    offsets = Offsets.of(np.zeros(len(ENDS), np.int32))
    assert gemmkit.ragged_matmul(GpuArray.of(a[:0]), GpuArray.of(b), offsets).shape == (0, N)
    assert gpu.launches == []
    # Without k, there are the other terms.
    found = gemmkit.ragged_matmul(
        GpuArray.of(a[:, :0]), GpuArray.of(b[:, :0]), ENDS, bias=GpuArray.of(np.ones(N, np.float16))
    )
    assert (found.values == 1).all()
