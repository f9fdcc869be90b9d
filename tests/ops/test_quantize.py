"""`gemmkit.quantize`: arrays of 8 bits with the scales that `matmul` takes."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import gemmkit
from gemmkit.errors import UnsupportedType, UsageError

LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}
ROWS, COLUMNS = 200, 300
SHAPES = {
    "tensor": (1, 1),
    "rows": (ROWS, 1),
    "columns": (1, COLUMNS),
    "1x128": (ROWS, 3),
    "128x1": (2, COLUMNS),
    "128x128": (2, 3),
}


def drawn(seed=0, shape=(ROWS, COLUMNS)):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))).astype(np.float32)


def spread(scales, shape=(ROWS, COLUMNS)):
    for axis, size in enumerate(shape):
        if scales.shape[axis] not in (1, size):
            scales = np.repeat(scales, 128, axis)
            scales = scales[(slice(None),) * axis + (slice(size),)]
    return np.broadcast_to(scales, shape)


@pytest.fixture
def wide_stand_ins(monkeypatch):
    """ml_dtypes may be missing; numbers of 32 bits in place of its own are not rounded."""
    types = SimpleNamespace(float8_e4m3fn=np.float32, float8_e5m2=np.float32)
    monkeypatch.setitem(sys.modules, "ml_dtypes", types)


@pytest.mark.usefixtures("wide_stand_ins")
@pytest.mark.parametrize(("scale", "shape"), SHAPES.items())
@pytest.mark.parametrize("dtype", LARGEST)
def test_the_largest_of_each_part_becomes_the_largest_of_the_type(dtype, scale, shape):
    x = drawn()
    x[128:, 256:] = 0
    found, scales = gemmkit.quantize(x, dtype, scale=scale)
    assert scales.shape == shape
    assert scales.dtype == np.float32
    assert np.allclose(found * spread(scales), x, rtol=1e-6)
    for value in np.unique(scales):
        largest = np.abs(found[spread(scales) == value]).max()
        assert largest == 0 if value == 1 else np.isclose(largest, LARGEST[dtype], rtol=1e-6)
    if scale == "1x128":
        assert scales.strides == (4, 4 * ROWS)


@pytest.mark.usefixtures("wide_stand_ins")
def test_what_is_not_finite_stays_visible_and_spoils_nothing_else():
    x = drawn()
    x[0, 0], x[5, 200] = np.nan, -np.inf
    found, scales = gemmkit.quantize(x, "e5m2", scale="128x128")
    assert np.isnan(found[0, 0])
    assert np.isneginf(found[5, 200])
    assert np.isnan(gemmkit.quantize(x, "e4m3")[0][5, 200])
    assert np.isfinite(scales).all()
    assert np.isfinite(found).sum() == x.size - 2


@pytest.mark.usefixtures("wide_stand_ins")
def test_stacks_tiny_numbers_and_empty_arrays():
    x = drawn(1, (3, 8, 20))
    found, scales = gemmkit.quantize(x)
    assert scales.shape == (3, 1, 1)
    assert np.allclose(found * scales, x, rtol=1e-6)
    tiny, scales = gemmkit.quantize(np.full((2, 2), 1e-44, np.float32))
    assert np.isfinite(tiny).all()
    assert scales == np.float32(2.0**-126)
    empty, scales = gemmkit.quantize(np.zeros((0, 5), np.float32))
    assert empty.shape == (0, 5)
    assert scales == 1
    assert gemmkit.quantize(np.zeros((0, 200), np.float32), scale="1x128")[1].shape == (0, 2)


def test_what_is_refused(monkeypatch):
    x = drawn()
    with pytest.raises(UsageError, match="unknown scale 'block'"):
        gemmkit.quantize(x, scale="block")
    with pytest.raises(UnsupportedType, match="unknown type of 8 bits 'float16'"):
        gemmkit.quantize(x, "float16")
    with pytest.raises(UnsupportedType, match="list: quantize takes arrays"):
        gemmkit.quantize([[1.0]])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UnsupportedType, match="pip install ml_dtypes"):
        gemmkit.quantize(x)


@pytest.mark.usefixtures("wide_stand_ins")
def test_vectors_are_refused():
    with pytest.raises(UsageError, match="x has 1 dimension"):
        gemmkit.quantize(np.ones(4, np.float32))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", LARGEST)
def test_each_library_has_types_of_its_own(library, dtype):
    """Rounded to nearest: half a unit in the last place, or half the smallest number."""
    module = pytest.importorskip("ml_dtypes" if library == "numpy" else library)
    x = drawn()
    x[0, 0], x[5, 200] = np.nan, np.inf
    given = {
        "numpy": lambda: x,
        "torch": lambda: module.from_numpy(x),
        "jax": lambda: module.numpy.asarray(x),
    }[library]()
    found, scales = gemmkit.quantize(given, dtype, scale="1x128")
    assert f"{dtype}{'fn' * (dtype == 'float8_e4m3')}" in str(found.dtype)
    if library == "torch":
        found, scales = found.float(), scales.numpy()
        assert scales.strides == (4, 4 * ROWS)
    whole = spread(np.asarray(scales))
    back = np.asarray(found).astype(np.float32) * whole
    unit, tiny = (2.0**-4, 2.0**-10) if dtype == "float8_e4m3" else (2.0**-3, 2.0**-17)
    finite = np.isfinite(x)
    bound = 1.0001 * (unit * np.abs(x) + tiny * whole)
    assert (np.abs(back[finite] - x[finite]) <= bound[finite]).all()
    assert np.isnan(back[0, 0])
    assert np.isnan(back[5, 200]) if dtype == "float8_e4m3" else np.isposinf(back[5, 200])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_products_of_quantized_arrays(library):
    module = pytest.importorskip("ml_dtypes" if library == "numpy" else library)
    a, b = drawn(2, (40, 300)), drawn(3, (300, 24))
    given = [a, b] if library == "numpy" else [module.from_numpy(each) for each in (a, b)]
    a8, scale_a = gemmkit.quantize(given[0], scale="1x128")
    b8, scale_b = gemmkit.quantize(given[1], scale="128x128")
    found = gemmkit.matmul(a8, b8, scale_a=scale_a, scale_b=scale_b, device="emulator")
    exact = a.astype(float) @ b
    assert np.linalg.norm(np.asarray(found) - exact) < 0.05 * np.linalg.norm(exact)
