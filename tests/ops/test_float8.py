"""Products of arrays whose elements have 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.libraries import numpy as numpys
from gemmkit.ops.operands import known_dtype
from gemmkit.verify.encoding import decode, encode

E4M3, E5M2 = "float8_e4m3", "float8_e5m2"


def stored(shape, seed, dtype=E4M3):
    """Small integers, and their bits."""
    numbers = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)
    bits = encode(numbers, dtype)
    assert np.array_equal(decode(bits, dtype), numbers)
    return numbers, bits


@pytest.fixture
def bytes_are_e4m3(monkeypatch):
    """NumPy has such types from ml_dtypes alone, which may be missing: bytes stand for them."""

    def known(name, role):
        return E4M3 if name == "uint8" else known_dtype(name, role)

    monkeypatch.setattr(numpys, "known_dtype", known)


def multiply(*arrays, **rest):
    return gemmkit.matmul(*arrays, device="emulator", **rest)


@pytest.mark.usefixtures("bytes_are_e4m3")
def test_results_are_float32_unless_another_type_is_given():
    (a, bits_a), (b, bits_b) = stored((3, 9, 20), 1), stored((20, 7), 2)
    found = multiply(bits_a, bits_b)
    assert found.dtype == np.float32
    assert np.array_equal(found, a @ b)
    half = multiply(bits_a, bits_b, alpha=0.5, out_dtype="float16", bias=np.ones(7, np.float16))
    assert half.dtype == np.float16
    assert np.array_equal(half, (a @ b / 2 + 1).astype(np.float16))
    out = np.empty((3, 9, 7), np.float64)
    assert multiply(bits_a, bits_b, out=out) is out
    assert np.array_equal(out, a @ b)


@pytest.mark.usefixtures("bytes_are_e4m3")
def test_strided_and_transposed_arrays():
    (a, bits_a), (b, bits_b) = stored((20, 9), 3), stored((14, 20), 4)
    found = multiply(bits_a.T, bits_b[::2].T, precision="fast")
    assert np.array_equal(found, a.T @ b[::2].T)


@pytest.mark.usefixtures("bytes_are_e4m3")
def test_groups():
    pairs = [(stored((5, 12), 5), stored((12, 3), 6)), (stored((2, 8), 7), stored((8, 9), 8))]
    found = gemmkit.grouped_matmul(
        [a for (_, a), _ in pairs], [b for _, (_, b) in pairs], device="emulator"
    )
    for result, ((a, _), (b, _)) in zip(found, pairs, strict=True):
        assert result.dtype == np.float32
        assert np.array_equal(result, a @ b)


@pytest.mark.usefixtures("bytes_are_e4m3")
@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"b": np.ones((4, 4), np.float32)}, UnsupportedType, "b has type float32 and a has type"),
        ({"out_dtype": "uint8"}, UnsupportedType, "not a type that gemmkit computes"),
        ({"c": np.zeros((4, 4), np.uint8), "beta": 1.0}, UnsupportedType, "c has type float8_e4m3"),
        ({"precision": "tf32"}, UsageError, "'tf32' is of products of float32"),
    ],
)
def test_what_is_refused(more, error, message):
    ones = np.full((4, 4), 0x38, np.uint8)
    given = {"a": ones, "b": ones, **more}
    with pytest.raises(error, match=message):
        multiply(given.pop("a"), given.pop("b"), **given)


def test_names_of_the_types():
    assert known_dtype("float8_e4m3fn", "a") == E4M3
    assert known_dtype("float8_e5m2", "a") == E5M2
    # Other types of 8 bits are others: this one of ml_dtypes has infinities.
    for name in ("float8_e4m3", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint8"):
        with pytest.raises(UnsupportedType, match=f"a has type {name}; gemmkit mult.*e4m3fn, "):
            known_dtype(name, "a")
    with pytest.raises(UsageError, match="'fast' is of products of float8_e4m3"):
        multiply(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), precision="fast")
    with pytest.raises(UsageError, match="'fast' is of 8-bit types"):
        gemmkit.set_precision("fast")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_ml_dtypes(name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    a, b = (stored(shape, seed, E5M2)[0] for shape, seed in (((9, 20), 1), ((20, 7), 2)))
    found = multiply(a.astype(dtype), b.astype(dtype))
    assert np.array_equal(found, a @ b)
    other = "float8_e5m2" if name == "float8_e4m3fn" else "float8_e4m3fn"
    with pytest.raises(UnsupportedType, match=r"b has type float8_e\w+ and a has type float8"):
        multiply(a.astype(dtype), b.astype(other))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_pytorch(name):
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(stored(shape, 1, E5M2)[0]) for shape in ((9, 20), (7, 20)))
    dtype = getattr(torch, name)
    found = multiply(a.to(dtype), b.to(dtype).T, out_dtype=torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, (a @ b.T).to(torch.bfloat16))


@pytest.mark.usefixtures("bytes_are_e4m3")
def test_results_of_8_bits():
    (a, bits_a), (b, bits_b) = stored((2, 9, 20), 1), stored((20, 7), 2)
    out = np.zeros((7, 9, 2), np.uint8).T
    bias = np.arange(7, dtype=np.float32)
    exact = np.maximum(a @ b + bias, 0)
    for scale in (16.0, np.float32(16), np.array([[16]], np.float32)):
        given = {"bias": bias, "epilogue": "bias+relu", "scale_result": scale, "out_dtype": E4M3}
        assert multiply(bits_a, bits_b, out=out, **given) is out
        assert np.array_equal(out, encode(exact * 16, E4M3))
    assert (exact * 16 > 448).any()
    # The epilogue's own scale, and α, which is no scale of the results.
    twice = Epilogue(scale=2.0)
    given = {"alpha": 0.5, "epilogue": twice, "scale_result": 0.25, "out_dtype": E4M3}
    multiply(bits_a, bits_b, out=out, **given)
    assert np.array_equal(out, encode(a @ b / 4, E4M3))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_new_results_of_8_bits(name):
    """Of every library that has such a type, and of operands of every type."""
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    a, b = (stored(shape, seed, E5M2)[0] for shape, seed in (((9, 20), 1), ((20, 7), 2)))
    exact = (a @ b).astype(dtype)
    for own in (dtype, np.dtype(np.float32), np.dtype(np.float16)):
        found = multiply(a.astype(own), b.astype(own), out_dtype=dtype)
        assert found.dtype == dtype
        assert found.tobytes() == exact.tobytes()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_pytorch_with_results_of_8_bits(name):
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(stored(shape, 1, E5M2)[0]) for shape in ((9, 20), (7, 20)))
    kind = getattr(torch, name)
    scale = torch.tensor(0.125)
    right = (a @ b.T / 8).to(kind).view(torch.uint8)
    found = multiply(a.to(kind), b.to(kind).T, out_dtype=kind, scale_result=scale)
    assert found.dtype == kind
    assert torch.equal(found.view(torch.uint8), right)


@pytest.mark.usefixtures("bytes_are_e4m3")
@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"bias": np.ones(4, np.float16)}, UnsupportedType, "bias has type float16: beside"),
        ({"beta": 1.0, "c": np.zeros((4, 4), np.uint8)}, UsageError, "go without C, which"),
        ({"residual": np.zeros((4, 4), np.uint8)}, UsageError, "go without a residual"),
        ({"scale_result": np.ones(2, np.float32)}, UsageError, r"the shape \(2,\): give one"),
        ({"scale_result": np.ones(1)}, UnsupportedType, "scale_result has type float64"),
        ({"scale_result": 1e39, "out_dtype": E4M3}, UsageError, r"1e\+39 is not a finite fp32"),
        ({"epilogue": "scale_result"}, UsageError, "needs the array scale_result"),
        ({"device_memory": "1GiB"}, UsageError, "float8_e4m3 are not streamed"),
        ({"out": None, "scale_result": 2.0}, UsageError, "give out_dtype, or use the epilogue's"),
        (
            {"out": None, "scale_result": np.ones(1, np.float32)},
            UsageError,
            "results of float8_e4m3 and float8_e5m2, not float32",
        ),
    ],
)
def test_what_results_of_8_bits_go_without(more, error, message):
    ones = np.full((4, 4), 0x38, np.uint8)
    with pytest.raises(error, match=message):
        multiply(ones, ones, **{"out": np.zeros((4, 4), np.uint8), **more})
