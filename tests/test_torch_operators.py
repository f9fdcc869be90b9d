"""gemmkit.torch against PyTorch: values, gradients, torch.compile, autocast and CUDA graphs.

Tensors of the CPU are computed on the emulator where there is no GPU.
"""

from __future__ import annotations

import pytest

from matmul_cases import DIFFERENTIATED, each_shape, run_snippets

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import library as operators  # noqa: E402

import gemmkit.torch as gk  # noqa: E402
from gemmkit.errors import UsageError  # noqa: E402
from gemmkit.ops.libraries import torch_linear  # noqa: E402

F = torch.nn.functional
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
# Largest slope of each, by which it may enlarge an error.
STEEPEST = 1.13
UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}
STORED = {**UNIT, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# PyTorch's own look at tensors, from 2.14 on.
NO_LEAF = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    torch.manual_seed(0)
    return request.param


def tensor(*shape, device="cpu", dtype=torch.float64, grad=True):
    return torch.randn(*shape, device=device, dtype=torch.float64).to(dtype).requires_grad_(grad)


def assert_within_bound(got, a, b, bias=None, activation="none"):
    """That `got` is activation(a @ b + bias) up to the rounding of k sums and of the result."""
    exact = [None if each is None else each.detach().double() for each in (a, b, bias)]
    a, b, bias = exact
    total, size = torch.matmul(a, b), torch.matmul(a.abs(), b.abs())
    if bias is not None:
        total, size = total + bias, size + bias.abs()
    wanted = ACTIVATIONS[activation](total)
    unit = UNIT.get(got.dtype, 2.0**-24)
    # The activations' own error functions and exponentials are good to a few units.
    slack = 0 if activation in ("none", "relu") else 16
    allowed = STEEPEST * (a.shape[-1] + 2 + slack) * unit * size + 4 * STORED[got.dtype] * size
    assert got.shape == wanted.shape
    assert ((got.detach().double() - wanted).abs() <= allowed + 1e-30).all()


@each_shape()
def test_matmul_follows_torch(left, right, device):
    a, b = tensor(*left, device=device), tensor(*right, device=device)
    product = gk.matmul(a, b)
    torch.testing.assert_close(product, torch.matmul(a, b))
    grads = torch.autograd.grad(product.cos().sum(), (a, b))
    wanted = torch.autograd.grad(torch.matmul(a, b).cos().sum(), (a, b))
    torch.testing.assert_close(grads, wanted)


@pytest.mark.parametrize("dtype", STORED)
def test_types_within_the_bound(dtype, device):
    a, b = tensor(9, 40, device=device, dtype=dtype), tensor(40, 11, device=device, dtype=dtype)
    assert_within_bound(gk.matmul(a, b), a, b)
    weight, bias = b.t().contiguous(), tensor(11, device=device, dtype=dtype)
    got = gk.linear(a, weight, bias, "gelu")
    assert got.dtype == dtype
    assert_within_bound(got, a, b, bias, "gelu")


@each_shape(*DIFFERENTIATED)
def test_gradients_of_matmul_to_the_second_order(left, right, device):
    operands = tensor(*left, device=device), tensor(*right, device=device)
    assert torch.autograd.gradcheck(gk.matmul, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(gk.matmul, operands, fast_mode=True)


def test_views_are_operands(device):
    a, b = tensor(6, 10, device=device)[::2, 1:8], tensor(5, 7, device=device).t()
    torch.testing.assert_close(gk.matmul(a, b), torch.matmul(a, b))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [(3,), (), (2, 3)])
def test_linear_follows_torch(rows, activation, device):
    x, weight = tensor(*rows, 4, device=device), tensor(5, 4, device=device)
    bias = tensor(5, device=device) if rows else None
    result = gk.linear(x, weight, bias, activation)
    wanted = ACTIVATIONS[activation](F.linear(x, weight, bias))
    torch.testing.assert_close(result, wanted)
    inputs = [each for each in (x, weight, bias) if each is not None]
    grads = torch.autograd.grad(result.cos().sum(), inputs)
    torch.testing.assert_close(grads, torch.autograd.grad(wanted.cos().sum(), inputs))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_linear_to_the_second_order(activation, device):
    operands = tensor(3, 4, device=device), tensor(5, 4, device=device), tensor(5, device=device)

    def layer(x, weight, bias):
        return gk.linear(x, weight, bias, activation)

    assert torch.autograd.gradcheck(layer, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, operands, fast_mode=True)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_without_its_argument_kept_the_operator_computes_it_again(activation, device):
    x, weight = tensor(3, 4, device=device), tensor(5, 4, device=device)
    result, argument = torch.ops.gemmkit.linear(x, weight, None, activation, False)
    assert argument.numel() == 0
    grads = torch.autograd.grad(result.cos().sum(), (x, weight))
    wanted = ACTIVATIONS[activation](F.linear(x, weight)).cos().sum()
    torch.testing.assert_close(grads, torch.autograd.grad(wanted, (x, weight)))


def test_the_argument_is_stored_for_a_gradient_alone(device, monkeypatch):
    seen = []
    real = torch_linear.matmul
    monkeypatch.setattr(
        torch_linear,
        "matmul",
        lambda *a, **k: (seen.append(k.get("auxiliary")), real(*a, **k))[1],
    )
    x, weight = tensor(3, 4, device=device), tensor(5, 4, device=device)
    gk.linear(x, weight, None, "gelu")
    gk.linear(x, weight, None, "relu")
    with torch.no_grad():
        gk.linear(x, weight, None, "gelu")
    assert [each is None for each in seen] == [False, True, True]


@NO_LEAF
@each_shape("matrices", "vector-matrix", "stacks")
def test_opcheck_of_matmul(left, right, device):
    operands = tensor(*left, device=device), tensor(*right, device=device)
    operators.opcheck(torch.ops.gemmkit.matmul, operands)
    operators.opcheck(torch.ops.gemmkit.matmul, (*operands, "ieee"))


@NO_LEAF
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_opcheck_of_linear(activation, keep, device):
    x, weight, bias = (tensor(*shape, device=device) for shape in ((2, 3, 4), (5, 4), (5,)))
    operators.opcheck(torch.ops.gemmkit.linear, (x, weight, bias, activation, keep))


# PyTorch 2.11 itself uses what it deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_whole_as_it_is_eager(autocast, activation, device):
    def network(x, weight, bias):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            hidden = gk.linear(x * 2, weight, bias, activation)
            return gk.matmul(hidden, weight).float().sin().sum()

    torch._dynamo.reset()
    # Inductor takes long to compile for a CPU, and its part is the code around the operators.
    compiled = torch.compile(
        network, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager"
    )
    operands = [
        tensor(*shape, device=device, dtype=torch.float32) for shape in ((6, 8), (5, 8), (5,))
    ]
    loss, wanted = compiled(*operands), network(*operands)
    torch.testing.assert_close(loss, wanted, rtol=1e-2 if autocast else 1e-5, atol=1e-3)
    grads = torch.autograd.grad(loss, operands)
    tolerance = 0.1 if autocast else 1e-4
    torch.testing.assert_close(
        grads, torch.autograd.grad(wanted, operands), rtol=tolerance, atol=tolerance
    )


def test_autocast_as_torch_has_it(device):
    a, b = (tensor(4, 4, device=device, dtype=torch.float32) for _ in range(2))
    with torch.autocast(device, dtype=torch.bfloat16):
        assert gk.matmul(a, b).dtype == torch.matmul(a, b).dtype == torch.bfloat16
        assert gk.linear(a, b, None, "relu").dtype == torch.bfloat16
        assert gk.matmul(a.double(), b.double()).dtype == torch.float64
        product = gk.matmul(a, b)
    product.float().sum().backward()
    assert a.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, w: gk.matmul(a, w.t().double()), "convert"),
        (lambda a, w: gk.matmul(a, w), "3 rows|has 3"),
        (lambda a, w: gk.matmul(a.int(), w.t().int()), "int32"),
        (lambda a, w: gk.matmul(a, w.t().to("meta")), "meta"),
        (lambda a, w: gk.matmul(a.numpy(), w), "not a PyTorch tensor"),
        (lambda a, w: gk.matmul(a.to("meta"), w.to("meta")), "the same number"),
        (lambda a, w: gk.matmul(a.to("meta")[0, 0], w.to("meta")), "1 dimension"),
        (
            lambda a, w: gk.matmul(a.to("meta").expand(2, 2, 4), w.to("meta").mT.expand(3, 4, 3)),
            "do not",
        ),
        (lambda a, w: gk.linear(a, w.t()), r"\(n, k\)"),
        (lambda a, w: gk.linear(a, w, a[0]), r"needs a bias of shape \(3,\)"),
        (lambda a, w: gk.linear(a, w, None, "tanh"), "unknown activation 'tanh'"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call(torch.ones(2, 4), torch.ones(3, 4))


def test_none_is_no_activation():
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    torch.testing.assert_close(gk.linear(x, weight, None, None), gk.linear(x, weight))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own use of it
def test_forward_mode_is_refused_and_not_dropped():
    a, b = torch.ones(2, 2), torch.ones(2, 2)
    with pytest.raises(UsageError, match="reverse mode"):
        torch.func.jvp(lambda x: gk.matmul(x, b), (a,), (a,))
    with pytest.raises(UsageError, match="reverse mode"):
        torch.func.jvp(lambda x: gk.linear(a, b, x), (a[0],), (a[0],))


@pytest.mark.parametrize(
    "transformed",
    [
        torch.func.grad,
        lambda function: torch.func.grad(lambda x: torch.vmap(function)(x[None]).sum()),
        lambda function: torch.vmap(torch.func.grad(function)),
        torch.func.jacrev,
    ],
)
def test_transforms_that_differentiate_are_refused(transformed):
    b, x = torch.ones(2, 2), torch.ones(2, 2)
    with pytest.raises(UsageError, match=r"a is differentiated by a transform of torch\.func"):
        transformed(lambda a: gk.matmul(a, b).sum())(x)
    with pytest.raises(UsageError, match=r"x is differentiated by a transform of torch\.func"):
        transformed(lambda a: gk.linear(a, b).sum())(x)


def test_what_a_transform_does_not_differentiate_is_multiplied():
    b = torch.arange(6.0).reshape(2, 3)
    grad = torch.func.grad(lambda x: (x * gk.matmul(b, b.mT)).sum())(torch.ones(2, 2))
    torch.testing.assert_close(grad, b @ b.mT)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_graph_replays_as_eager(dtype):
    x, weight, bias = (
        tensor(*shape, device="cuda", dtype=dtype, grad=False)
        for shape in ((200, 96), (130, 96), (130,))
    )

    def layer():
        return gk.matmul(gk.linear(x, weight, bias, "gelu"), weight)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer()
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(captured, layer())


@pytest.mark.gpu
def test_a_captured_training_step_replays_as_eager():
    x = tensor(64, 48, device="cuda", dtype=torch.float32, grad=False)
    weight, bias = (tensor(*s, device="cuda", dtype=torch.float32) for s in ((40, 48), (40,)))

    def step():
        loss = gk.linear(x, weight, bias, "silu").square().mean()
        return torch.autograd.grad(loss, (weight, bias))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(torch.randn_like(x))
    graph.replay()
    for got, wanted in zip(captured, step(), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.gpu
def test_work_is_on_the_current_stream():
    fresh, b = (tensor(512, 512, device="cuda", dtype=torch.float32, grad=False) for _ in "ab")
    a, wanted = torch.zeros_like(fresh), gk.matmul(fresh, b)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    found = []
    for stream in streams:
        with torch.cuda.stream(stream):
            mine = a.clone()
            torch.cuda._sleep(20_000_000)  # cycles: what runs on another stream is done before
            mine.copy_(fresh)
            found.append(gk.matmul(mine, b))
    torch.cuda.synchronize()
    for each in found:
        assert torch.equal(each, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 4096, 64), (515, 513, 517), (2048, 1024, 1536)])
@pytest.mark.parametrize("dtype", STORED)
def test_large_products_within_the_bound(shape, dtype):
    m, n, k = shape
    x, weight, bias = (
        tensor(*sizes, device="cuda", dtype=dtype, grad=False) for sizes in ((m, k), (n, k), (n,))
    )
    assert_within_bound(gk.matmul(x, weight.t()), x, weight.t())
    assert_within_bound(gk.linear(x, weight, bias, "silu"), x, weight.t(), bias, "silu")


def test_the_snippets_of_the_docs_run():
    run_snippets("pytorch.md")
