"""Layers on a GPU: as near to float64 as PyTorch's own, on the current stream, without waiting."""

from __future__ import annotations

import pytest

from gemmkit import nn

pytestmark = [
    pytest.mark.gpu,
    # The reference's weights need not be contiguous.
    pytest.mark.filterwarnings("ignore:RNN module weights"),
]


@pytest.fixture
def torch():
    module = pytest.importorskip("torch", reason="needs PyTorch")
    if not module.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    # They answer for attributes that they do not have, which `monkeypatch` would delete.
    settings = (module.backends.cuda.matmul, module.backends.cudnn)
    before = [each.allow_tf32 for each in settings]
    for each in settings:
        each.allow_tf32 = False
    yield module
    for each, value in zip(settings, before, strict=True):
        each.allow_tf32 = value


def layers(torch):
    """Each layer, gemmkit's and PyTorch's, with the shapes of its arrays."""
    functional = torch.nn.functional
    weights = [(512, 96), (512, 128), (512,), (512,)]
    gru_weights = [(384, 96), (384, 128), (384,), (384,)]
    rest = (True, 1, 0.0, False, False, False)

    def zeros(x):
        return x.new_zeros(1, x.shape[1], 128)

    return {
        "linear": (
            lambda *arrays: nn.linear(*arrays, activation="gelu"),
            lambda *arrays: functional.gelu(functional.linear(*arrays)),
            [(7, 130, 300), (257, 300), (257,)],
        ),
        "conv2d": (
            lambda *arrays: nn.conv2d(*arrays, padding=1, stride=2, activation="relu"),
            lambda *arrays: functional.conv2d(*arrays, padding=1, stride=2).relu(),
            [(5, 24, 33, 40), (48, 24, 3, 3), (48,)],
        ),
        "implicit conv2d": (
            lambda *arrays: nn.conv2d(*arrays, padding=1, dilation=2, groups=2, method="implicit"),
            lambda *arrays: functional.conv2d(*arrays, padding=1, dilation=2, groups=2),
            [(5, 24, 33, 40), (48, 12, 3, 3), (48,)],
        ),
        "attention": (
            lambda *arrays: nn.attention(*arrays, causal=True),
            lambda *arrays: functional.scaled_dot_product_attention(*arrays, is_causal=True),
            [(3, 5, 130, 64)] * 3,
        ),
        "lstm": (
            lambda x, *parts: nn.lstm(x, None, [parts])[0],
            lambda x, *parts: torch.lstm(x, (zeros(x), zeros(x)), list(parts), *rest)[0],
            [(20, 33, 96), *weights],
        ),
        "gru": (
            lambda x, *parts: nn.gru(x, None, [parts])[0],
            lambda x, *parts: torch.gru(x, zeros(x), list(parts), *rest)[0],
            [(20, 33, 96), *gru_weights],
        ),
    }


NAMES = ["linear", "conv2d", "implicit conv2d", "attention", "lstm", "gru"]


def tensors(torch, shapes):
    generator = torch.Generator("cuda").manual_seed(0)
    return [
        torch.randn(shape, device="cuda", generator=generator) * (1 if not place else 0.1)
        for place, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_as_near_to_float64_as_pytorchs_own(torch, name):
    ours, theirs, shapes = layers(torch)[name]
    arrays = tensors(torch, shapes)
    exact = theirs(*(array.double() for array in arrays))
    found = ours(*arrays)
    assert found.dtype == torch.float32
    assert found.is_cuda
    error, own = ((each.double() - exact).abs().max() for each in (found, theirs(*arrays)))
    assert error <= 8 * own + 2**-22 * exact.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_on_a_stream_of_its_own_and_in_a_graph(torch, name):
    ours, _, shapes = layers(torch)[name]
    arrays = tensors(torch, shapes)
    expected = ours(*arrays)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = ours(*arrays)
    stream.synchronize()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ours(*arrays)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["linear", "conv2d", "attention"])
def test_halves(torch, name, dtype):
    ours, theirs, shapes = layers(torch)[name]
    arrays = [array.to(getattr(torch, dtype)) for array in tensors(torch, shapes)]
    exact = theirs(*(array.double() for array in arrays))
    found = ours(*arrays)
    assert found.dtype == getattr(torch, dtype)
    step = 2.0 ** {"float16": -10, "bfloat16": -7}[dtype]
    assert (found.double() - exact).abs().max() <= 2 * step * exact.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_cupys_arrays(torch, name):
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    ours, _, shapes = layers(torch)[name]
    arrays = tensors(torch, shapes)
    found = ours(*(cupy.asarray(array) for array in arrays))
    assert isinstance(found, cupy.ndarray)
    torch.testing.assert_close(
        torch.as_tensor(found, device="cuda"), ours(*arrays), rtol=1e-5, atol=1e-6
    )
