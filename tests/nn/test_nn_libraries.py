"""Layers on PyTorch's and JAX's arrays: the same numbers, and arrays of the same kind."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from bounded import normal

from gemmkit import nn
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.nn.namespace import namespace

LSTM = ((32, 12), (32, 8), (32,), (32,))
GRU = ((24, 12), (24, 8), (24,), (24,))


def weights(shapes):
    return [0.3 * normal(*shape, seed=number) for number, shape in enumerate(shapes)]


# Layers with their arrays and options; each kind of arithmetic once.
CASES = {
    "linear": (nn.linear, [normal(33, 20), normal(40, 20), normal(40)], {}),
    "conv2d": (
        nn.conv2d,
        [normal(2, 3, 9, 11), normal(4, 3, 3, 3), normal(4)],
        {"padding": 1, "stride": 2},
    ),
    "implicit conv2d": (
        nn.conv2d,
        [normal(2, 4, 9, 11), normal(4, 2, 3, 3), normal(4)],
        {"padding": 1, "stride": 2, "groups": 2, "method": "implicit"},
    ),
    "attention": (
        nn.attention,
        [normal(2, 17, 8), normal(2, 21, 8), normal(2, 21, 12)],
        {"causal": True},
    ),
    "lstm": (lambda x, *rest, **where: nn.lstm(x, None, [rest], **where), [normal(3, 5, 12)], {}),
    "gru": (lambda x, *rest, **where: nn.gru(x, None, [rest], **where), [normal(3, 5, 12)], {}),
}
CASES["lstm"][1].extend(weights(LSTM))
CASES["gru"][1].extend(weights(GRU))


def flat(result):
    """The arrays of a result, whatever it is made of."""
    if isinstance(result, tuple):
        return [array for part in result for array in flat(part)]
    return [result]


def same(name, arrays, kind):
    """See that a layer gives for other arrays what it gives for NumPy's, and arrays of a kind."""
    layer, given, options = CASES[name]
    found = flat(layer(*arrays, **options, device="emulator"))
    expected = flat(layer(*given, **options, device="emulator"))
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, kind)
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_pytorch(name):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    same(name, [torch.from_numpy(array) for array in CASES[name][1]], torch.Tensor)


@pytest.mark.parametrize("name", CASES)
def test_jax(name):
    jax = pytest.importorskip("jax", reason="needs JAX")
    # Where there is a GPU, JAX puts arrays there by itself.
    cpu = jax.devices("cpu")[0]
    same(name, [jax.device_put(array, cpu) for array in CASES[name][1]], jax.Array)


# Arrays that are not on JAX's default device, as those of the CPU are where there is a GPU.
ELSEWHERE = """
import jax, numpy as np
from gemmkit import nn
from gemmkit.nn.namespace import namespace

place = jax.devices("cpu")[1]
x, *parts = (jax.device_put(np.ones(shape, np.float32), place)
             for shape in [(3, 5, 12), (32, 12), (32, 8), (32,), (32,)])
assert namespace(x).zeros((2, 3), x).devices() == {place}
assert namespace(x).steps(4, x).devices() == {place}
out, state = nn.lstm(x, None, [parts], device="emulator")
assert all(each.devices() == {place} for each in (out, *state)), state
seen = nn.attention(x, x, x, causal=True, device="emulator")
assert seen.devices() == {place}
print("all there")
"""


def test_results_are_on_the_device_of_jaxs_arrays():
    pytest.importorskip("jax", reason="needs JAX")
    told = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], env=told, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "all there\n"), done.stderr


def test_masks_of_pytorch():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    q, k, v = (torch.from_numpy(array) for array in CASES["attention"][1])
    seen = torch.rand(17, 21) < 0.5
    seen[3] = False
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    found = nn.attention(q, k, v, mask=seen, device="emulator")
    expected[:, 3] = 0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


class Strange:
    __module__ = "numba.cuda"
    shape = (1, 2, 3, 4)


def test_a_library_without_arithmetic_is_refused():
    with pytest.raises(UsageError, match=r"gemmkit knows none for numba\.cuda\.Strange"):
        nn.conv2d(Strange(), normal(4, 2, 1, 1))


@pytest.mark.parametrize("name", CASES)
def test_two_libraries_in_one_layer(name):
    """Gates take what the products return; elsewhere a result would be of one or the other."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    first, *others = CASES[name][1]
    arrays = [first, *map(torch.from_numpy, others)]
    if name in ("linear", "lstm", "gru"):
        same(name, arrays, np.ndarray)
    else:
        with pytest.raises(UsageError, match=r"is an array of numpy and .* one of torch"):
            CASES[name][0](*arrays, **CASES[name][2], device="emulator")


class Own(np.ndarray):
    """A class of a user's own."""


def test_a_class_of_ones_own_has_the_arithmetic_of_what_it_is_derived_from():
    xp = namespace(np.zeros(3).view(Own))
    np.testing.assert_array_equal(xp.softmax(np.zeros((1, 4))), np.full((1, 4), 0.25))


def test_softmax_and_sigmoid_of_extremes():
    xp = namespace(np.zeros(1))
    scores = np.array([[-np.inf, -np.inf], [1e38, -1e38], [-np.inf, 5]], np.float32)
    np.testing.assert_array_equal(xp.softmax(scores, masked=True), [[0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(xp.sigmoid(np.float32([-200, 0, 200])), [0, 0.5, 1])


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_pytorchs_own_layers(name):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    functional = torch.nn.functional
    zeros = torch.zeros(1, 5, 8, dtype=torch.float64)
    rest = (True, 1, 0.0, False, False, False)
    theirs = {
        "linear": functional.linear,
        "conv2d": lambda *arrays: functional.conv2d(*arrays, padding=1, stride=2),
        "implicit conv2d": lambda *arrays: functional.conv2d(
            *arrays, padding=1, stride=2, groups=2
        ),
        "attention": lambda *arrays: functional.scaled_dot_product_attention(
            *arrays, is_causal=True
        ),
        "lstm": lambda x, *weights: torch.lstm(x, (zeros, zeros), list(weights), *rest)[0],
        "gru": lambda x, *weights: torch.gru(x, zeros, list(weights), *rest)[0],
    }[name]
    layer, given, options = CASES[name]

    def gradients(compute):
        arrays = [torch.from_numpy(each).double().requires_grad_() for each in given]
        flat(compute(*arrays))[0].square().sum().backward()
        return [array.grad for array in arrays]

    found = gradients(lambda *arrays: layer(*arrays, **options, device="emulator"))
    for one, other in zip(found, gradients(theirs), strict=True):
        torch.testing.assert_close(one, other)


def test_the_derivative_of_an_activation_of_ones_own_is_not_known():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    own = Epilogue.custom("x * x").activation
    weight = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(UsageError, match="derivative of custom"):
        nn.linear(torch.ones(2, 3), weight, activation=own)
    with pytest.raises(UsageError, match="leave stream out"):
        nn.linear(torch.ones(2, 3), weight, stream=0)
