"""Scales of 8-bit operands in `grouped_matmul` and `ragged_matmul`: arrays in host memory, and on a
GPU that the emulator plays."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import gemmkit
from emulated_gpu import STREAM, GpuArray
from emulated_groups import Offsets, install_groups
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.kernels import group_maps
from gemmkit.kernels.production import grouped_fp8, ragged_fp8
from gemmkit.ops import grouped_product, grouped_warm, ragged_product
from gemmkit.ops.libraries import numpy as numpys
from gemmkit.ops.operands import known_dtype
from gemmkit.verify.encoding import encode

E4M3 = "float8_e4m3"
SMALL = {"BM": 64, "BN": 48, "cluster_m": 1, "consumers": 1, "stages": 2}
RAGGED, GROUPED = (each.KERNEL for each in (ragged_fp8, grouped_fp8))
ENDS = [0, 3, 3, 70, 80]
ROWS, N, K, GROUPS = 80, 144, 272, 5
CHUNKS, BLOCKS = 3, 2
SHAPES_OF_A = [
    *((ROWS, CHUNKS), (1, ROWS, CHUNKS), (ROWS, 1), (1, ROWS, 1)),
    *((GROUPS, 1, 1), (1, 1, 1), (1, 1), ()),
]
SHAPES_OF_B = [
    *((GROUPS, CHUNKS, BLOCKS), (CHUNKS, BLOCKS), (GROUPS, CHUNKS, N)),
    *((GROUPS, 1, N), (1, 1, N), (1, N), (GROUPS, 1, 1), (1,)),
]


@pytest.fixture(autouse=True)
def bytes_are_e4m3(monkeypatch):
    """NumPy has such types from ml_dtypes alone, which may be missing: bytes stand for them."""

    def known(name, role):
        return E4M3 if name == "uint8" else known_dtype(name, role)

    monkeypatch.setattr(numpys, "known_dtype", known)


@pytest.fixture(scope="module")
def played():
    def chosen(kernel, problem, spec):
        config = kernel.configure(SMALL)
        refused = kernel.supports(problem, config, spec)
        return None if refused else SimpleNamespace(kernel=kernel, config=config)

    with pytest.MonkeyPatch.context() as patch:
        gpu, _ = install_groups(patch, lambda *problem: chosen(RAGGED, *problem))
        by_wgmma = {"yes": True}
        choose = gpu.choose
        patch.setattr(
            "gemmkit.ops.grouped_gpu.choose_alike",
            lambda problem, spec: (
                (chosen(GROUPED, problem, spec) if by_wgmma["yes"] else None)
                or choose(problem, spec)
            ),
        )
        group_maps.forget_maps()
        yield gpu, by_wgmma
        # They are of this GPU.
        group_maps.forget_maps()


@pytest.fixture
def gpu(played):
    for calls in (ragged_product._ready, grouped_warm._ready):
        calls.calls.forget()
        calls.families.forget()
    played[0].launches.clear()
    return played[0]


def stored(shape, seed):
    """Small integers, and their bits."""
    numbers = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)
    return numbers, encode(numbers, E4M3)


def powers(shape, seed):
    """Scales that keep sums exact, and that are all unlike their neighbors."""
    drawn = np.random.default_rng(seed).integers(-2, 3, shape)
    return np.asarray(np.float32(2.0) ** drawn, np.float32)


def spread(scales, shape):
    """A scale for each element of a matrix."""
    scales = np.atleast_2d(scales)
    for axis, size in enumerate(shape):
        if scales.shape[axis] not in (1, size):
            scales = np.repeat(scales, 128, axis)[(slice(None),) * axis + (slice(size),)]
    return np.broadcast_to(scales, shape)


def operands(seed=1):
    return stored((ROWS, K), seed), stored((GROUPS, K, N), seed + 1)


def expected(a, b, scale_a, scale_b, ends=ENDS):
    """Rows past the last end are zero."""
    result = np.zeros((len(a), b.shape[2]))
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        of_a, of_b = (
            each[min(group, len(each) - 1)] if each.ndim == 3 else each
            for each in (np.atleast_2d(scale_a), np.atleast_2d(scale_b))
        )
        of_a = spread(of_a, a.shape)[start:end]
        result[start:end] = (a[start:end] * of_a) @ (b[group] * spread(of_b, b[group].shape))
    return result


# --- in host memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape_a", SHAPES_OF_A)
@pytest.mark.parametrize("shape_b", SHAPES_OF_B)
@pytest.mark.sample(20)
def test_rows_of_groups_in_host_memory(shape_a, shape_b):
    (a, bits_a), (b, bits_b) = operands()
    scale_a, scale_b = powers(shape_a, 3), powers(shape_b, 4)
    found = gemmkit.ragged_matmul(
        bits_a, bits_b, ENDS, scale_a=scale_a, scale_b=scale_b, device="emulator"
    )
    assert np.array_equal(found, expected(a, b, scale_a, scale_b))


def products(sizes, kind_a, kind_b):
    """Operands and scales of products, their bits, and what they come to."""
    found = []
    for number, (m, n, k) in enumerate(sizes):
        (a, bits_a), (b, bits_b) = stored((m, k), number), stored((k, n), 50 + number)
        chunks = -(-k // 128)
        of_a = {
            "tensor": (),
            "rows": (m, 1),
            "1x128": (m, chunks),
            "128x128": (-(-m // 128), chunks),
        }
        of_b = {"tensor": (1,), "columns": (1, n), "128x128": (chunks, -(-n // 128))}
        scale_a, scale_b = powers(of_a[kind_a], 7), powers(of_b[kind_b], number)
        right = (a * spread(scale_a, a.shape)) @ (b * spread(scale_b, b.shape))
        found.append((bits_a, bits_b, scale_a, scale_b, right))
    return [list(each) for each in zip(*found, strict=True)]


SIZES = [(0, 48, 32), (1, 16, 48), (70, 144, 272), (130, 48, 16), (5, 32, 0)]


@pytest.mark.parametrize("kind_a", ["1x128", "rows", "tensor", "128x128"])
@pytest.mark.parametrize("kind_b", ["128x128", "columns", "tensor"])
@pytest.mark.sample(12)
def test_products_of_any_sizes_in_host_memory(kind_a, kind_b):
    a, b, scale_a, scale_b, right = products(SIZES, kind_a, kind_b)
    found = gemmkit.grouped_matmul(a, b, scale_a=scale_a, scale_b=scale_b, device="emulator")
    for each, wanted in zip(found, right, strict=True):
        assert np.array_equal(each, wanted)


def test_numbers_are_scales_too():
    (a, bits_a), (b, bits_b) = operands()
    found = gemmkit.ragged_matmul(bits_a, bits_b, ENDS, scale_a=0.5, scale_b=4, alpha=3)
    assert np.array_equal(found, 6 * expected(a, b, np.ones(1), np.ones(1)))
    found = gemmkit.grouped_matmul([bits_a], [bits_b[0]], scale_a=2.0, scale_b=np.float32(0.25))
    assert np.array_equal(found[0], 0.5 * (a @ b[0]))


def test_numbers_in_lists_are_scales_of_one_product():
    """Of Python and NumPy, beside arrays of one element."""
    a, b, _, _, _ = products(SIZES, "tensor", "tensor")
    scale_a = [2, 0.5, np.float32(4), np.float16(0.25), np.ones((1, 1), np.float32)]
    scale_b = [np.int64(3), 0.0, powers((), 3), 1.5, -2]
    found = gemmkit.grouped_matmul(a, b, scale_a=scale_a, scale_b=scale_b, device="emulator")
    arrays = [[np.full(1, each, np.float32) for each in side] for side in (scale_a, scale_b)]
    right = gemmkit.grouped_matmul(a, b, scale_a=arrays[0], scale_b=arrays[1], device="emulator")
    for each, wanted in zip(found, right, strict=True):
        assert np.array_equal(each, wanted)
    assert np.any(found[2])
    assert not np.any(found[1])


def test_no_products_have_any_precision():
    """There is no array that tells their type."""
    assert gemmkit.grouped_matmul([], [], precision="fast", device="emulator") == []
    _, bits_a = stored((ROWS, K), 1)
    none = np.empty((0, K, N), np.uint8)
    out = np.full((ROWS, N), 7, np.float32)
    gemmkit.ragged_matmul(bits_a, none, [], out=out, precision="fast", device="emulator")
    assert np.all(out == 7), "rows past the last group are not written"
    with pytest.raises(UsageError, match="unknown precision 'most'"):
        gemmkit.grouped_matmul([], [], precision="most")


def test_other_terms_come_after_scales():
    (a, bits_a), (b, bits_b) = operands()
    scale_a, scale_b = powers((ROWS, 1), 3), powers((GROUPS, 1, N), 4)
    out = np.full((ROWS, N), np.nan, np.float32)
    bias = np.arange(N, dtype=np.float32)
    given = {"scale_a": scale_a, "scale_b": scale_b, "alpha": 2, "bias": bias, "epilogue": "relu"}
    assert gemmkit.ragged_matmul(bits_a, bits_b, ENDS, out=out, **given) is out
    assert np.array_equal(out, (2 * expected(a, b, scale_a, scale_b) + bias).clip(0))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scale_a": np.ones((ROWS, 2), np.float32)}, UsageError, r"scale_a has the shape"),
        (
            {"scale_a": np.ones((1, 3), np.float32)},
            UsageError,
            r"scale_a has the shape \(1, 3\)",
        ),
        (
            {"scale_a": np.ones((GROUPS, ROWS, 1), np.float32)},
            UsageError,
            r"\(80, 1\) \(rows\).*or \(5, 1, 1\) for one of each group",
        ),
        (
            {"scale_b": np.ones((GROUPS, N), np.float32)},
            UsageError,
            r"\(1, 144\) \(columns\).*number of groups before it",
        ),
        ({"scale_b": np.ones((4, 1, N), np.float32)}, UsageError, "scale_b has the shape"),
        ({"scale_a": np.ones(ROWS, np.float32)}, UsageError, r"scale_a has the shape \(80,\)"),
        ({"scale_a": np.ones((ROWS, 1))}, UnsupportedType, "scales are float32"),
    ],
)
def test_what_ragged_scales_cannot_be(change, error, message):
    (_, bits_a), (_, bits_b) = operands()
    with pytest.raises(error, match=message):
        gemmkit.ragged_matmul(bits_a, bits_b, ENDS, **change)


def test_what_scales_of_products_cannot_be():
    a, b, scale_a, scale_b, _ = products(SIZES, "rows", "columns")
    with pytest.raises(UsageError, match=r"scale_a\[2\] has the shape \(7, 1\); use one of"):
        gemmkit.grouped_matmul(a, b, scale_a=[*scale_a[:2], powers((7, 1), 0), *scale_a[3:]])
    mixed = [*scale_b[:3], powers((1, 1), 0), scale_b[4]]
    with pytest.raises(
        UsageError, match=r"scale_b\[3\].*scales of columns: the products of a laun"
    ):
        gemmkit.grouped_matmul(a, b, scale_b=mixed)
    with pytest.raises(UsageError, match="scale_a has 4 arrays and as_ has 5"):
        gemmkit.grouped_matmul(a, b, scale_a=scale_a[1:])
    narrow = [np.ones((2, 3), np.float32)], [np.ones((3, 2), np.float32)]
    for scale in (powers((), 0), 2.0):
        with pytest.raises(UsageError, match=r"scale_a\[0\] is for a and b of float8_e4m3"):
            gemmkit.grouped_matmul(*narrow, scale_a=[scale])
    with pytest.raises(UsageError, match=r"scale_b\[3\] = inf: a number must be finite in fp32"):
        gemmkit.grouped_matmul(a, b, scale_b=[1, 1, 1, np.inf, 1])
    with pytest.raises(UsageError, match="scale_a has 2 arrays and as_ has 5"):
        gemmkit.grouped_matmul(a, b, scale_a=[1.0, 2.0])
    with pytest.raises(UnsupportedType, match=r"scale_a\[1\] has type str"):
        gemmkit.grouped_matmul(a, b, scale_a=[1.0, "2", 1.0, 1.0, 1.0])


# --- on a GPU -----------------------------------------------------------------------------------


def in_columns(stack):
    """On the GPU, each matrix in columns, as weights of layers lie."""
    turned = GpuArray.of(np.swapaxes(stack, -1, -2))
    return GpuArray(np.swapaxes(turned.values, -1, -2), turned.buffer)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((ROWS, 1), (GROUPS, 1, N)),
        ((ROWS, CHUNKS), (GROUPS, CHUNKS, BLOCKS)),
        ((GROUPS, 1, 1), (GROUPS, 1, 1)),
        ((), (1, CHUNKS, N)),
    ],
)
@pytest.mark.sample(4)
def test_offsets_on_the_gpu(gpu, monkeypatch, shape_a, shape_b):
    """By tensor cores; the second call is a launch and nothing else, with its own scales."""
    offsets = Offsets.of(np.array(ENDS, np.int32))
    for seed in (1, 11):
        (a, bits_a), (b, bits_b) = operands(seed)
        scale_a, scale_b = powers(shape_a, seed + 2), powers(shape_b, seed + 3)
        given = {"scale_a": GpuArray.of(scale_a), "scale_b": GpuArray.of(scale_b)}
        x, weights = GpuArray.of(bits_a), in_columns(bits_b)
        found = gemmkit.ragged_matmul(x, weights, offsets, **given)
        assert np.array_equal(found.values, expected(a, b, scale_a, scale_b))
        monkeypatch.setattr(ragged_product, "read_ragged", None)
    assert len(gpu.launches) == 2


@pytest.mark.parametrize("chunks", [1, CHUNKS])
@pytest.mark.parametrize("in_rows", [False, True])
@pytest.mark.sample(2)
def test_another_number_of_rows_is_a_launch_of_other_sizes(gpu, monkeypatch, chunks, in_rows):
    """By the groups' ends, and by a table for weights in rows."""
    shape_b = (GROUPS, 1, N) if chunks == 1 else (GROUPS, CHUNKS, BLOCKS)
    _, (b, bits_b) = operands()
    scale_b = powers(shape_b, 4)
    weights = GpuArray.of(bits_b) if in_rows else in_columns(bits_b)
    for rows, ends in ((80, ENDS), (79, [0, 9, 9, 64, 79]), (83, [83] * 5), (80, [1, 2, 3, 4, 80])):
        a, bits_a = stored((rows, K), rows)
        scale_a = powers((rows, chunks), rows)
        given = {"scale_a": GpuArray.of(scale_a), "scale_b": GpuArray.of(scale_b)}
        found = gemmkit.ragged_matmul(GpuArray.of(bits_a), weights, ends, **given)
        assert np.array_equal(found.values, expected(a, b, scale_a, scale_b, ends))
        monkeypatch.setattr(ragged_product, "read_ragged", None)
    # A scale for all rows is another kind of call.
    given["scale_a"], other = GpuArray.of(powers((1, 1), 1)), GpuArray.of(stored((81, K), 1)[1])
    with pytest.raises(TypeError):
        gemmkit.ragged_matmul(other, weights, [81] * 5, **given)


def test_scales_of_any_strides(gpu):
    """Those of chunks lie row by row or chunk by chunk, as DeepGEMM has them."""
    (a, bits_a), (b, bits_b) = operands()
    scale_a, scale_b = powers((CHUNKS, 2 * ROWS), 3), powers((GROUPS, BLOCKS, CHUNKS), 4)
    on_gpu = GpuArray.of(scale_a)
    given = {
        "scale_a": GpuArray(on_gpu.values[:, ::2].T, on_gpu.buffer),
        "scale_b": in_columns(scale_b.swapaxes(1, 2)),
    }
    found = gemmkit.ragged_matmul(GpuArray.of(bits_a), in_columns(bits_b), ENDS, **given)
    right = expected(a, b, scale_a[:, ::2].T, scale_b.swapaxes(1, 2))
    assert np.array_equal(found.values, right)


@pytest.mark.parametrize("shape_a", [(ROWS, CHUNKS), (ROWS, 1), (GROUPS, 1, 1), ()])
@pytest.mark.parametrize("shape_b", [(GROUPS, CHUNKS, BLOCKS), (1, N), (GROUPS, 1, 1)])
@pytest.mark.sample(12)
def test_a_table_where_no_kernel_reads_offsets(gpu, shape_a, shape_b):
    """Of weights in rows, from the host's offsets; another division needs nothing but its table."""
    (a, bits_a), (b, bits_b) = operands()
    scale_a, scale_b = powers(shape_a, 3), powers(shape_b, 4)
    x, weights = GpuArray.of(bits_a), GpuArray.of(bits_b)
    given = {"scale_a": GpuArray.of(scale_a), "scale_b": GpuArray.of(scale_b)}
    for ends in (ENDS, [10, 10, 20, 21, 80]):
        found = gemmkit.ragged_matmul(x, weights, ends, **given)
        assert np.array_equal(found.values, expected(a, b, scale_a, scale_b, ends))
    offsets = Offsets.of(np.array(ENDS))
    with pytest.raises(UnsupportedProblem, match=r"ragged_fp8.*give the offsets in host memory"):
        gemmkit.ragged_matmul(x, weights, offsets, **given)


@pytest.mark.parametrize("by_wgmma", [True, False])
@pytest.mark.parametrize(("kind_a", "kind_b"), [("rows", "columns"), ("1x128", "128x128")])
@pytest.mark.sample(4)
def test_products_on_the_gpu(gpu, played, monkeypatch, by_wgmma, kind_a, kind_b):
    """The second call, with other scales in the same places, launches and reads nothing."""
    monkeypatch.setitem(played[1], "yes", by_wgmma)
    a, b, scale_a, scale_b, right = products(SIZES, kind_a, kind_b)
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    given = {name: [GpuArray.of(x) for x in each] for name, each in scales.items()}
    xs, weights = [GpuArray.of(x) for x in a], [in_columns(x) for x in b]
    for factor in (1, 4):
        for each in given["scale_a"]:
            each.values[...] *= factor
        found = gemmkit.grouped_matmul(xs, weights, **given)
        for each, wanted in zip(found, right, strict=True):
            assert np.array_equal(each.values, factor * wanted)
        monkeypatch.setattr("gemmkit.ops.grouped_product.read_groups", None)
    # Other scales of the same products are another kind of call.
    with pytest.raises(TypeError):
        gemmkit.grouped_matmul(xs, weights, scale_a=given["scale_a"])


def test_numbers_in_lists_on_the_gpu(gpu, monkeypatch):
    """Each is written once, on the stream of the call; the second call reads nothing."""
    for module in ("gemmkit.devices.streams", "gemmkit.ops.grouped_gpu"):
        monkeypatch.setattr(f"{module}.check_stream", lambda *_: None)
    a, b, _, _, _ = products(SIZES, "tensor", "tensor")
    xs, weights = [GpuArray.of(x) for x in a], [in_columns(x) for x in b]
    power = powers((), 5)

    def check(scale_a, scale_b, stream=None):
        gpu.floats.clear()
        scales = {"scale_a": scale_a, "scale_b": [*scale_b, GpuArray.of(power)]}
        found = gemmkit.grouped_matmul(xs, weights, **scales, stream=stream)
        assert gpu.floats == [stream or STREAM] * len({*scale_a, *scale_b})
        arrays = [
            [np.asarray(x, np.float32) for x in side] for side in (scale_a, [*scale_b, power])
        ]
        right = gemmkit.grouped_matmul(
            a, b, scale_a=arrays[0], scale_b=arrays[1], device="emulator"
        )
        for each, wanted in zip(found, right, strict=True):
            assert np.array_equal(each.values, wanted)

    check([1, 0.5, 2, 2, np.float32(4)], [1.0, 3, 0.25, 0.125])
    check([8, 1, 2, 4, 2], [1, 1, 3, 3], STREAM + 1)
    read = grouped_product.read_groups

    def host_only(arrays, **options):
        assert not isinstance(arrays["a"][0], GpuArray)
        return read(arrays, **options)

    monkeypatch.setattr(grouped_product, "read_groups", host_only)
    check([4, 2, 1, 1, 1], [1, 2, 3, 4])


# --- on a GPU that there is ---------------------------------------------------------------------


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not (found.cuda.is_available() and hasattr(found, "float8_e4m3fn")):
        pytest.skip("this PyTorch has no CUDA, or no types of 8 bits")
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("in_columns", [True, False])
@pytest.mark.parametrize("shape_b", SHAPES_OF_B)
@pytest.mark.parametrize("shape_a", SHAPES_OF_A)
def test_tensors_of_pytorch(torch, shape_a, shape_b, in_columns):
    (a, _), (b, _) = operands()
    scale_a, scale_b = powers(shape_a, 3), powers(shape_b, 4)
    given = {"scale_a": torch.tensor(scale_a).cuda(), "scale_b": torch.tensor(scale_b).cuda()}
    x, weights = (torch.tensor(each).to(torch.float8_e4m3fn).cuda() for each in (a, b))
    if in_columns:
        weights = weights.mT.contiguous().mT
    hopper = torch.cuda.get_device_capability() == (9, 0)
    for where in ("cpu", "cuda") if in_columns and hopper else ("cpu",):
        ends = torch.tensor(ENDS, device=where)
        for _ in range(2):
            found = gemmkit.ragged_matmul(x, weights, ends, **given)
            assert np.array_equal(found.cpu().numpy(), expected(a, b, scale_a, scale_b))


@pytest.mark.gpu
def test_a_graph_serves_any_division_of_the_rows(torch):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("offsets are read on Hopper")
    (a, _), (b, _) = operands()
    scale_a, scale_b = powers((ROWS, CHUNKS), 3), powers((GROUPS, CHUNKS, BLOCKS), 4)
    given = {"scale_a": torch.tensor(scale_a).cuda(), "scale_b": torch.tensor(scale_b).cuda()}
    x, weights = (torch.tensor(each).to(torch.float8_e4m3fn).cuda() for each in (a, b))
    weights = weights.mT.contiguous().mT
    out, offsets = torch.empty(ROWS, N, device="cuda"), torch.tensor(ENDS, device="cuda")
    gemmkit.ragged_matmul(x, weights, offsets, out=out, **given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmkit.ragged_matmul(x, weights, offsets, out=out, **given)
    for ends in ([80] * GROUPS, [1, 1, 66, 79, 80]):
        out.fill_(torch.nan)
        offsets.copy_(torch.tensor(ends))
        graph.replay()
        assert np.array_equal(out.cpu().numpy(), expected(a, b, scale_a, scale_b, ends))


@pytest.mark.gpu
@pytest.mark.parametrize("in_columns", [True, False])
@pytest.mark.parametrize("kind_a", ["1x128", "rows", "tensor", "128x128"])
@pytest.mark.parametrize("kind_b", ["128x128", "columns", "tensor"])
def test_lists_of_tensors_of_pytorch(torch, kind_a, kind_b, in_columns):
    sizes = [(*each[:2], each[2] or 16) for each in SIZES]
    a, b, scale_a, scale_b, right = products(sizes, kind_a, kind_b)

    def on_gpu(arrays, turned=False):
        tensors = [torch.tensor(each).cuda() for each in arrays]
        return [each.mT.contiguous().mT if turned else each for each in tensors]

    xs, weights = (
        [each.view(torch.float8_e4m3fn) for each in on_gpu(side, turned)]
        for side, turned in ((a, False), (b, in_columns))
    )
    scales = {"scale_a": on_gpu(scale_a), "scale_b": on_gpu(scale_b)}
    for _ in range(2):
        found = gemmkit.grouped_matmul(xs, weights, **scales)
        for each, wanted in zip(found, right, strict=True):
            assert np.array_equal(each.cpu().numpy(), wanted)
    if (kind_a, kind_b) == ("tensor", "tensor"):
        numbers = {role: [each.item() for each in own] for role, own in scales.items()}
        for _ in range(2):
            found = gemmkit.grouped_matmul(xs, weights, **numbers)
            for each, wanted in zip(found, right, strict=True):
                assert np.array_equal(each.cpu().numpy(), wanted)
