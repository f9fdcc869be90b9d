"""Products of 8-bit types in JAX programs, with every kind of scales."""

from __future__ import annotations

from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402

import gemmkit  # noqa: E402
import gemmkit.jax as gk  # noqa: E402
from gemmkit.errors import UnsupportedType, UsageError  # noqa: E402
from gemmkit.jax import call_frame, registry, target  # noqa: E402
from gemmkit.ops.arrays import library_of  # noqa: E402
from gemmkit.ops.libraries import dlpack  # noqa: E402

# k of one block of 128 and a part of another.
M, N, K = 5, 7, 150
KINDS_OF_A = {"tensor": (1, 1), "rows": (M, 1), "1x128": (M, 2), "128x128": (1, 2)}
KINDS_OF_B = {"tensor": (1, 1), "columns": (1, N), "128x1": (2, N), "128x128": (2, 1)}


def narrow(*shape, dtype="float8_e4m3fn", seed=0):
    """Elements that an 8-bit type holds exactly."""
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape), dtype)


def scales(*shape, seed=0):
    """Powers of two, so that products with them are exact."""
    exponents = np.random.default_rng([seed, *shape]).integers(-2, 3, shape)
    return jnp.asarray(np.exp2(exponents), jnp.float32)


def widened(array, scale, block):
    """Elements times their scales, each of which is for a block."""
    rows, columns = array.shape[-2:]
    own = np.asarray(scale)
    for axis, (size, length) in ((-2, (block[0], rows)), (-1, (block[1], columns))):
        own = np.take(np.repeat(own, size, axis), np.arange(length), axis)
    return np.asarray(array, np.float64) * own


BLOCKS_OF_A = {"tensor": (M, K), "rows": (1, K), "1x128": (1, 128), "128x128": (128, 128)}
BLOCKS_OF_B = {"tensor": (K, N), "columns": (K, 1), "128x1": (128, 1), "128x128": (128, 128)}


@pytest.mark.parametrize(("kind_a", "kind_b"), list(product(KINDS_OF_A, KINDS_OF_B)))
def test_scales_of_every_kind(kind_a, kind_b):
    a, b = narrow(M, K), narrow(K, N, seed=1)
    scale_a, scale_b = scales(*KINDS_OF_A[kind_a]), scales(*KINDS_OF_B[kind_b], seed=1)
    exact = widened(a, scale_a, BLOCKS_OF_A[kind_a]) @ widened(b, scale_b, BLOCKS_OF_B[kind_b])
    program = jax.jit(lambda a, b, x, y: gk.matmul(a, b.T, transb=True, scale_a=x, scale_b=y))
    found = program(a, b, scale_a, scale_b)
    assert (found.shape, found.dtype) == ((M, N), jnp.float32)
    np.testing.assert_array_equal(found, exact)
    # The same as of NumPy's arrays, to the bit.
    own = gemmkit.matmul(*map(np.asarray, (a, b)), scale_a=np.asarray(scale_a), scale_b=scale_b)
    np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("out_dtype", [None, "bfloat16", jnp.float16])
def test_types_and_products_without_scales(dtype, out_dtype):
    a, b = narrow(2, M, K, dtype=dtype), narrow(K, N, dtype=dtype, seed=1)
    found = gk.matmul(a, b, out_dtype=out_dtype)
    assert found.dtype == (out_dtype or jnp.float32)
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2**-8)


def test_numbers_vectors_and_one_scale_alone():
    a, b = narrow(M, K), narrow(K, N, seed=1)
    plain = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_array_equal(gk.matmul(a, b, scale_a=0.5), plain / 2)
    np.testing.assert_array_equal(gk.matmul(a, b, scale_b=scales(1, N)), plain * scales(1, N))
    np.testing.assert_array_equal(gk.matmul(a[0], b, scale_a=jnp.float32(2)), 2 * plain[0])
    np.testing.assert_array_equal(gk.matmul(a, b[:, 0], precision="fast"), plain[:, 0])


def test_stacks_and_vmap():
    a, b = narrow(3, M, K), narrow(K, N, seed=1)
    scale_a, scale_b = scales(3, M, 1), scales(1, N, seed=1)
    exact = np.asarray(a, np.float64) * scale_a @ (np.asarray(b, np.float64) * scale_b)
    found = gk.matmul(a, b, scale_a=scale_a, scale_b=scale_b)
    np.testing.assert_array_equal(found, exact)

    def one(a, b, x, y):
        return gk.matmul(a, b, scale_a=x, scale_b=y)

    many = jax.jit(jax.vmap(one, (0, None, 0, None)))(a, b, scale_a, scale_b)
    np.testing.assert_array_equal(many, exact)
    own = jax.vmap(one, (None, None, 0, None))(a[0], b, scale_a, scale_b)
    np.testing.assert_array_equal(
        own[2], np.asarray(a[0], np.float64) * scale_a[2] @ (np.asarray(b, np.float64) * scale_b)
    )


def test_the_shape_of_scales_is_that_for_operands_as_they_are_multiplied():
    a, b = narrow(M, K), narrow(K, N, seed=1)
    scale = scales(M, 2)
    found = gk.matmul(a.T, b, transa=True, scale_a=scale)
    np.testing.assert_array_equal(found, gk.matmul(a, b, scale_a=scale))


def test_what_is_quantized_outside_is_multiplied_inside():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((M, K)), jnp.float32)
    w = jnp.asarray(np.random.default_rng(1).standard_normal((K, N)), jnp.float32)
    (a, scale_a), (b, scale_b) = (
        gemmkit.quantize(x, scale="1x128"),
        gemmkit.quantize(w, scale="128x128"),
    )
    found = jax.jit(partial(gk.matmul, out_dtype="bfloat16"))(
        a, b, scale_a=scale_a, scale_b=scale_b
    )
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    assert np.abs(np.asarray(found, np.float64) - exact).max() < 2**-3 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a, b: gk.matmul(a, b, scale_a=scales(M)), UsageError, r"scale_a has the shape"),
        (lambda a, b: gk.matmul(a, b, scale_b=scales(N, 1)), UsageError, r"scale_b has the shape"),
        (lambda a, b: gk.matmul(a, b, scale_a=scales(3, 1, 1)), UsageError, "do not broadcast"),
        (
            lambda a, b: gk.matmul(a, b, scale_a=scales(1, 1).astype("float16")),
            UnsupportedType,
            "scales are float32",
        ),
        (lambda a, b: gk.matmul(a, b, out_dtype="int8"), UnsupportedType, "out_dtype"),
        (lambda a, b: gk.matmul(a, b, out_dtype="float64"), UsageError, "jax_enable_x64"),
        (lambda a, b: gk.matmul(a, b, precision="tf32"), UsageError, "precision"),
        (lambda a, b: gk.matmul(a, b.astype("float8_e5m2")), UnsupportedType, "b has type"),
        (
            lambda a, b: gk.matmul(a.astype("float32"), b.astype("float32"), scale_a=2.0),
            UsageError,
            "scales are for",
        ),
        (
            lambda a, b: gk.matmul(a.astype("float32"), b.astype("float32"), out_dtype="float16"),
            UsageError,
            "out_dtype is for a and b of 8 bits",
        ),
        (
            lambda a, b: jax.grad(lambda x: gk.matmul(a, b, scale_a=x).sum())(scales(1, 1)),
            UsageError,
            "no gradients",
        ),
    ],
)
def test_what_does_not_go_together(call, error, message):
    with pytest.raises(error, match=message):
        call(narrow(M, K), narrow(K, N, seed=1))


def test_a_call_on_a_gpu_has_views_of_xlas_buffers_and_its_stream(monkeypatch):
    """All but the GPU: what the product would get of the buffers, and where."""

    def give_stream(told):
        told._obj.stream = 1234

    seen = []

    def multiply(a, b, **rest):
        seen.append((a, b, {**rest, "stream": dlpack.current_stream(3)}))

    monkeypatch.setattr(target, "matmul", multiply)
    monkeypatch.setattr(registry, "gpu_of", lambda address: 3)
    buffers = [
        call_frame.Buffer(0x1000 * number, shape, dtype)
        for number, (shape, dtype) in enumerate(
            (
                ((1, M, K), "float8_e4m3fn"),
                ((2, N, K), "float8_e4m3fn"),
                ((1, 1, N), "float32"),
                ((2, M, N), "bfloat16"),
            ),
            start=1,
        )
    ]
    api = SimpleNamespace(contents=SimpleNamespace(get_stream=give_stream))
    frame = SimpleNamespace(context=None, api=api)
    texts = {"layout": "nt", "scaled": "b", "precision": "fast"}
    target._on_gpu(call_frame.Call(tuple(buffers[:3]), (buffers[3],), texts, frame))
    ((a, b, rest),) = seen
    given = {"a": a, "b": b, "scale_b": rest.pop("scale_b"), "out": rest.pop("out")}
    assert rest == {"precision": "fast", "stream": 1234}
    read = {role: library_of(each, role).read(each, role) for role, each in given.items()}
    assert {
        role: (each.address, each.view.shape, each.view.strides, each.dtype, each.device)
        for role, each in read.items()
    } == {
        "a": (0x1000, (1, M, K), (M * K, K, 1), "float8_e4m3", 3),
        "b": (0x2000, (2, K, N), (N * K, 1, K), "float8_e4m3", 3),
        "scale_b": (0x3000, (1, 1, N), (N, N, 1), "float32", 3),
        "out": (0x4000, (2, M, N), (M * N, N, 1), "bfloat16", 3),
    }


def test_results_of_8_bits():
    a, b = narrow(2, M, K), narrow(K, N, seed=1)
    product = partial(gk.matmul, out_dtype=jnp.float8_e4m3fn)
    exact = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    for scale in (0.25, jnp.full((1, 1), 0.25)):
        found = jax.jit(product)(a, b, scale_result=scale)
        assert found.dtype == jnp.float8_e4m3fn
        assert np.array_equal(found, jnp.asarray(exact / 4, jnp.float8_e4m3fn))
    mapped = jax.vmap(lambda a: product(a, b, scale_result=0.25))(a)
    assert np.array_equal(mapped, found)
    with pytest.raises(UsageError, match="one number for all products of a vmap"):
        jax.vmap(lambda s: product(a, b, scale_result=s))(jnp.ones(3))
    with pytest.raises(UsageError, match="scale_result is of results of float8_e4m3 and"):
        gk.matmul(a, b, scale_result=2.0)
    with pytest.raises(UsageError, match=r"the shape \(2,\)"):
        product(a, b, scale_result=jnp.ones(2))
    with pytest.raises(UnsupportedType, match="float8_e4m3'> is not a type"):
        gk.matmul(a, b, out_dtype=jnp.float8_e4m3)
