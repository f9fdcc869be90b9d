"""`gemmkit.torch.ragged_matmul`: gradients and tracing; on a GPU its kernels, for any division."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

import gemmkit  # noqa: E402
import gemmkit.torch as gk  # noqa: E402
from gemmkit.errors import UsageError  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ENDS = [3, 3, 8, 10]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    torch.manual_seed(0)
    return request.param


def right(a, b, ends, bias=None):
    """Group by group; rows past the last end are zero."""
    rows, start = [], 0
    for group, end in enumerate(ends):
        own = a[start:end] @ b[group]
        if bias is not None:
            own = own + (bias[group] if bias.dim() == 2 else bias)
        rows.append(own)
        start = end
    return torch.cat([*rows, a.new_zeros(len(a) - start, b.shape[2])])


def gradients(result, *tensors):
    weights = torch.arange(result.numel(), device=result.device).reshape(result.shape) % 7 - 3.0
    return torch.autograd.grad((result * weights).sum(), tensors, create_graph=True)


@pytest.mark.parametrize("own_bias", [True, False])
def test_gradients(device, own_bias):
    def made(*shape):
        return torch.randn(*shape, device=device, dtype=torch.double, requires_grad=True)

    a, b, bias = made(11, 6), made(4, 6, 5), made(*([4, 5] if own_bias else [5]))
    found = gk.ragged_matmul(a, b, ENDS, bias)
    wanted = right(a, b, ENDS, bias)
    torch.testing.assert_close(found, wanted)
    mine, theirs = (gradients(each, a, b, bias) for each in (found, wanted))
    torch.testing.assert_close(mine, theirs)
    # Gradients of the gradients of A and of B.
    mine, theirs = (gradients(x, b) + gradients(y, a) for x, y, _ in (mine, theirs))
    torch.testing.assert_close(mine, theirs)


def test_it_is_one_operator_for_the_compiler(device):
    a = torch.randn(11, 6, device=device)
    b = torch.randn(4, 6, 5, device=device)
    compiled = torch.compile(
        lambda a, b: gk.ragged_matmul(a, b, ENDS).relu(), backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(a, b), right(a, b, ENDS).relu())
    with pytest.raises(UsageError, match=r"gemmkit\.torch\.ragged_matmul"):
        gemmkit.ragged_matmul(a.to("meta"), b.to("meta"), ENDS)
    with pytest.raises(UsageError, match="gemmkit"):
        gemmkit.ragged_matmul(a.requires_grad_(), b, ENDS)


def test_what_the_operator_refuses(device):
    a, b = torch.randn(11, 6, device=device), torch.randn(4, 6, 5, device=device)
    with pytest.raises(UsageError, match="4 groups"):
        gk.ragged_matmul(a, b, [1, 2, 3])
    with pytest.raises(UsageError):
        gk.ragged_matmul(a, b[0], ENDS)


# --- on a GPU -----------------------------------------------------------------------------------


def whole(*shape, dtype=None):
    """Such small whole numbers that sums of their products are exact."""
    made = torch.randint(-3, 4, shape, device="cuda")
    return made.to(dtype or torch.bfloat16)


def divided(rows, groups, seed):
    """Ends of groups of any size, some of which are empty."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, rows + 1, (groups,), generator=generator).sort().values
    ends[-1] = rows
    return ends


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    torch.manual_seed(0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rows", [16, 300, 3000])
@pytest.mark.parametrize("turned", [True, False])
def test_any_division_of_the_rows(gpu, dtype, rows, turned):
    kind = getattr(torch, dtype)
    a = whole(rows, 264, dtype=kind)
    b = whole(12, 328, 264, dtype=kind).mT if turned else whole(12, 264, 328, dtype=kind)
    bias = whole(12, 328, dtype=kind)
    for seed in range(4):
        ends = divided(rows, 12, seed)
        expected = right(a.double(), b.double(), ends.tolist(), bias.double()).to(kind)
        for offsets in (ends, ends.tolist(), ends.numpy()):
            assert torch.equal(gemmkit.ragged_matmul(a, b, offsets, bias=bias), expected)
        if dtype != "float32":
            for offsets in (ends.cuda(), ends.int().cuda()):
                assert torch.equal(gemmkit.ragged_matmul(a, b, offsets, bias=bias), expected)


@pytest.mark.gpu
def test_a_graph_serves_any_division(gpu):
    a, b, out = whole(500, 128), whole(9, 128, 256), whole(500, 256)
    offsets = divided(500, 9, 0).int().cuda()
    gemmkit.ragged_matmul(a, b, offsets, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmkit.ragged_matmul(a, b, offsets, out=out)
    for seed in range(5):
        ends = divided(500, 9, seed)
        offsets.copy_(ends)
        graph.replay()
        expected = right(a.double(), b.double(), ends.tolist()).bfloat16()
        assert torch.equal(out, expected)


@pytest.mark.gpu
def test_rows_past_the_last_end_and_other_numbers_of_rows(gpu):
    b = whole(6, 64, 96)
    for rows in (40, 41, 500, 37, 40, 500):
        a = whole(rows, 64)
        ends = divided(rows - 7, 6, rows)
        out = torch.full((rows, 96), 5.0, device="cuda", dtype=torch.bfloat16)
        gemmkit.ragged_matmul(a, b, ends.cuda(), out=out)
        assert torch.equal(out[:-7], right(a.double(), b.double(), ends.tolist()).bfloat16()[:-7])
        assert (out[-7:] == 5).all()
        found = gemmkit.ragged_matmul(a, b, ends.cuda())
        assert torch.equal(found[:-7], out[:-7])
