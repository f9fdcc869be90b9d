"""gemmkit.matmul and its kin on tensors that PyTorch watches: autograd, compilers, wrappers."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import gemmkit  # noqa: E402
import gemmkit.nn  # noqa: E402
import gemmkit.torch  # noqa: E402
from gemmkit.errors import UsageError  # noqa: E402
from gemmkit.ops.libraries import torch as library  # noqa: E402

# PyTorch's own, seen with torch.func and torch.jit.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


def whole(*shape, seed=0):
    """Numbers whose products are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).float()


A, B = whole(5, 7), whole(7, 3, seed=1)
SQUARE, OTHER = whole(3, 3, seed=2), whole(3, 3, seed=3)
WANTED = A @ B

# --- writes -------------------------------------------------------------------------------------

WRITES = {
    "out": lambda x: gemmkit.matmul(A, B, out=x),
    "a part": lambda x: gemmkit.matmul(A[:2], B, out=x[::2][:2]),
    "by columns": lambda x: gemmkit.matmul(B.T, A.T, out=x.T),
    "c": lambda x: gemmkit.gemm(A, B, x, beta=1),
    "auxiliary": lambda x: gemmkit.matmul(A, B, auxiliary=x, epilogue="relu"),
    "grouped": lambda x: gemmkit.grouped_matmul([A], [B], out=[x]),
    "grouped auxiliary": lambda x: gemmkit.grouped_matmul([A], [B], auxiliary=[x], epilogue="relu"),
    "by an operator": lambda x: gemmkit.matmul(A.as_subclass(Kept), B, out=x),
    "grouped, by an operator": lambda x: gemmkit.grouped_matmul(
        [A.as_subclass(Kept)], [B], out=[x]
    ),
}


class Kept(torch.Tensor):
    pass


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_between_forward_and_backward_is_an_error_there(write):
    x = torch.ones(5, 3, requires_grad=True)
    saved = x * 2
    loss = (saved * saved).sum()
    before = saved._version
    write(saved.detach())
    assert saved._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:], lambda x: x * 1])
def test_what_requires_a_gradient_is_written_without_recording_alone(view, write):
    leaf = torch.ones(5, 3, requires_grad=True)
    with pytest.raises(UsageError, match="requires a gradient"):
        write(view(leaf))
    assert (leaf == 1).all()
    assert leaf._version == 0
    with torch.no_grad():
        write(view(leaf))
    if view(leaf)._base is leaf or view(leaf) is leaf:
        assert leaf._version > 0


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_inference_tensors_are_written_in_their_mode_alone(write):
    with torch.inference_mode():
        x = torch.ones(5, 3)
        write(x)
        kept = x.clone()
        normal = saved = torch.ones(5, 3)
    with pytest.raises((UsageError, RuntimeError), match=r"[Ii]nference"):
        write(x)
    assert torch.equal(x, kept)
    assert torch.equal(gemmkit.matmul(x.T, A), kept.T @ A)
    normal, saved = torch.ones(5, 3), torch.ones(5, 3, requires_grad=True)
    loss = (saved * normal).sum()
    with torch.inference_mode():
        write(normal)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_refused_counts_as_no_write():
    x = torch.ones(5, 3)
    for refused in (
        lambda: gemmkit.matmul(A, B[:6], out=x),
        lambda: gemmkit.matmul(A, x.T, out=x),
        lambda: gemmkit.matmul(A, B, out=x, stream=0),
    ):
        with pytest.raises(UsageError):
            refused()
    assert x._version == 0


# --- torch.compile ------------------------------------------------------------------------------

LEAKY = gemmkit.Epilogue.custom("x > 0 ? x : slope * x", slope=0.5)
LSTM = [[whole(8, 7, seed=4) / 8, whole(8, 2, seed=5) / 8]]
GRU = [[whole(6, 7, seed=4) / 8, whole(6, 2, seed=5) / 8, whole(6) / 8, whole(6, seed=9) / 8]]


def into(a, b):
    out = torch.ones(5, 3)
    gemmkit.matmul(a, b, out=out)
    return 2 * out


def updated(a, b):
    c, kept = torch.ones(5, 3), torch.empty(5, 3)
    result = gemmkit.gemm(a, b.T, c, transb=True, beta=2, auxiliary=kept, epilogue="relu")
    return result + kept + c


def new_with_auxiliary(a, b):
    kept = torch.empty(5, 3)
    return gemmkit.matmul(a, b, auxiliary=kept, epilogue=LEAKY) + kept


def grouped(a, b):
    out = [torch.ones(5, 3), torch.ones(5, 3)]
    gemmkit.grouped_matmul([a, 2 * a], [b, b], out=out, c=out, beta=3)
    return out[0] + out[1] + gemmkit.grouped_matmul([a], [b], bias=[b[0]])[0]


PROGRAMS = {
    "matmul": lambda a, b: gemmkit.matmul(a + 1, b) + 1,
    "every term": lambda a, b: gemmkit.matmul(
        a, b, alpha=2, c=b[0], beta=-1, epilogue="bias+relu", bias=b[1], residual=a[:, :3]
    ),
    "epilogues": lambda a, b: gemmkit.matmul(
        a, b, epilogue=gemmkit.Epilogue("row", "relu", scale=2.0), bias=a[:, 0]
    ),
    "types": lambda a, b: gemmkit.matmul(a.half(), b.half(), out_dtype="float32"),
    "gemm": lambda a, b: gemmkit.gemm(a.T, b, transa=True, alpha=0.5),
    "into": into,
    "updated": updated,
    "new with auxiliary": new_with_auxiliary,
    "grouped": grouped,
    "linear": lambda a, b: gemmkit.nn.linear(a[None], b.T, b[0], activation="gelu"),
    "conv2d": lambda a, b: gemmkit.nn.conv2d(a[None, None], b[None, None], a[0, :1], padding=1),
    "conv2d, implicit": lambda a, b: gemmkit.nn.conv2d(
        a[None, None], b[None, None, :2], stride=2, method="implicit"
    ),
    "attention": lambda a, b: gemmkit.nn.attention(a, a, a[:, :3], causal=True),
    "lstm": lambda a, b: gemmkit.nn.lstm(a[:, None], None, LSTM)[0],
    "gru": lambda a, b: gemmkit.nn.gru(a[None], None, GRU, batch_first=True)[0],
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_compiled_whole_without_gradients(program):
    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A, B), program(A, B), rtol=1e-6, atol=1e-6)
    if program in (into, updated, grouped):
        # What is written stays written where the compiler keeps the same program without copies.
        plain = torch.compile(program, fullgraph=True, backend="eager")
        torch.testing.assert_close(plain(A, B), program(A, B))


def test_compiled_writes_reach_the_callers_tensor():
    torch._dynamo.reset()
    c = torch.ones(5, 3)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def program(a, b, c):
        gemmkit.gemm(a, b, c, beta=2)
        return c.sum()

    assert program(A, B, c) == (WANTED + 2).sum()
    assert torch.equal(c, WANTED + 2)


def test_compiled_for_changing_sizes_and_numbers():
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def program(a, b, alpha):
        return gemmkit.matmul(a, b, alpha=alpha)

    for rows, alpha in ((5, 1.0), (6, 2.0), (8, 0.5)):
        a = whole(rows, 7, seed=rows)
        assert torch.equal(program(a, B, alpha), alpha * (a @ B))


def test_compiled_code_of_numpys_arrays():
    torch._dynamo.reset()
    program = torch.compile(lambda a, b: 2 * gemmkit.matmul(a, b), backend="aot_eager")
    assert (program(A.numpy(), B.numpy()) == 2 * WANTED.numpy()).all()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda a, b: gemmkit.matmul(a, b[:5]), r"b of shape \(5, 3\)"),
        (lambda a, b: gemmkit.matmul(a, b.double()), "float64"),
        (lambda a, b: gemmkit.matmul(a, b, beta=1), "needs c"),
        (lambda a, b: gemmkit.matmul(a, b, bias=[1.0]), "bias has type list"),
    ],
)
def test_compiled_code_refuses_as_it_does_eagerly(program, words):
    torch._dynamo.reset()
    with pytest.raises(UsageError, match=words):
        torch.compile(program, backend="aot_eager")(A, B)


def test_compiled_code_records_no_gradient_either():
    torch._dynamo.reset()
    compiled = torch.compile(gemmkit.matmul, backend="aot_eager")
    weight = torch.nn.Parameter(B)
    with pytest.raises(UsageError, match="requires a gradient"):
        compiled(A, weight)
    with torch.no_grad():
        assert torch.equal(compiled(A, weight), WANTED)


class Layer(torch.nn.Module):
    def forward(self, a, b):
        return gemmkit.matmul(a, b) + gemmkit.nn.linear(a, b.T, activation="relu")


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict):
    program = torch.export.export(Layer(), (A, B), strict=strict).module()
    assert torch.equal(program(2 * A, B), 2 * (WANTED + WANTED.relu()))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traced_by_fx(mode):
    graph = make_fx(lambda a, b: gemmkit.matmul(a, b), tracing_mode=mode)(A, B)
    assert torch.equal(graph(2 * A, B), 2 * WANTED)


def test_traced_by_jit():
    traced = torch.jit.trace(lambda a: gemmkit.matmul(a, B, epilogue=LEAKY), A)
    assert torch.equal(traced(2 * A), gemmkit.matmul(2 * A, B, epilogue=LEAKY))


# --- derivatives forward, and torch.func --------------------------------------------------------

DUAL = {
    "matmul": lambda x: gemmkit.matmul(x, OTHER),
    "c": lambda x: gemmkit.matmul(SQUARE, OTHER, c=x, beta=1),
    "bias": lambda x: gemmkit.matmul(SQUARE, OTHER, bias=x[0]),
    "gemm": lambda x: gemmkit.gemm(OTHER, x, transb=True),
    "grouped": lambda x: gemmkit.grouped_matmul([OTHER], [x])[0],
    "linear": lambda x: gemmkit.nn.linear(x, OTHER),
    "attention": lambda x: gemmkit.nn.attention(OTHER, OTHER, x),
    "conv2d": lambda x: gemmkit.nn.conv2d(OTHER[None, None], x[None, None]),
    "recorded matmul": lambda x: gemmkit.torch.matmul(x, OTHER),
    "recorded linear": lambda x: gemmkit.torch.linear(OTHER, x, None, "gelu"),
    "operator": lambda x: torch.ops.gemmkit.matmul(x, OTHER),
    "operator of linear": lambda x: torch.ops.gemmkit.linear(x, OTHER, None, "relu", False)[0],
    "operator of all": lambda x: torch.ops.gemmkit.product(
        *(SQUARE, x, None, None, None, 1.0, 0.0, "none", [], 1.0, None, None)
    ),
}


@pytest.mark.parametrize("function", DUAL.values(), ids=DUAL)
def test_forward_mode_is_refused_everywhere(function):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(SQUARE, OTHER)
        with pytest.raises(UsageError, match="reverse mode"):
            function(dual)
    with pytest.raises(UsageError, match="reverse mode"):
        torch.func.jvp(function, (SQUARE,), (OTHER,))
    with pytest.raises(UsageError, match="reverse mode"):
        torch.func.jacfwd(function)(SQUARE)


def test_no_tangents_reach_what_is_written():
    with forward_ad.dual_level():
        out = forward_ad.make_dual(torch.zeros(3, 3), OTHER)
        with pytest.raises(UsageError, match="out carries a forward-mode tangent"):
            gemmkit.matmul(SQUARE, OTHER, out=out)
        # Tensors without a tangent are multiplied as ever.
        assert torch.equal(gemmkit.matmul(SQUARE, OTHER), SQUARE @ OTHER)
        assert torch.equal(gemmkit.torch.matmul(SQUARE, OTHER), SQUARE @ OTHER)


def test_vmap():
    many = whole(4, 3, 3, seed=6)
    vmapped = torch.vmap(lambda x: gemmkit.matmul(x, OTHER, epilogue="relu"))(many)
    assert torch.equal(vmapped, (many @ OTHER).relu())
    layer = torch.vmap(lambda x: gemmkit.nn.linear(x, OTHER, OTHER[0]))(many)
    assert torch.equal(layer, many @ OTHER.T + OTHER[0])
    with pytest.raises(UsageError, match=r"batch of torch.vmap"):
        torch.vmap(lambda x: gemmkit.gemm(x, OTHER, torch.ones(3, 3), beta=1))(many)
    steps = whole(4, 5, 1, 7, seed=7)
    states = torch.vmap(lambda x: gemmkit.nn.lstm(x, None, LSTM)[0])(steps)
    torch.testing.assert_close(states[2], gemmkit.nn.lstm(steps[2], None, LSTM)[0])


def test_torch_func_grad_is_refused():
    with pytest.raises(UsageError, match="requires a gradient"):
        torch.func.grad(lambda x: gemmkit.matmul(x, OTHER).sum())(SQUARE)


# --- tensors that stand for others, or have no memory -------------------------------------------


def test_fake_and_meta_tensors_give_shapes_alone():
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(2, 5, 7)
        found = gemmkit.matmul(fake, torch.ones(7, 3), out_dtype=torch.float64)
        assert (tuple(found.shape), found.dtype) == ((2, 5, 3), torch.float64)
        assert type(found) is type(fake)
        assert gemmkit.nn.attention(fake, fake, fake).shape == fake.shape
        assert gemmkit.grouped_matmul([fake[0]], [torch.ones(7, 1)])[0].shape == (5, 1)
        with pytest.raises(UsageError, match="the same number"):
            gemmkit.matmul(fake, torch.ones(6, 3))
    meta = torch.ones(5, 7, device="meta")
    assert gemmkit.matmul(meta, torch.ones(7, 3, device="meta")).is_meta
    with pytest.raises(UsageError, match="meta"):
        gemmkit.matmul(meta, B)
    with pytest.raises(UsageError, match="meta"):
        gemmkit.matmul(A, B, out=torch.ones(5, 3, device="meta"))


def freed():
    x = torch.ones(4, 4)
    view = x[1:, 1:]
    x.untyped_storage().resize_(0)
    return view


def shrunk():
    x = torch.ones(3, 3)
    x.untyped_storage().resize_(32)
    return x


@pytest.mark.parametrize("make", [freed, shrunk, lambda: torch._efficientzerotensor((3, 3))])
def test_tensors_without_memory_are_refused(make):
    for call in (
        lambda x: gemmkit.matmul(x, SQUARE),
        lambda x: gemmkit.matmul(SQUARE, SQUARE, residual=x),
        lambda x: gemmkit.matmul(SQUARE, SQUARE, out=x),
        lambda x: gemmkit.grouped_matmul([SQUARE], [x]),
    ):
        with pytest.raises(UsageError, match=r"has no memory to read|zeros without memory"):
            call(make())


def test_warm_calls_launch_nothing_on_memory_that_may_not_be_there():
    gone = freed()
    for matrices in ((gone, SQUARE, None), (SQUARE, gone, None), (SQUARE, OTHER, gone)):
        with pytest.raises(RuntimeError, match="no memory"):
            library.glance_at_matrices(*matrices)
    with pytest.raises(RuntimeError, match="no memory"):
        library.glance(freed())
    assert library.glance(torch.empty(0, 3))[0] == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: x.to_sparse(), "sparse_coo"),
        (lambda x: x.to_mkldnn(), "mkldnn"),
        (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "a nested tensor"),
        (lambda x: torch.nested.nested_tensor([x, x], layout=torch.strided), "a nested tensor"),
        (lambda x: torch.complex(x, x).conj(), "complex64"),
        (lambda x: x.int(), "int32"),
        (lambda x: x.bool(), "bool"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse")
def test_kinds_of_tensors_that_are_refused_are_type_errors(make, words):
    with pytest.raises(TypeError, match=words) as caught:
        gemmkit.matmul(make(SQUARE), SQUARE)
    assert isinstance(caught.value, UsageError)


def test_subclasses_are_kept_as_torch_has_it():
    found = gemmkit.matmul(SQUARE.as_subclass(Kept), OTHER)
    assert type(found) is type(torch.matmul(SQUARE.as_subclass(Kept), OTHER)) is Kept
    assert torch.equal(found.as_subclass(torch.Tensor), SQUARE @ OTHER)
    parameter = torch.nn.Parameter(SQUARE, requires_grad=False)
    assert type(gemmkit.matmul(parameter, OTHER)) is torch.Tensor


def test_unaligned_tensors_of_the_cpu_are_copied():
    raw = bytearray(4 * 9 + 1)
    odd = torch.frombuffer(raw, dtype=torch.float32, offset=1).reshape(3, 3)
    assert odd.data_ptr() % 4
    gemmkit.matmul(SQUARE, OTHER, out=odd)
    assert odd.tolist() == (SQUARE @ OTHER).tolist()
    assert torch.equal(gemmkit.matmul(odd, OTHER), SQUARE @ OTHER @ OTHER)
    gemmkit.grouped_matmul([odd.clone()], [OTHER], out=[odd])
    assert odd.tolist() == (SQUARE @ OTHER @ OTHER).tolist()


def spread(x):
    """A tensor that is spread over a group of one process."""
    distributed = pytest.importorskip("torch.distributed.tensor")
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    return distributed.distribute_tensor(x, mesh, [distributed.Shard(0)])


@pytest.fixture
def process_group():
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


ENTRIES = {
    "matmul": lambda x: gemmkit.matmul(SQUARE, x),
    "out": lambda x: gemmkit.matmul(SQUARE, SQUARE, out=x),
    "grouped": lambda x: gemmkit.grouped_matmul([SQUARE], [x]),
    "recorded matmul": lambda x: gemmkit.torch.matmul(x, SQUARE),
    "recorded linear": lambda x: gemmkit.torch.linear(SQUARE, x),
}


@pytest.mark.parametrize("call", ENTRIES.values(), ids=ENTRIES)
def test_tensors_that_are_spread_over_processes_are_refused(process_group, call):
    with pytest.raises(UsageError, match=r"has type DTensor, spread over processes: .* to_local"):
        call(spread(SQUARE))
    assert torch.equal(gemmkit.matmul(spread(SQUARE).to_local(), OTHER), SQUARE @ OTHER)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", ENTRIES.values(), ids=ENTRIES)
def test_quantized_tensors_are_refused(call):
    quantized = torch.quantize_per_tensor(SQUARE, 1.0, 0, torch.qint8)
    with pytest.raises(UsageError, match=r"is quantized to torch.qint8: .* dequantize"):
        call(quantized)
    assert torch.equal(gemmkit.matmul(quantized.dequantize(), OTHER), SQUARE @ OTHER)


# --- torch.fx -----------------------------------------------------------------------------------


# To torch.fx, tensors that a program makes are constants, written by each run of the graph.
WITHOUT_OWN_TENSORS = [name for name in PROGRAMS if name not in ("into", "updated", "grouped")]


@pytest.mark.parametrize("name", WITHOUT_OWN_TENSORS)
def test_traced_symbolically(name):
    program = PROGRAMS[name]
    graph = torch.fx.symbolic_trace(program)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    kept = pickle.loads(pickle.dumps(graph))
    for each in (graph, kept):
        torch.testing.assert_close(each(A, B), program(A, B), rtol=1e-6, atol=1e-6)


def test_writes_stay_in_a_graph_that_does_not_use_what_they_return():
    def program(a, b, out, c, kept, many):
        gemmkit.matmul(a, b, out=out)
        gemmkit.gemm(a, b, c, beta=2)
        gemmkit.matmul(a, b, auxiliary=kept, epilogue="relu")
        gemmkit.grouped_matmul([a], [b], out=[many])
        return out + 1

    graph = torch.fx.symbolic_trace(program)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    out, c, kept, many = (torch.ones(5, 3) for _ in range(4))
    assert torch.equal(graph(A, B, out, c, kept, many), WANTED + 1)
    assert torch.equal(c, WANTED + 2)
    assert torch.equal(kept, WANTED)
    assert torch.equal(many, WANTED)


def test_symbols_of_every_argument():
    def program(b, alpha, bias, residual):
        x = gemmkit.matmul(A, b, alpha=alpha, bias=bias, residual=residual, epilogue=LEAKY)
        return x + gemmkit.torch.linear(A, b.T, None, "gelu") + gemmkit.torch.matmul(A, b)

    graph = torch.fx.symbolic_trace(program)
    wanted = program(B, 2.0, B[0], WANTED)
    assert torch.equal(graph(B, 2.0, B[0], WANTED), wanted)
    compiled = torch.compile(graph, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(B, 2.0, B[0], WANTED), wanted)


def test_what_is_traced_is_checked_when_it_runs():
    graph = torch.fx.symbolic_trace(lambda a, b: gemmkit.gemm(a, b, transb=True))
    with pytest.raises(UsageError, match="the same number"):
        graph(A, B)


@pytest.mark.parametrize("scale", [0.25, torch.tensor([0.25])], ids=["number", "tensor"])
def test_results_of_8_bits_compiled_whole(scale):
    torch._dynamo.reset()
    kind = torch.float8_e4m3fn

    def program(a, b, scale):
        return gemmkit.matmul(a, b.T, out_dtype=kind, epilogue="relu", scale_result=scale)

    a, b = A.to(kind), B.T.contiguous().to(kind)
    right = (WANTED.relu() / 4).to(kind).view(torch.uint8)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    for each in (compiled, program):
        found = each(a, b, scale)
        assert found.dtype == kind
        assert torch.equal(found.view(torch.uint8), right)
