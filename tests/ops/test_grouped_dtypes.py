"""`grouped_matmul` of other types than float32, on the host and on an emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from emulated_gpu import GpuArray, install
from gemmkit.devices.choose import open_device
from gemmkit.devices.patches import ROLES
from gemmkit.dispatch.choose import choose
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType
from gemmkit.ops import grouped_gpu, grouped_product
from gemmkit.ops.tables import TABLE

# Fewer than a tile, several tiles, and some without rows, columns or k.
SHAPES = [(5, 7, 9), (0, 5, 6), (33, 65, 40), (64, 3, 0), (4, 0, 3), (1, 1, 1)]
TYPES = [
    ("float16", "float16"),
    ("float64", "float64"),
    ("float16", "float32"),
    ("float32", "float16"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
]


def numpy_type(name):
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


@pytest.fixture(scope="module")
def emulator():
    return open_device("emulator", "h100", sanitize=True)


def whole(*shape, dtype, seed=0):
    """Such small whole numbers that sums of few products are exact in every type."""
    values = np.random.default_rng([seed, *shape]).integers(-1, 2, shape)
    return values.astype(numpy_type(dtype))


def operands(dtype, shapes=SHAPES, seed=0):
    return (
        [whole(m, k, dtype=dtype, seed=seed) for m, _, k in shapes],
        [whole(k, n, dtype=dtype, seed=seed + 1) for _, n, k in shapes],
    )


def products(a, b):
    return [x.astype("f8") @ y.astype("f8") for x, y in zip(a, b, strict=True)]


def same(results, expected, dtype):
    assert len(results) == len(expected)
    for result, right in zip(results, expected, strict=True):
        assert result.dtype == numpy_type(dtype)
        np.testing.assert_array_equal(result.astype("f8"), right)


@pytest.mark.parametrize(("dtype", "out"), TYPES)
@pytest.mark.sample(5)
def test_host_arrays(dtype, out, emulator):
    a, b = operands(dtype)
    expected = products(a, b)
    outs = [whole(m, n, dtype=out, seed=5) for m, n, _ in SHAPES]
    residual = [whole(m, n, dtype=out, seed=6) for m, n, _ in SHAPES]
    bias = [whole(m, dtype=out, seed=7) for m, _, _ in SHAPES]
    auxiliary = [whole(m, n, dtype=out, seed=8) for m, n, _ in SHAPES]
    sums = [
        2 * x - y.astype("f8") + z.astype("f8")[:, None]
        for x, y, z in zip(expected, outs, bias, strict=True)
    ]
    results = gemmkit.grouped_matmul(
        *(a, b),
        out=outs,
        alpha=2,
        c=outs,
        beta=-1,
        epilogue=Epilogue("row", "relu"),
        bias=bias,
        residual=residual,
        auxiliary=auxiliary,
        device=emulator,
    )
    assert all(result is each for result, each in zip(results, outs, strict=True))
    same(auxiliary, sums, out)
    kept = zip(sums, residual, strict=True)
    same(results, [np.maximum(x, 0) + r.astype("f8") for x, r in kept], out)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_any_strides_and_byte_orders(dtype, emulator):
    stack = whole(3, 8, 6, dtype=dtype)
    a = [each[::-1, ::2] for each in stack]
    b = [each.astype(each.dtype.newbyteorder()) for each in whole(3, 5, 3, dtype=dtype)]
    b = [each.T for each in b]
    same(gemmkit.grouped_matmul(a, b, device=emulator), products(a, b), dtype)


def test_the_epilogue_is_computed_as_the_sums_are(emulator):
    """Rounded once: 4098 is no float16, and half of it less 2048 is 1."""
    a, b = [np.full((1, 3), 1366, "e")] * 2, [np.ones((3, 1), "e"), np.ones((3, 2), "e")]
    own = Epilogue.custom("x * by - 2048", by=0.5)
    results = gemmkit.grouped_matmul(a, b, epilogue=own, device=emulator)
    assert [each.tolist() for each in results] == [[[1.0]], [[1.0, 1.0]]]


HALF, SINGLE = np.ones((3, 3), "e"), np.ones((3, 3), "f")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"as_": [HALF, SINGLE]}, r"as_\[1\] has type float32 and as_\[0\] has float16: the prod"),
        ({"bs": [HALF, SINGLE]}, r"bs\[1\] has type float32 and as_\[0\] has float16"),
        (
            {"out": [SINGLE.copy(), HALF.copy()]},
            r"out\[1\] has type float16 and the results have float32",
        ),
        (
            {"residual": [SINGLE, SINGLE]},
            r"residual\[0\] has type float32 and the results have float16",
        ),
        (
            {"bias": [HALF[0], HALF[0]], "out": [SINGLE.copy(), SINGLE.copy()]},
            r"bias\[0\] has type float16 and the results have float32",
        ),
        ({"c": [HALF, SINGLE], "beta": 1.0}, r"c\[1\] has type float32"),
        ({"auxiliary": [SINGLE, SINGLE]}, r"auxiliary\[0\] has type float32"),
    ],
)
def test_mixed_types_are_refused(changes, words):
    with pytest.raises(UnsupportedType, match=words):
        gemmkit.grouped_matmul(**{"as_": [HALF, HALF], "bs": [HALF, HALF], **changes})


# --- on a GPU -----------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    gpu, library = install(monkeypatch)
    gpu.problems = []

    def chosen(problem, spec):
        gpu.problems.append(problem)
        return choose(problem, spec, emulated=True)

    class Tables:
        """Tables that need no copies through pinned memory."""

        def launch(self, launches, table, stream, prepared=0):
            self.copy = gpu.device.upload(table.view(np.uint8))
            for each in launches:
                each.run([self.copy.address if role == TABLE else 0 for role in ROLES], stream)

    monkeypatch.setattr(grouped_gpu, "context_of", lambda ordinal: gpu)
    tables = Tables()
    monkeypatch.setattr(grouped_gpu, "tables_of", lambda context: tables)
    monkeypatch.setattr(grouped_gpu, "choose_alike", chosen)
    gpu.maker = library
    return gpu


@pytest.fixture
def readings(monkeypatch):
    """The calls that were read in full."""
    read, found = grouped_product.read_groups, []
    monkeypatch.setattr(
        grouped_product,
        "read_groups",
        lambda *given, **rest: found.append(1) or read(*given, **rest),
    )
    return found


def on_gpu(arrays):
    return [GpuArray.of(each) for each in arrays]


@pytest.mark.parametrize(("dtype", "out"), TYPES)
@pytest.mark.sample(5)
def test_arrays_on_a_gpu_stay_there(gpu, readings, dtype, out):
    for seed in range(2):
        a, b = operands(dtype, seed=seed)
        outs = None if dtype == out else on_gpu(whole(m, n, dtype=out) for m, n, _ in SHAPES)
        results = gemmkit.grouped_matmul(on_gpu(a), on_gpu(b), out=outs)
        same([each.values for each in results], products(a, b), out)
    assert len(readings) == 1
    assert len(gpu.launches) == 2
    (problem,) = gpu.problems
    assert (problem.dtype, problem.out_dtype) == (dtype, out)


def test_columns_and_copies(gpu):
    a, b = operands("float16", [(8, 5, 6), (16, 9, 6)])
    turned = [GpuArray.of(a[0].T).T, GpuArray.of(np.repeat(a[1], 2, axis=1))[:, ::2]]
    outs = [GpuArray.of(whole(5, 8, dtype="float32")).T, GpuArray.empty((16, 9), "float32")]
    gemmkit.grouped_matmul(turned, on_gpu(b), out=outs)
    same([each.values for each in outs], products(a, b), "float32")


@pytest.mark.parametrize(("elements", "alignment"), [(0, 16), (4, 8), (2, 4), (1, 2), (3, 2)])
@pytest.mark.sample(3)
def test_accesses_are_as_wide_as_all_addresses_allow(gpu, readings, elements, alignment):
    a, b = operands("float16", [(8, 16, 24)] * 2)
    raw = GpuArray.of(np.zeros(elements + 24 * 16, "e"))
    shifted = GpuArray(raw.values[elements:].reshape(24, 16), raw.buffer)
    shifted.values[...] = b[1]
    for moved in (on_gpu(b), [GpuArray.of(b[0]), shifted]):
        results = gemmkit.grouped_matmul(on_gpu(a), moved)
        same([each.values for each in results], products(a, b), "float16")
    assert gpu.problems[-1].alignment == alignment
    assert len(readings) == (1 if alignment == 16 else 2)


def test_a_call_of_another_type_is_read_anew(gpu, readings):
    for dtype in ("float16", "float64", "float16"):
        a, b = operands(dtype, [(5, 7, 6)])
        results = gemmkit.grouped_matmul(on_gpu(a), on_gpu(b))
        same([each.values for each in results], products(a, b), dtype)
    assert len(readings) == 2
