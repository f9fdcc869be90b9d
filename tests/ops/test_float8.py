"""Products of arrays whose elements have 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
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
        ({"out_dtype": "float8_e4m3"}, UnsupportedType, "not a type that gemmkit computes"),
        ({"out": np.zeros((4, 4), np.uint8)}, UnsupportedType, "result has type float8_e4m3, whi"),
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
