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


@settings(max_examples=60)
@given(st.data())
def test_any_strides(data):
    m, n, k = (data.draw(st.integers(0, 70), label=side) for side in "mnk")
    seed = data.draw(st.integers(0, 1000), label="seed")

    def strided(rows, columns, name):
        steps = [data.draw(st.sampled_from((1, 2, 3, -1, -2)), label=name) for _ in range(2)]
        whole = whole_numbers((abs(steps[0]) * rows + 3, abs(steps[1]) * columns + 5), seed)
        view = whole[:: steps[0], :: steps[1]][:rows, :columns]
        if data.draw(st.booleans(), label=f"{name} transposed"):
            view = np.ascontiguousarray(view.T).T
        return view

    a, b, out = strided(m, k, "a"), strided(k, n, "b"), strided(m, n, "out")
    result = gemmkit.matmul(a, b, out=out, device="emulator")
    assert result is out
    np.testing.assert_array_equal(out, a @ b)
