"""Products of arrays of 8 bits with scales, as `torch._scaled_mm` has them."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.libraries import numpy as numpys
from gemmkit.ops.operands import View, known_dtype
from gemmkit.ops.placement import Terms, place
from gemmkit.ops.scale_shapes import read_scales
from gemmkit.ops.shapes import Shape
from gemmkit.scales import Scales
from gemmkit.verify.encoding import encode

E4M3 = "float8_e4m3"
M, N, K = 140, 136, 264
CHUNKS, OF_M, OF_N = 3, 2, 2
# The shapes of scale_a and scale_b, and what they are called.
SHAPES_OF_A = {(): "tensor", (M, 1): "rows", (M, CHUNKS): "1x128", (OF_M, CHUNKS): "128x128"}
SHAPES_OF_B = {(1,): "tensor", (1, N): "columns", (CHUNKS, N): "1x128", (CHUNKS, OF_N): "128x128"}


@pytest.fixture(autouse=True)
def bytes_are_e4m3(monkeypatch):
    """NumPy has such types from ml_dtypes alone, which may be missing: bytes stand for them."""

    def known(name, role):
        return E4M3 if name == "uint8" else known_dtype(name, role)

    monkeypatch.setattr(numpys, "known_dtype", known)


def stored(shape, seed):
    """Small integers, and their bits."""
    numbers = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)
    return numbers, encode(numbers, E4M3)


def powers(shape, seed):
    """Scales that keep sums exact."""
    drawn = np.random.default_rng(seed).integers(-2, 3, shape)
    return np.asarray(np.float32(2.0) ** drawn, np.float32)


def spread(scales, shape):
    """A scale for each element of a matrix."""
    scales = np.atleast_2d(scales)
    for axis, size in enumerate(shape):
        own = scales.shape[axis]
        if own not in (1, size):
            scales = np.repeat(scales, 128, axis)[(slice(None),) * axis + (slice(size),)]
    return np.broadcast_to(scales, shape)


def multiply(*arrays, **rest):
    return gemmkit.matmul(*arrays, device="emulator", **rest)


@pytest.mark.parametrize("shape_a", SHAPES_OF_A)
@pytest.mark.parametrize("shape_b", SHAPES_OF_B)
@pytest.mark.sample(7)
def test_any_scales_of_a_go_with_any_of_b(shape_a, shape_b):
    (a, bits_a), (b, bits_b) = stored((M, K), 1), stored((K, N), 2)
    scale_a, scale_b = powers(shape_a, 3), powers(shape_b, 4)
    found = multiply(bits_a, bits_b, scale_a=scale_a, scale_b=scale_b)
    assert np.array_equal(found, (a * spread(scale_a, a.shape)) @ (b * spread(scale_b, b.shape)))


@pytest.mark.parametrize("given", ["scale_a", "scale_b"])
def test_one_of_both_may_have_none(given):
    (a, bits_a), (b, bits_b) = stored((20, K), 1), stored((K, 24), 2)
    scales = powers((20, CHUNKS) if given == "scale_a" else (CHUNKS, 1), 5)
    found = multiply(bits_a, bits_b, **{given: scales})
    scaled = a, b * spread(scales, b.shape) if given == "scale_b" else b
    if given == "scale_a":
        scaled = a * spread(scales, a.shape), b
    assert np.array_equal(found, scaled[0] @ scaled[1])


def test_numbers_are_scales_too():
    (a, bits_a), (b, bits_b) = stored((9, 20), 1), stored((20, 7), 2)
    found = multiply(bits_a, bits_b, alpha=3, scale_a=0.5, scale_b=np.float32(4))
    assert np.array_equal(found, 6 * (a @ b))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"alpha": "2", "scale_a": 0.5}, UnsupportedType, "alpha = '2' is not a number"),
        ({"alpha": None, "scale_b": 2}, UnsupportedType, "alpha = None is not a number"),
        ({"scale_a": 10**400}, UsageError, "scale_a is larger than any float"),
        ({"scale_b": float("nan")}, UsageError, "scale_b = nan: a number is a factor of alpha"),
        ({"scale_a": 1e39}, UsageError, r"scale_a = 1e\+39: a number .* finite in fp32"),
        (
            {"alpha": 2, "scale_a": 1e30, "scale_b": 1e20},
            UsageError,
            r"alpha = 2 times scale_a = 1e\+30, scale_b = 1e\+20 is 2e\+50, .* not a finite fp32",
        ),
        ({"alpha": float("inf"), "scale_a": 2}, UsageError, "alpha = inf is not a finite"),
        ({"scale_a": np.ones((1, 1), np.int32)}, UnsupportedType, "int32: scales are float32"),
    ],
)
def test_what_scales_that_are_numbers_cannot_be(change, error, message):
    (_, bits_a), (_, bits_b) = stored((9, 20), 1), stored((20, 7), 2)
    with pytest.raises(error, match=message):
        multiply(bits_a, bits_b, **change)
    if not isinstance(change.get("scale_a"), np.ndarray):
        with pytest.raises(error, match=message):
            gemmkit.ragged_matmul(bits_a, bits_b[None], [9], **change)
        with pytest.raises(error, match=message):
            gemmkit.grouped_matmul([bits_a], [bits_b], **change)


@pytest.mark.parametrize("role", ["scale_a", "scale_b"])
def test_a_number_is_no_scale_of_other_types(role):
    """As an array is none."""
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    wanted = f"{role} is for a and b of float8_e4m3 and float8_e5m2, not float32: alpha scales"
    for call in (
        lambda given: multiply(a, b, **given),
        lambda given: gemmkit.ragged_matmul(a, b[None], [2], **given),
        lambda given: gemmkit.grouped_matmul([a], [b], **given),
    ):
        with pytest.raises(UsageError, match=wanted):
            call({role: 2.0})


def test_scales_come_before_alpha_bias_and_activation():
    (a, bits_a), (b, bits_b) = stored((40, K), 1), stored((K, 24), 2)
    scale_a, scale_b = powers((40, 1), 3), powers((CHUNKS, 1), 4)
    bias = np.arange(24, dtype=np.float32)
    found = multiply(
        *(bits_a, bits_b),
        scale_a=scale_a,
        scale_b=scale_b,
        alpha=2,
        bias=bias,
        epilogue="bias+relu",
        out_dtype="float32",
    )
    product = (a * scale_a) @ (b * spread(scale_b, b.shape))
    assert np.array_equal(found, np.maximum(2 * product + bias, 0))


def test_views_and_transposed_results():
    """Scales lie as they like, and a result in columns is the transposed product."""
    (a, bits_a), (b, bits_b) = stored((K, 2 * M), 1), stored((N, K), 2)
    a, bits_a = a[:, ::2].T, bits_a[:, ::2].T
    b, bits_b = b.T, bits_b.T
    scale_a, scale_b = powers((CHUNKS, 2 * M), 3)[:, ::2].T, powers((OF_N, CHUNKS), 4).T
    wanted = (a * spread(scale_a, a.shape)) @ (b * spread(scale_b, b.shape))
    out = np.empty((N, M), np.float32).T
    assert multiply(bits_a, bits_b, scale_a=scale_a, scale_b=scale_b, out=out) is out
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "of_a", "of_b"),
    [
        ((3, 33, K), (K, 24), (3, 33, 1), (1, 24)),
        ((3, 33, K), (K, 24), (33, CHUNKS), (CHUNKS, 1)),
        ((3, 33, K), (3, K, 24), (3, 1, CHUNKS), (3, CHUNKS, 24)),
        ((33, K), (3, K, 24), (3, 1, 1), (1, 1, 24)),
        ((K,), (2, 3, K, 24), (1, CHUNKS), (2, 1, CHUNKS, 1)),
        ((2, 3, 8, K), (K,), (2, 1, 8, 1), ()),
    ],
)
@pytest.mark.sample(2)
def test_stacks_may_have_scales_of_their_own(shape_a, shape_b, of_a, of_b):
    (a, bits_a), (b, bits_b) = stored(shape_a, 1), stored(shape_b, 2)
    scale_a, scale_b = powers(of_a, 3), powers(of_b, 4)
    found = multiply(bits_a, bits_b, scale_a=scale_a, scale_b=scale_b)

    def scaled(numbers, scales, vector):
        scales = scales[..., None, None] if scales.ndim < 1 else scales
        matrix = np.expand_dims(numbers, vector) if numbers.ndim == 1 else numbers
        sides = matrix.shape[-2:]
        flat = scales.reshape(-1, *scales.shape[-2:])
        whole = np.stack([spread(each, sides) for each in flat])
        return matrix * whole.reshape(*scales.shape[:-2], *sides)

    wanted = scaled(a, scale_a, 0) @ scaled(b, scale_b, 1)
    assert np.array_equal(found, wanted.reshape(found.shape))


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"scale_a": np.ones((M, 2), np.float32)}, UsageError, r"scale_a has the shape \(140, 2\)"),
        ({"scale_b": np.ones(N, np.float32)}, UsageError, r"use one of \(1, 1\) \(tensor\), \(1, "),
        ({"scale_a": np.ones((M, 1))}, UnsupportedType, "scale_a has type float64: scales are"),
        ({"scale_a": np.ones((2, 1, 1), np.float32)}, UsageError, "do not broadcast to the stack"),
    ],
)
def test_what_is_refused(more, error, message):
    with pytest.raises(error, match=message):
        multiply(np.zeros((M, K), np.uint8), np.zeros((K, N), np.uint8), **more)


def test_other_types_have_none():
    ones = np.ones((4, 4), np.float32)
    with pytest.raises(UsageError, match="scale_a is for a and b of float8_e4m3 and float8_e5m2"):
        multiply(ones, ones, scale_a=np.ones((1, 1), np.float32))


def test_which_scales_a_shape_stands_for():
    shape = Shape.of((M, K), (K, N))
    for of_a, name_a in SHAPES_OF_A.items():
        for of_b, name_b in SHAPES_OF_B.items():
            found = read_scales({"scale_a": of_a, "scale_b": of_b}, shape)
            assert found == Scales.parse(f"{name_a},{name_b}")
    assert not read_scales({}, shape)


def test_a_stack_that_shares_b_is_one_product_of_more_rows():
    shape = Shape.of((5, 16, K), (K, N))
    views = {"a": View.tight((5, 16, K)), "b": View.tight((K, N)), "out": View.tight((5, 16, N))}
    for of_a, rows, scales in (
        ((5, 16, CHUNKS), 80, "1x128,128x128"),
        ((1, 1), 80, "tensor,128x128"),
        ((5, 1, 1), 16, "tensor,128x128"),
    ):
        scaled = views | {"scale_a": View.tight(of_a), "scale_b": View.tight((CHUNKS, OF_N))}
        terms = Terms(dtype=E4M3, scales=Scales.parse(scales))
        (step,) = place(shape.stacks(scaled), terms)
        assert step.problem.m == rows
        assert step.problem.batch == (1 if rows == 80 else 5)
        # By blocks of columns and chunks of k of B; no stride to the next product.
        assert step.scales["scale_b"] == (1, OF_N, 0)


def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    (a, _), (b, _) = stored((M, K), 1), stored((N, K), 2)
    narrow = [torch.from_numpy(each).to(torch.float8_e4m3fn) for each in (a, b)]
    scales = [torch.from_numpy(powers(each, 3)) for each in ((M, CHUNKS), (OF_N, CHUNKS))]
    given = {"scale_a": scales[0], "scale_b": scales[1].T, "out_dtype": torch.bfloat16}
    found = multiply(narrow[0], narrow[1].T, **given)
    wanted = (a * spread(scales[0].numpy(), a.shape)) @ (b * spread(scales[1].numpy(), b.shape)).T
    assert torch.equal(found, torch.from_numpy(wanted).to(torch.bfloat16))

    def call(x, y):
        return gemmkit.matmul(x, y.T, **given, device="emulator")

    graph = torch.fx.symbolic_trace(call)
    assert torch.equal(graph(*narrow), found)
