"""Prepared operands in JAX programs: values, transformations, and what programs hold of them."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402

import gemmkit  # noqa: E402
import gemmkit.jax as gk  # noqa: E402
from gemmkit.errors import UnsupportedType, UsageError  # noqa: E402
from gemmkit.jax import target  # noqa: E402


def normal(*shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype))


@pytest.fixture(scope="module")
def weight():
    b = normal(70, 9)
    return b, gemmkit.prepare(b, precision="fp32")


def by_prepared(w):
    return lambda a: gk.matmul(a, w)


def plain(b):
    return lambda a: gk.matmul(a, b, precision="fp32")


@pytest.mark.parametrize("shape", [(70,), (5, 70), (2, 3, 70), (0, 70)])
def test_values_with_and_without_jit(weight, shape):
    b, w = weight
    a = normal(*shape)
    for function in (by_prepared(w), jax.jit(by_prepared(w))):
        found, wanted = function(a), plain(b)(a)
        assert found.shape == wanted.shape
        assert np.array_equal(found, wanted)


def test_gradients_batches_and_tangents(weight):
    b, w = weight
    a = normal(3, 5, 70)

    def loss(function):
        return jax.jit(jax.grad(lambda a: (function(a) ** 2).sum()))

    assert np.array_equal(loss(by_prepared(w))(a), loss(plain(b))(a))
    for axis in (0, 1):
        mapped = (jax.vmap(each, in_axes=axis)(a) for each in (by_prepared(w), plain(b)))
        assert np.array_equal(*mapped)
    tangents = (jax.jvp(each, (a,), (2 * a,))[1] for each in (by_prepared(w), plain(b)))
    assert np.array_equal(*tangents)


def test_a_program_holds_the_operand_and_no_copy_of_it(weight, monkeypatch):
    b, _ = weight
    w = gemmkit.prepare(b, precision="fp32")
    text = jax.jit(by_prepared(w)).lower(normal(5, 70)).as_text()
    assert f'key = "{w.key}"' in text
    assert "70x9" not in text
    seen = []
    monkeypatch.setattr(
        target, "matmul", lambda a, b, **rest: seen.append(b) or gemmkit.matmul(a, b, **rest)
    )
    function, a = jax.jit(by_prepared(w)), normal(5, 70)
    wanted, key = function(a), w.key
    del w
    assert np.array_equal(function(a), wanted)
    assert [each.key for each in seen] == [key, key]


def test_what_does_not_go_together_is_refused(weight):
    b, w = weight
    with pytest.raises(UsageError, match="transa and transb are for arrays"):
        gk.matmul(normal(70, 5), w, transa=True)
    with pytest.raises(UsageError, match="b was prepared for precision 'fp32'"):
        gk.matmul(normal(5, 70), w, precision="tf32")
    with pytest.raises(UnsupportedType, match="a has type float16"):
        gk.matmul(normal(5, 70, dtype=np.float16), w)
    with pytest.raises(UsageError, match="0 dimensions"):
        gk.matmul(jnp.float32(1), w)
    with pytest.raises(UnsupportedType, match="prepare an array of JAX's"):
        gk.matmul(normal(5, 70), gemmkit.prepare(np.asarray(b)))
    with pytest.raises(UsageError, match="number of both"):
        gk.matmul(normal(5, 71), w)
