"""Matrices that begin at any of their elements are read in place; others are not, on a GPU."""

import logging

import numpy as np
import pytest

import gemmkit
from emulated_gpu import GpuArray, install
from gemmkit.errors import UsageError

OFFSETS = (1, 2, 3, 4, 8)


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        yield install(patch)[0]


def matrix(rows, columns, dtype, *, offset=0, by_columns=False):
    """Whole numbers that begin so many elements past an address of many zeros."""
    values = np.random.default_rng(rows).integers(-4, 5, offset + rows * columns).astype(dtype)
    whole = GpuArray.of(values)
    sides = (columns, rows) if by_columns else (rows, columns)
    found = GpuArray(whole.values[offset:].reshape(sides), whole.buffer)
    return found.T if by_columns else found


def check(a, b, **options):
    found = gemmkit.matmul(a, b, **options).values
    exact = a.values.astype(np.float64) @ b.values.astype(np.float64)
    np.testing.assert_array_equal(found.astype(np.float64), exact)


@pytest.mark.parametrize(
    ("dtype", "out", "layout"),
    [
        ("float16", "float32", "nn"),
        ("float16", "float16", "tn"),
        ("bfloat16", "float32", "tt"),
        ("bfloat16", "bfloat16", "nt"),
    ],
)
def test_halves_at_any_address_are_read_in_place(gpu, caplog, dtype, out, layout):
    gpu.chosen.clear()
    if dtype == "bfloat16":
        dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    own = dtype if out == "bfloat16" else out
    by_columns = [letter == "t" for letter in layout]
    with caplog.at_level(logging.DEBUG, "gemmkit"):
        for offset in OFFSETS:
            a = matrix(9, 13, dtype, offset=offset, by_columns=by_columns[0])
            b = matrix(13, 11, dtype, by_columns=by_columns[1])
            check(a, b, out_dtype=out)
            check(a, b, out=matrix(9, 11, own, offset=offset))
    assert {problem.alignment for problem in gpu.chosen} == {2, 4, 8, 16}
    assert {problem.layout for problem in gpu.chosen} == {layout}
    assert not caplog.records


@pytest.mark.parametrize("offset", [1, 4])
def test_wide_accesses_are_taken_apart_at_odd_addresses(gpu, offset):
    a, b = matrix(16, 24, "float16", offset=offset), matrix(24, 16, "float16")
    check(a, b, out_dtype="float32")


@pytest.mark.parametrize("role", ["a", "b", "out", "bias"])
@pytest.mark.parametrize("multiply", [gemmkit.matmul, gemmkit.grouped_matmul])
def test_elements_across_their_own_size_are_refused(gpu, multiply, role):
    raw = GpuArray.of(np.zeros(4 * 16 + 2, np.uint8))
    arrays = {each: matrix(4, 4, "float32") for each in ("a", "b", "out")}
    arrays["bias"] = GpuArray.of(np.zeros(4, np.float32))
    cut = raw.values[2:].view(np.float32)
    arrays[role] = GpuArray(cut[:4] if role == "bias" else cut.reshape(4, 4), raw.buffer)
    if multiply is gemmkit.grouped_matmul:
        arrays = {each: [array] for each, array in arrays.items()}
    gpu.launches.clear()
    with pytest.raises(UsageError, match=rf"{role}.* not aligned to its elements of 4 bytes"):
        multiply(arrays["a"], arrays["b"], out=arrays["out"], bias=arrays["bias"])
    assert not gpu.launches


def test_stacks_of_halves_at_odd_distances():
    a = np.random.default_rng(0).integers(-4, 5, (2, 1, 40, 7)).astype(np.float16)
    b = np.random.default_rng(1).integers(-4, 5, (1, 3, 7, 15)).astype(np.float16)
    found = gemmkit.matmul(a[..., 1:, :], b[..., 1:], out_dtype="float32", device="emulator")
    np.testing.assert_array_equal(found, a[..., 1:, :].astype("f") @ b[..., 1:].astype("f"))


def test_rows_a_fraction_of_an_element_apart_are_copied_in_host_memory():
    raw = np.zeros(80, np.uint8)
    apart = np.lib.stride_tricks.as_strided(raw.view(np.float32), (3, 4), (18, 4))
    apart[...] = np.arange(12).reshape(3, 4)
    b = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(gemmkit.matmul(apart, b, device="emulator"), apart @ b)
