"""The precision of PyTorch's products: of both passes, of compiled programs and of graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

import gemmkit  # noqa: E402
import gemmkit.torch as gk  # noqa: E402
from gemmkit.errors import UnsupportedType, UsageError  # noqa: E402
from gemmkit.ops import carriers  # noqa: E402
from gemmkit.ops import precision as setting_module  # noqa: E402


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(setting_module.setting, "default", "ieee")
    monkeypatch.setattr(setting_module.setting, "touched", False)
    torch._dynamo.reset()


@pytest.fixture
def seen(monkeypatch):
    """The precisions of the problems that are computed, in order."""
    found = []
    chosen = carriers._OnEmulator.chosen

    def noted(self, problem):
        found.append(problem.precision)
        return chosen(self, problem)

    monkeypatch.setattr(carriers._OnEmulator, "chosen", noted)
    return found


def tensor(*shape, grad=False):
    values = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(0))
    return values.float().requires_grad_(grad)


A, B = tensor(6, 7), tensor(7, 5)
FUNCTIONS = {
    "matmul": gk.matmul,
    "linear": lambda a, b, **how: gk.linear(a, b.mT, None, "gelu", **how),
    "nn.linear": lambda a, b, **how: gemmkit.nn.linear(a, b.mT, activation="relu", **how),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_have_the_precision_of_the_product(function, seen):
    def run(**how):
        a, b = tensor(6, 7, grad=True), tensor(7, 5, grad=True)
        return function(a, b, **how).sum()

    run(precision="tf32").backward()
    assert seen == ["tf32"] * 3
    seen.clear()
    with gemmkit.precision("fp32"):
        result = run()
    # Another setting by now.
    gemmkit.set_precision("tf32")
    result.backward()
    assert seen == ["fp32"] * 3


def test_second_derivatives_have_it_too(seen):
    a, b = tensor(6, 7, grad=True), tensor(7, 5, grad=True)
    with gemmkit.precision("tf32"):
        result = gk.matmul(a, b)
    (grad,) = torch.autograd.grad((result * result).sum(), a, create_graph=True)
    grad.sum().backward()
    assert len(seen) > 3
    assert set(seen) == {"tf32"}


def test_products_over_stacks_have_it(seen):
    stack = tensor(3, 6, 7)
    found = torch.vmap(lambda a: gk.matmul(a, B, precision="tf32"))(stack)
    assert torch.equal(found, stack @ B)
    with gemmkit.precision("fp32"):
        torch.vmap(lambda a: gemmkit.matmul(a, B))(stack)
    assert set(seen[: len(seen) // 2]) == {"tf32"}
    assert set(seen[len(seen) // 2 :]) == {"fp32"}


PROGRAMS = {
    "matmul": gemmkit.matmul,
    "grouped": lambda a, b, **how: gemmkit.grouped_matmul([a], [b], **how)[0],
    "recorded": gk.matmul,
    "layer": lambda a, b, **how: gemmkit.nn.linear(a, b.mT, **how),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_compiled_program_follows_the_setting(program, seen):
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")

    def run(**how):
        assert torch.equal(compiled(A, B, **how), A @ B)

    run()
    with gemmkit.precision("tf32"):
        run()
        run(precision="fp32")
    run()
    gemmkit.set_precision("tf32")
    run()
    assert seen == ["ieee", "tf32", "fp32", "ieee", "tf32"]


def test_a_block_inside_of_a_compiled_program(seen):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def program(a, b):
        with gemmkit.precision("tf32"):
            lower = gemmkit.matmul(a, b)
        return lower + gemmkit.matmul(a, b)

    assert torch.equal(program(A, B), 2 * (A @ B))
    assert seen == ["tf32", "ieee"]
    assert gemmkit.get_precision() == "ieee"


def test_compiled_gradients_have_the_precision_of_the_product(seen):
    compiled = torch.compile(gk.matmul, fullgraph=True, backend="aot_eager")
    a, b = tensor(6, 7, grad=True), tensor(7, 5, grad=True)
    with gemmkit.precision("tf32"):
        result = compiled(a, b)
    result.sum().backward()
    assert seen == ["tf32"] * 3


def test_a_graph_has_what_calls_give_and_follows_the_setting_when_it_runs(seen):
    def program(a, b):
        return gemmkit.matmul(a, b, precision="fp32") + gk.matmul(a, b)

    with gemmkit.precision("tf32"):
        graph = torch.fx.symbolic_trace(program)
    assert torch.equal(graph(A, B), 2 * (A @ B))
    assert seen == ["fp32", "ieee"]


def test_under_autocast_what_becomes_of_16_bits_has_none(seen):
    with torch.autocast("cpu", torch.bfloat16), gemmkit.precision("tf32"):
        assert gk.matmul(A, B).dtype == torch.bfloat16
        assert gk.matmul(A, B, precision="fp32").dtype == torch.bfloat16
    assert seen == ["ieee", "ieee"]


@pytest.mark.parametrize("function", [gk.matmul, gemmkit.matmul])
def test_other_types_have_none(function, seen):
    a, b = A.double(), B.double()
    with gemmkit.precision("tf32"):
        assert torch.equal(function(a, b), a @ b)
    assert seen == ["ieee"]
    with pytest.raises(UsageError, match="A and B are of float64: leave it out"):
        function(a, b, precision="tf32")
    with pytest.raises(UsageError, match="A and B are of float64: leave it out"):
        torch.compile(function, backend="aot_eager")(a, b, precision="tf32")


NARROW = {
    "matmul": (gk.matmul, gk.matmul),
    "linear": (lambda a, b, **how: gk.linear(a, b.mT, **how), gk.matmul),
    "with a bias": (
        lambda a, b, **how: gk.linear(a, b.mT, torch.ones(5), "relu", **how),
        lambda a, b: (a @ b + 1).relu(),
    ),
    "gemmkit.matmul": (gemmkit.matmul, gk.matmul),
    "grouped": (PROGRAMS["grouped"], gk.matmul),
}


@pytest.mark.parametrize("function", NARROW)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_tensors_of_8_bits_may_be_fast(function, dtype, seen):
    """Eager, compiled, under autocast, and of many: with results of float32."""
    multiply, expected = NARROW[function]
    a, b = A.to(dtype), B.to(dtype)
    wanted = expected(A, B)
    compiled = torch.compile(
        lambda a, b: 2 * multiply(a, b, precision="fast"), fullgraph=True, backend="aot_eager"
    )
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        results = [multiply(a, b), multiply(a, b, precision="Fast"), compiled(a, b) / 2]
    assert seen == ["ieee", "fast", "fast"]
    for found in results:
        assert found.dtype == torch.float32
        assert torch.equal(found, wanted)
    with pytest.raises(UsageError, match=r"of float8_e.m.: use one of ieee, fast"):
        multiply(a, b, precision="tf32")


def test_operators_of_8_bits_know_the_type_of_their_results():
    a, b = (each.to(torch.float8_e4m3fn).to("meta") for each in (A, B))
    assert torch.ops.gemmkit.matmul(a, b).dtype == torch.float32
    assert torch.ops.gemmkit.linear(a, b.mT, None, "gelu", True)[1].dtype == torch.float32


def test_tensors_of_8_bits_have_no_gradients():
    a, b = A.to(torch.float8_e5m2).requires_grad_(), B.to(torch.float8_e5m2)
    with pytest.raises(UsageError, match=r"a requires a gradient, which products of torch.float8"):
        gk.matmul(a, b)
    with torch.no_grad():
        assert gk.matmul(a, b).dtype == torch.float32
    with pytest.raises(UnsupportedType, match=r"convert the bias to torch.float32"):
        gk.linear(b.mT, a.detach(), torch.ones(6).half())
