"""Products of PyTorch's and CuPy's arrays on a GPU: results, streams, threads, graphs."""

import threading

import numpy as np
import pytest

import gemmkit
from gemmkit.errors import UsageError

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    return torch


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def whole_numbers(torch, *shape, seed=0, dtype="float32"):
    """Numbers whose products and sums are exact in fp32, and in halves for few of them."""
    values = np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)
    return torch.from_numpy(values).to(device="cuda", dtype=getattr(torch, dtype))


def reference(a, b):
    return (a.double() @ b.double()).to(a.dtype)


@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 65, 17), (256, 256, 256), (1000, 10, 2049)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts_are_exact(torch, shape, layout):
    m, n, k = shape
    a = whole_numbers(torch, m, k) if layout[0] == "n" else whole_numbers(torch, k, m).T
    b = whole_numbers(torch, k, n, seed=1) if layout[1] == "n" else whole_numbers(torch, n, k).T
    assert torch.equal(gemmkit.matmul(a, b), reference(a, b))
    assert torch.equal(gemmkit.matmul(a, b), reference(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_types(torch, dtype):
    a = whole_numbers(torch, 70, 40, dtype=dtype)
    b = whole_numbers(torch, 40, 50, seed=1, dtype=dtype)
    result = gemmkit.matmul(a, b)
    assert result.dtype == a.dtype
    assert torch.equal(result, reference(a, b))


def test_views_stacks_and_outputs(torch):
    whole = whole_numbers(torch, 6, 80, 80)
    a, b = whole[:, :50, 3:43], whole_numbers(torch, 40, 30, seed=1)
    assert torch.equal(gemmkit.matmul(a, b), reference(a, b.expand(6, 40, 30)))
    out = torch.full((6, 30, 50), float("nan"), device="cuda")
    assert gemmkit.matmul(a, b, out=out.mT) is not None
    assert torch.equal(out.mT, reference(a, b.expand(6, 40, 30)))
    sparse = whole[0, ::2, ::3]
    assert torch.equal(gemmkit.matmul(sparse, sparse.T), reference(sparse, sparse.T))


def test_terms(torch):
    a, b, c = (whole_numbers(torch, 64, 64, seed=seed) for seed in range(3))
    bias = whole_numbers(torch, 64, seed=3)
    result = gemmkit.matmul(a, b, alpha=2, c=c, beta=-1, bias=bias, epilogue="bias+relu")
    wanted = torch.relu(2 * reference(a, b) - c + bias)
    assert torch.equal(result, wanted)
    before = c.clone()
    assert gemmkit.gemm(a, b, c, beta=1) is c
    assert torch.equal(c, reference(a, b) + before)


def test_nothing_is_waited_for(torch):
    a = whole_numbers(torch, 128, 128)
    gemmkit.matmul(a, a)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    gemmkit.matmul(a, a)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_a_stream_of_the_callers_own(torch):
    a, b = whole_numbers(torch, 300, 200), whole_numbers(torch, 200, 100, seed=1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        inside = gemmkit.matmul(a, b)
    given = gemmkit.matmul(a, b, stream=stream)
    by_handle = gemmkit.matmul(a, b, stream=stream.cuda_stream)
    stream.synchronize()
    for result in (inside, given, by_handle):
        assert torch.equal(result, reference(a, b))


def test_scratch_of_streams_that_overlap(torch):
    """Long k is shared by blocks, whose sums meet in memory that no two streams may share."""
    pairs = [
        (whole_numbers(torch, 64, 8192, seed=seed), whole_numbers(torch, 8192, 64, seed=seed + 9))
        for seed in range(4)
    ]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in pairs]
    results = [[] for _ in pairs]
    for _ in range(25):
        for (a, b), stream, found in zip(pairs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(gemmkit.matmul(a, b))
    torch.cuda.synchronize()
    for (a, b), found in zip(pairs, results, strict=True):
        wanted = reference(a, b)
        assert all(torch.equal(each, wanted) for each in found)


def test_threads_at_once(torch):
    failures = []

    def work(seed):
        a = whole_numbers(torch, 96, 512, seed=seed)
        b = whole_numbers(torch, 512, 64 + seed, seed=seed)
        wanted = reference(a, b)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            results = [gemmkit.matmul(a, b) for _ in range(50)]
            failures.extend(seed for result in results if not torch.equal(result, wanted))

    threads = [threading.Thread(target=work, args=(seed % 4,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("shape", [(256, 256, 256), (64, 64, 8192)])
def test_a_captured_graph_replays(torch, shape):
    m, n, k = shape
    a, b = whole_numbers(torch, m, k), whole_numbers(torch, k, n, seed=1)
    gemmkit.matmul(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = gemmkit.matmul(a, b)
        second = gemmkit.matmul(a, b, alpha=2)
    for seed in range(3):
        a.copy_(whole_numbers(torch, m, k, seed=seed))
        graph.replay()
        assert torch.equal(first, reference(a, b))
        assert torch.equal(second, 2 * reference(a, b))
        assert torch.equal(gemmkit.matmul(a, b), reference(a, b))


def test_numpy_by_way_of_the_gpu():
    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (1500, 1200)).astype(np.float32)
    b = rng.integers(-2, 3, (1700, 1200)).astype(np.float32).T
    result = gemmkit.matmul(a, b, device="cuda")
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, a @ b)
    out = np.empty((1700, 1500), np.float32).T
    gemmkit.matmul(a, b, out=out, device="cuda")
    np.testing.assert_array_equal(out, a @ b)


def test_cupy(cupy):
    a = cupy.arange(35, dtype=cupy.float32).reshape(5, 7)
    b = cupy.arange(21, dtype=cupy.float32).reshape(7, 3)
    for _ in range(2):
        result = gemmkit.matmul(a, b)
        assert isinstance(result, cupy.ndarray)
        cupy.testing.assert_array_equal(result, a @ b)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        result = gemmkit.matmul(a[:, ::2], b[::2])
        stream.synchronize()
    cupy.testing.assert_array_equal(result, a[:, ::2] @ b[::2])


def test_array_interfaces(torch):
    class Interface:
        def __init__(self, tensor):
            self.tensor = tensor
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    a, b = whole_numbers(torch, 50, 40), whole_numbers(torch, 40, 30, seed=1)
    torch.cuda.synchronize()
    result = gemmkit.matmul(Interface(a), Interface(b))
    assert torch.equal(torch.as_tensor(result, device="cuda"), reference(a, b))
    assert torch.equal(torch.from_dlpack(result), reference(a, b))


@pytest.mark.parametrize("gap", [2**20 + 3])
def test_elements_beyond_two_to_the_31(torch, gap):
    """Rows so far apart that an offset in elements takes more than 32 bits."""
    rows = 2**31 // gap + 5
    if torch.cuda.mem_get_info()[0] < 5 * gap * rows:
        pytest.skip("the GPU has too little free memory")
    whole = torch.empty(rows, gap, device="cuda")
    a = whole[:, :40]
    a.copy_(whole_numbers(torch, rows, 40))
    b = whole_numbers(torch, 40, 24, seed=1)
    assert torch.equal(gemmkit.matmul(a, b), reference(a, b))
    out = whole[:, 100:124]
    gemmkit.matmul(a, b, out=out)
    assert torch.equal(out, reference(a, b))


def test_what_cannot_be_meant(torch):
    a = whole_numbers(torch, 8, 8)
    for call, words in (
        (lambda: gemmkit.matmul(a, a.cpu()), "GPU 0 and b in host memory"),
        (lambda: gemmkit.matmul(a, a, out=a), "out overlaps a"),
        (lambda: gemmkit.matmul(a, a.double()), "does not convert types"),
        (lambda: gemmkit.matmul(a, a, device="emulator"), "for arrays in host memory"),
        (lambda: gemmkit.matmul(a.requires_grad_(), a), "requires a gradient"),
    ):
        with pytest.raises(UsageError, match=words):
            call()
