"""Prepared weights in PyTorch: gradients, the module, and models whose layers are switched over."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

import gemmkit  # noqa: E402
import gemmkit.torch as gk  # noqa: E402
from gemmkit import nn  # noqa: E402
from gemmkit.errors import UnsupportedType, UsageError  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    torch.manual_seed(0)
    return request.param


def gradients(function, *tensors):
    """The result of a function, and the gradients of its weighted sum."""
    result = function()
    weights = torch.arange(result.numel(), device=result.device).reshape(result.shape) % 7 - 3.0
    return result, torch.autograd.grad((result * weights).sum(), tensors)


def test_gradients_of_the_product(device):
    b = torch.randn(17, 9, device=device)
    w = gemmkit.prepare(b, precision="fp32")
    for shape in ((5, 17), (17,), (2, 3, 17)):
        a = torch.randn(*shape, device=device, requires_grad=True)
        found, (grad,) = gradients(lambda a=a: gk.matmul(a, w), a)
        wanted, (right,) = gradients(lambda a=a: gk.matmul(a, b, precision="fp32"), a)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(grad, right)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_gradients_of_the_layer(device, activation):
    weight = torch.randn(9, 17, device=device)
    x = torch.randn(5, 17, device=device, requires_grad=True)
    bias = torch.randn(9, device=device, requires_grad=True)
    w = gemmkit.prepare(weight, transpose=True, precision="fp32")
    found, grads = gradients(lambda: gk.linear(x, w, bias, activation), x, bias)
    wanted, right = gradients(
        lambda: gk.linear(x, weight, bias, activation, precision="fp32"), x, bias
    )
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grads, right)
    # Without gradients, and by gemmkit.nn with them.
    torch.testing.assert_close(gk.linear(x.detach(), w, bias.detach(), activation), wanted)
    torch.testing.assert_close(nn.linear(x, w, bias, activation=activation), wanted)


def test_a_weight_that_requires_a_gradient_is_no_constant(device):
    weight = torch.randn(9, 17, device=device, requires_grad=True)
    with pytest.raises(UsageError, match="requires a gradient"):
        gemmkit.prepare(weight.t())
    with torch.no_grad():
        assert gemmkit.prepare(weight.t()).shape == (17, 9)


def test_a_weight_as_it_is_does_not_serve_a_layer(device):
    w = gemmkit.prepare(torch.randn(9, 17, device=device))
    with pytest.raises(UsageError, match="prepare it with transpose=True"):
        gk.linear(torch.randn(5, 17, device=device), w)
    with pytest.raises(UnsupportedType, match="not a PyTorch tensor"):
        gk.matmul(torch.randn(5, 9).numpy(), w)


def model_of(device):
    shared = torch.nn.Linear(8, 8)
    layers = [torch.nn.Linear(16, 8), torch.nn.ReLU(), shared, shared, torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers, torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False))).to(
        device
    )


def test_a_model_is_switched_over(device):
    model = model_of(device)
    x = torch.randn(4, 16, device=device)
    wanted, state = model(x), model.state_dict()
    assert gk.prepare_linears(model, precision="fp32") is model
    kinds = [type(each) for each in model.modules()]
    assert torch.nn.Linear not in kinds
    assert model[2] is model[3]
    assert "in_features=3, out_features=2, bias=False, precision='fp32'" in repr(model)
    assert model.state_dict().keys() == state.keys()
    model.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(model(x), wanted)
    with torch.inference_mode():
        torch.testing.assert_close(model(x), wanted)
    again = copy.deepcopy(model)
    assert again[0]._prepared is None
    with torch.no_grad():
        torch.testing.assert_close(again(x), wanted)
    alone = gk.prepare_linears(torch.nn.Linear(3, 2))
    assert isinstance(alone, gk.PreparedLinear)
    with pytest.raises(UnsupportedType, match="not of a ReLU"):
        gk.PreparedLinear(torch.nn.ReLU())


def test_a_changed_weight_is_prepared_anew(device):
    layer = gk.PreparedLinear(torch.nn.Linear(16, 8).to(device), activation="relu")
    x = torch.randn(4, 16, device=device)

    def right():
        return torch.relu(torch.nn.functional.linear(x, layer.weight, layer.bias))

    with torch.no_grad():
        first = layer.prepared()
        assert layer.prepared() is first
        torch.testing.assert_close(layer(x), right())
        layer.weight.mul_(3)
        assert layer.prepared() is first
        torch.testing.assert_close(layer(x), right())
        layer.weight = torch.nn.Parameter(torch.randn(8, 16, device=device))
        assert layer.prepared() is not first
        torch.testing.assert_close(layer(x), right())
        with gemmkit.precision("tf32"):
            assert layer.prepared().precision == "tf32"


def test_training_goes_on(device):
    layer = gk.PreparedLinear(torch.nn.Linear(16, 8).to(device))
    x = torch.randn(4, 16, device=device)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(8, 16))
    layer.requires_grad_(False)
    x.requires_grad_()
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, 16))


@pytest.mark.gpu
def test_on_a_gpu_nothing_but_x_is_converted():
    """Stale elements tell that the prepared ones are multiplied; Hopper multiplies so."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    x = torch.randn(512, 1024, device="cuda")
    weight = torch.randn(1536, 1024, device="cuda")
    w = gemmkit.prepare(weight, transpose=True, precision="fp32")
    assert w.nbytes > 4 * weight.numel()
    result = gk.linear(x, w)
    exact = x.double() @ weight.double().mT
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gk.linear(x, w)
    graph.replay()
    assert torch.equal(captured, result)
    weight.mul_(2)
    assert torch.equal(gk.linear(x, w), result)
    w.refresh()
    graph.replay()
    assert torch.equal(captured, 2 * result)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        other = gk.linear(x, w)
    torch.cuda.synchronize()
    assert torch.equal(other, 2 * result)


# --- torch.compile ------------------------------------------------------------------------------


@pytest.fixture
def multiplied(monkeypatch):
    """The types of what operators multiply by; without a compiler, a test is skipped."""
    pytest.importorskip("sympy", reason="torch.compile needs it")
    from gemmkit.ops.libraries import torch_linear, torch_prepared

    seen = []
    for module in (torch_linear, torch_prepared):

        def noted(a, b, own=module.matmul, **options):
            seen.append(type(b).__name__)
            return own(a, b, **options)

        monkeypatch.setattr(module, "matmul", noted)
    return seen


def compiled(function):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_a_compiled_product_multiplies_what_was_prepared(device, multiplied):
    b = torch.randn(17, 9, device=device)
    w = gemmkit.prepare(b, precision="fp32")
    function = compiled(lambda a: gk.matmul(a, w) * 2)
    a = torch.randn(5, 17, device=device, requires_grad=True)
    found, (grad,) = gradients(lambda: function(a), a)
    wanted, (right,) = gradients(lambda: gk.matmul(a, b, precision="fp32") * 2, a)
    assert multiplied == ["PreparedOperand"]
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grad, right)


def test_a_compiled_layer_follows_its_weight(device, multiplied):
    plain = torch.nn.Linear(17, 9, device=device)
    layer = gk.PreparedLinear(plain, activation="gelu", precision="fp32")
    function = compiled(layer)
    x = torch.randn(5, 17, device=device, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(function(x), torch.nn.functional.gelu(plain(x)))
            plain.weight.mul_(2)
    assert multiplied == ["PreparedOperand"] * 2
    # Where a gradient to the weight is recorded, it is multiplied as it is.
    function(x).sum().backward()
    assert multiplied[2:] == ["Tensor"]
    assert plain.weight.grad is not None
    layer.requires_grad_(False)
    found, (grad,) = gradients(lambda: function(x), x)
    wanted, (right,) = gradients(lambda: torch.nn.functional.gelu(plain(x)), x)
    assert multiplied[3:] == ["PreparedOperand"]
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grad, right)


def test_an_operand_that_is_gone_is_multiplied_as_it_was(device, multiplied):
    b, other = torch.randn(17, 9, device=device), torch.randn(17, 9, device=device)
    w, a = gemmkit.prepare(b, precision="fp32"), torch.randn(5, 17, device=device)
    operator = torch.ops.gemmkit.prepared_matmul
    operator(a, b, w.key, "fp32")
    # Another's memory, another precision, or no such operand any more.
    operator(a, other, w.key, "fp32")
    operator(a, b, w.key, "ieee")
    key = w.key
    del w
    torch.testing.assert_close(operator(a, b, key, "fp32"), a @ b)
    assert multiplied == ["PreparedOperand", "Tensor", "Tensor", "Tensor"]


def test_copies_of_a_layer_prepare_their_own(device):
    layer = gk.PreparedLinear(torch.nn.Linear(17, 9, device=device))
    other = copy.deepcopy(layer)
    assert other._key not in ("", layer._key)
