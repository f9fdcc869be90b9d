"""`matmul` of NumPy arrays on the emulator: NumPy's results, exactly, for small integers."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import gemmkit


def whole_numbers(shape, seed=0, low=-4, high=5):
    """Numbers whose products and sums are exact in fp32."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 7), (7, 3)),
        ((7,), (7, 3)),
        ((5, 7), (7,)),
        ((7,), (7,)),
        ((4, 5, 7), (7, 3)),
        ((4, 5, 7), (4, 7, 3)),
        ((2, 1, 5, 7), (3, 7, 3)),
        ((8, 1, 5, 7), (1, 12, 7, 3)),
        ((5, 0), (0, 3)),
        ((0, 7), (7, 3)),
        ((2, 0, 5, 7), (7, 3)),
        ((3, 5, 7), (7,)),
        ((33, 70), (70, 65)),
    ],
)
def test_shapes_follow_numpy(a, b):
    x, y = whole_numbers(a), whole_numbers(b, seed=1)
    result = gemmkit.matmul(x, y, device="emulator")
    assert type(result) is type(x @ y)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, x @ y)


STEPS = (1, 1, 2, 3, -1, -2)


def strided(data, shape, steps, name):
    """A view of that shape; its strides, and the order of its dimensions in memory, are drawn."""
    order = data.draw(st.permutations(range(len(shape))), label=f"{name}'s order in memory")
    drawn = [data.draw(st.sampled_from(steps), label=f"{name}'s step") for _ in shape]
    sizes = [abs(step) * size + 2 for step, size in zip(drawn, shape, strict=True)]
    values = whole_numbers([sizes[axis] for axis in order], seed=len(name))
    values = values.transpose(np.argsort(order))
    for axis, (step, size) in enumerate(zip(drawn, shape, strict=True)):
        before = (slice(None),) * axis
        values = values[(*before, slice(0, 1) if step == 0 else slice(None, None, step))]
        values = values[(*before, slice(0, size))]
    return np.broadcast_to(values, shape) if 0 in drawn else values


@settings(max_examples=90)
@given(st.data())
def test_any_shapes_and_strides(data):
    m, n, k = (data.draw(st.integers(0, 70), label=side) for side in "mnk")
    stack = data.draw(st.lists(st.integers(0, 3), max_size=2), label="stack")

    def shape(rows, columns, name):
        if data.draw(st.integers(0, 4), label=f"{name} is a vector") == 0:
            return (k,)
        ones = [data.draw(st.booleans(), label=f"{name} broadcasts") for _ in stack]
        own = [1 if one else size for one, size in zip(ones, stack, strict=True)]
        return (*own[data.draw(st.integers(0, len(own)), label="leaves out") :], rows, columns)

    a = strided(data, shape(m, k, "a"), (*STEPS, 0), "a")
    b = strided(data, shape(k, n, "b"), (*STEPS, 0), "bb")
    wanted = a @ b
    result = gemmkit.matmul(a, b, device="emulator")
    assert type(result) is type(wanted)
    np.testing.assert_array_equal(result, wanted)
    out = strided(data, wanted.shape, STEPS, "out")
    before = out.copy()
    assert gemmkit.matmul(a, b, out=out, c=out, beta=2, device="emulator") is out
    np.testing.assert_array_equal(out, wanted + 2 * before)


def test_large_tiles_give_the_same_products(monkeypatch):
    monkeypatch.setattr("gemmkit.dispatch.prices.COMPILED_MULTIPLY_ADD_US", -1.0)
    # Sizes that no other test has: choices are kept.
    a, b = whole_numbers((131, 23)), whole_numbers((23, 259), seed=1)
    result = gemmkit.matmul(a, b, bias=b[0], epilogue="bias+relu", device="emulator")
    np.testing.assert_array_equal(result, np.maximum(a @ b + b[0], 0))
