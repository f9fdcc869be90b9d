"""`grouped_matmul` on a GPU: PyTorch's tensors, streams, threads, graphs, and NumPy's arrays."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.ops.grouped import grouped_matmul
from gemmkit.ops.tables import SLOTS

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    found.manual_seed(0)
    return found


def whole(torch, *shape):
    """Such small whole numbers that sums of their products are exact."""
    return torch.randint(-4, 5, shape, device="cuda").float()


def operands(torch, count=50, most=200):
    sizes = np.random.default_rng(count).integers(0, most, (count, 3)).tolist()
    a = [whole(torch, m, k) for m, _, k in sizes]
    b = [whole(torch, k, n) for _, n, k in sizes]
    return a, b


def same(torch, results, expected):
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        assert result.is_cuda
        assert torch.equal(result, right.float()), number


def products(a, b):
    return [x.double() @ y.double() for x, y in zip(a, b, strict=True)]


def test_products_of_any_shape(torch):
    a, b = operands(torch)
    same(torch, grouped_matmul(a, b), products(a, b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("out", [None, "float32"])
def test_products_of_other_types(torch, dtype, out):
    a, b = ([each.to(getattr(torch, dtype)) for each in side] for side in operands(torch))
    outs = None
    if out is not None:
        pairs = zip(a, b, strict=True)
        outs = [x.new_empty(len(x), y.shape[1], dtype=torch.float32) for x, y in pairs]
    results = grouped_matmul(a, b, out=outs)
    for result, right in zip(results, products(a, b), strict=True):
        assert torch.equal(result, right.to(result.dtype))


@pytest.mark.parametrize("rows", [16, 300])
def test_experts_of_a_mixture(torch, rows):
    """Rows that TMA can load. Calls take turns, so that their tables, tensor maps and all, lie at
    addresses where those of others were; and one is replayed."""
    rng = np.random.default_rng(rows)
    weights = [whole(torch, 264, 328).bfloat16() for _ in range(40)]

    def routed():
        return [whole(torch, int(m), 264).bfloat16() for m in rng.integers(0, rows, 40)]

    calls = [routed() for _ in range(3)]
    right = [products(each, weights) for each in calls]
    graph, out = torch.cuda.CUDAGraph(), [x.bfloat16() * 0 for x in right[0]]
    grouped_matmul(calls[0], weights, out=out)
    with torch.cuda.graph(graph):
        grouped_matmul(calls[0], weights, out=out)
    for number in range(4 * SLOTS):
        results = grouped_matmul(calls[number % 3], weights)
        for result, expected in zip(results, right[number % 3], strict=True):
            assert torch.equal(result, expected.bfloat16()), number
    for each in out:
        each.zero_()
    graph.replay()
    for result, expected in zip(out, right[0], strict=True):
        assert torch.equal(result, expected.bfloat16())


@pytest.mark.parametrize("side", [32, 48, 64, 100, 128, 256])
def test_a_batch_by_pointers(torch, side):
    a = [whole(torch, side, side) for _ in range(300)]
    b = [whole(torch, side, side) for _ in range(300)]
    same(torch, grouped_matmul(a, b), products(a, b))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("odd", [0, 1])
def test_layouts_are_read_in_place(torch, layout, odd):
    def matrix(rows, columns, transposed):
        return whole(torch, columns, rows).T if transposed else whole(torch, rows, columns)

    sizes = [(64 + odd, 128, 96 + odd), (8, 12, 16), (200, 4, 260)]
    a = [matrix(m, k, layout[0] == "t") for m, _, k in sizes]
    b = [matrix(k, n, layout[1] == "t") for _, n, k in sizes]
    same(torch, grouped_matmul(a, b), products(a, b))


def test_everything_at_once(torch):
    a, b = operands(torch)
    c = [whole(torch, *each.shape) for each in products(a, b)]
    residual = [whole(torch, *each.shape) for each in c]
    bias = [whole(torch, each.shape[1]) for each in b]
    auxiliary = [torch.full_like(each, torch.nan) for each in c]
    arguments = [
        2 * x - y + z for x, y, z in zip(products(a, b), [x.double() for x in c], bias, strict=True)
    ]
    results = grouped_matmul(
        *(a, b),
        out=c,
        alpha=2,
        c=c,
        beta=-1,
        epilogue=Epilogue(True, "relu"),
        bias=bias,
        residual=residual,
        auxiliary=auxiliary,
    )
    same(torch, auxiliary, arguments)
    same(torch, results, [x.relu() + y for x, y in zip(arguments, residual, strict=True)])


def test_calls_follow_one_another_without_waiting(torch):
    a, b = operands(torch, 20)
    seen = []
    for _ in range(4 * SLOTS):
        a = [each.clone() for each in a]
        seen.append((a, grouped_matmul(a, b)))
        b = [-each for each in b]
    right = products(a, b)
    for number, (_, results) in enumerate(seen):
        sign = -1 if number % 2 else 1
        same(torch, results, [sign * each for each in right])


@pytest.mark.parametrize("given", [False, True], ids=["current", "given"])
def test_a_stream_s_order_is_kept(torch, given):
    side = torch.cuda.Stream()
    a, b = operands(torch, 20, 400)
    expected = products(a, b)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = [each + 1 for each in a]
        if not given:
            results = grouped_matmul(late, b)
    if given:
        results = grouped_matmul(late, b, stream=side)
    side.synchronize()
    ones = products([torch.ones_like(each) for each in a], b)
    same(torch, results, [x + y for x, y in zip(expected, ones, strict=True)])


def test_threads_with_streams_of_their_own(torch):
    failures = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                a, b = operands(torch, 10 + seed, 100)
                for _ in range(30):
                    same(torch, grouped_matmul(a, b), products(a, b))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures


def test_a_graph_replays_it_with_other_values(torch):
    a, b = operands(torch, 20)
    out = [torch.empty(x.shape[0], y.shape[1], device="cuda") for x, y in zip(a, b, strict=True)]
    more = [torch.empty_like(each) for each in out]
    grouped_matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_matmul(a, b, out=out)
        grouped_matmul(a, b, out=more, alpha=3)
    # Other calls must not disturb what the graph reads.
    for _ in range(2 * SLOTS):
        grouped_matmul([whole(torch, 70, 70)] * 5, [whole(torch, 70, 70)] * 5)
    for each in a:
        each.copy_(whole(torch, *each.shape))
    graph.replay()
    same(torch, out, products(a, b))
    same(torch, more, [3 * each for each in products(a, b)])


def test_host_arrays_by_way_of_the_gpu():
    rng = np.random.default_rng(0)
    sizes = [(5, 7, 9), (0, 5, 6), (133, 65, 40), (64, 64, 0), (300, 200, 100)]
    a = [rng.integers(-4, 5, (m, k)).astype(np.float32) for m, _, k in sizes]
    b = [rng.integers(-4, 5, (n, k)).astype(np.float32).T for _, n, k in sizes]
    for result, x, y in zip(grouped_matmul(a, b, device="cuda"), a, b, strict=True):
        assert np.array_equal(result, x @ y)
