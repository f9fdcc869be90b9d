"""Groups as libraries are given them: read from memory by BLAS's rules, they give what must come
out."""

import ctypes
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gemmkit.bench import cublas_groups, torch_peer
from gemmkit.bench.baseline import arithmetic_of
from gemmkit.bench.cublas_peer import CublasBaseline
from gemmkit.bench.groups import BATCHED, EACH, GROUPED, as_strided_batch, single_products
from gemmkit.bench.linear_peer import LinearBaseline
from gemmkit.bench.torch_groups import SINCE, GroupedOperands, why_not_grouped
from gemmkit.bench.torch_peer import TorchBaseline
from gemmkit.bench.torch_scaled import ScaledOperands, why_not_scaled
from gemmkit.bench.triton_peer import TritonBaseline
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.kernels.group_table import product_addresses
from gemmkit.problem import GemmProblem
from gemmkit.storage import layouts
from gemmkit.verify import Reference, make_inputs

UNLIKE = "5x7x9,0x5x6,33x20x40:43:44:45,5x7x9,12x8x0,5x7x9"
ALIKE = "6x5x4:7:8:9*3"


class HostDevice:
    """Memory of the host, under its own addresses."""

    stream = SimpleNamespace(handle=1, device=SimpleNamespace(device_id=0))

    def empty(self, nbytes):
        return self.upload(np.zeros(nbytes, np.uint8))

    def upload(self, array, *, initialized=True):
        kept = np.ascontiguousarray(array).copy()
        return SimpleNamespace(address=kept.ctypes.data, nbytes=kept.nbytes, kept=kept)

    def download(self, buffer, out):
        out[...] = buffer.kept


def at(address, count, kind):
    return np.frombuffer(
        (ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address), kind
    )


def column_major(address, rows, columns, ld):
    """A matrix in memory, as a view that can be written."""
    if not (rows and columns):
        return np.zeros((rows, columns), np.float32)
    size = (columns - 1) * ld + rows
    return np.lib.stride_tricks.as_strided(
        at(address, size, np.float32), (rows, columns), (4, 4 * ld)
    )


def gemm(turned_x, turned_y, m, n, k, alpha, x, ldx, y, ldy, beta, c, ldc):
    x = column_major(x, *((k, m) if turned_x else (m, k)), ldx)
    y = column_major(y, *((n, k) if turned_y else (k, n)), ldy)
    c = column_major(c, m, n, ldc)
    product = np.float32(alpha) * ((x.T if turned_x else x) @ (y.T if turned_y else y))
    c[...] = product + (np.float32(beta) * c if beta else 0)


class HostCublas(ModuleType):
    """cuBLAS's routines with arrays of addresses, by NumPy."""

    Operation = SimpleNamespace(N=0, T=1)
    Math = SimpleNamespace(TF32_TENSOR_OP_MATH=3, DISALLOW_REDUCED_PRECISION_REDUCTION=16)
    create = staticmethod(lambda: 7)
    set_math_mode = set_stream = set_workspace = staticmethod(lambda *_: None)
    get_version = staticmethod(lambda _: 130100)

    def sgemm_grouped_batched(
        self, _, ops_x, ops_y, m, n, k, alpha, xs, ldx, ys, ldy, beta, cs, ldc, count, sizes
    ):
        ints = [at(each, count, np.int32) for each in (ops_x, ops_y, m, n, k, ldx, ldy, ldc, sizes)]
        floats = [at(each, count, np.float32) for each in (alpha, beta)]
        products = int(ints[-1].sum())
        pointers = [at(each, products, np.uint64).tolist() for each in (xs, ys, cs)]
        number = 0
        for group in range(count):
            tx, ty, rows, columns, depth, lx, ly, lc, size = (int(each[group]) for each in ints)
            for _ in range(size):
                x, y, c = (each[number] for each in pointers)
                gemm(
                    *(tx, ty, rows, columns, depth, floats[0][group]),
                    *(x, lx, y, ly, floats[1][group], c, lc),
                )
                number += 1

    def sgemm_batched(self, _, tx, ty, m, n, k, alpha, xs, ldx, ys, ldy, beta, cs, ldc, count):
        scales = [float(at(each, 1, np.float32)[0]) for each in (alpha, beta)]
        for x, y, c in zip(
            *(at(each, count, np.uint64).tolist() for each in (xs, ys, cs)), strict=True
        ):
            gemm(tx, ty, m, n, k, scales[0], x, ldx, y, ldy, scales[1], c, ldc)


@pytest.fixture
def cublas(monkeypatch):
    bindings = ModuleType("nvmath.bindings")
    bindings.cublas = HostCublas("cublas")
    bindings.cublasLt = SimpleNamespace(create=lambda: 8)
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    return CublasBaseline(HostDevice())


def computed(baseline, problem, device):
    """The verdict on each way of a baseline, by its choice."""
    inputs = make_inputs(problem)
    operands = Operands.upload(device, problem, inputs.arrays)
    bound = bind_arguments(problem, operands)
    ways = baseline.candidates(problem, [bound])
    for name, way in ways.items():
        fresh = operands.with_results(device, problem, inputs.arrays)
        again = baseline.candidates(problem, [bind_arguments(problem, fresh)])[name]
        (again.judged or again.works)[0](device.stream)
        reference = Reference(problem, inputs, arithmetic=arithmetic_of(problem, way.stored))
        yield way.choice, reference.check(*fresh.results(device, inputs.arrays))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "ttt"])
@pytest.mark.parametrize(
    ("text", "choices"), [(UNLIKE, [GROUPED]), (ALIKE, [GROUPED, BATCHED])], ids=["unlike", "alike"]
)
def test_arrays_of_addresses_name_the_matrices_of_each_product(cublas, text, choices, layout):
    problem = GemmProblem.of_groups(text, alpha=1.5, beta=0.5).laid_out(layout)
    found = dict(computed(cublas, problem, HostDevice()))
    assert list(found) == choices
    for verdict in found.values():
        assert verdict.correct, verdict.detail


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_cublas_has_tf32_on_for_groups_that_allow_it_alone(cublas, monkeypatch, precision):
    modes = []
    monkeypatch.setattr(
        HostCublas, "set_math_mode", staticmethod(lambda _, mode: modes.append(mode))
    )
    problem = GemmProblem.of_groups(ALIKE, precision=precision)
    for _, verdict in computed(cublas, problem, HostDevice()):
        assert verdict.correct
    assert modes == ([3, 16] * 2 if precision == "tf32" else [])


def test_a_wrong_address_is_seen(cublas, monkeypatch):
    """The check of the test above can fail."""

    def rolled(problem, bound):
        found = product_addresses(problem, bound)
        return {**found, "B": np.roll(found["B"], 1)}

    monkeypatch.setattr(cublas_groups, "product_addresses", rolled)
    verdicts = dict(computed(cublas, GemmProblem.of_groups(ALIKE), HostDevice()))
    assert not any(each.correct for each in verdicts.values())


class HostTorch:
    """PyTorch's products and its tensors over given memory, by NumPy."""

    __version__ = "2"
    ops = SimpleNamespace(aten=SimpleNamespace(relu_=abs, gelu_=abs, silu_=abs))

    def __init__(self):
        self.calls = []
        self.cuda = SimpleNamespace(
            ExternalStream=lambda *_, **__: None, stream=lambda _: nullcontext()
        )
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=0)))

    def as_tensor(self, array, device):
        seen = array.__cuda_array_interface__
        last = sum((n - 1) * step for n, step in zip(seen["shape"], seen["strides"], strict=True))
        values = at(seen["data"][0], last // 4 + 1, np.float32)
        return np.lib.stride_tricks.as_strided(values, seen["shape"], seen["strides"])

    def _add(self, name, c, a, b, beta, alpha, out):
        self.calls.append(name)
        product = np.float32(alpha) * (a @ b)
        out[...] = product + (np.float32(beta) * c if beta else 0)

    def mm(self, a, b, out):
        self._add("mm", out, a, b, 0, 1, out)

    def bmm(self, a, b, out):
        self._add("bmm", out, a, b, 0, 1, out)

    def addmm(self, c, a, b, beta, alpha, out):
        self._add("addmm", c, a, b, beta, alpha, out)

    def baddbmm(self, c, a, b, beta, alpha, out):
        self._add("baddbmm", c, a, b, beta, alpha, out)


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(
    ("text", "scales", "calls"),
    [
        (ALIKE, {}, {EACH: ["mm"] * 3, BATCHED: ["bmm"]}),
        (ALIKE, {"alpha": 2.0, "beta": 0.5}, {EACH: ["addmm"] * 3, BATCHED: ["baddbmm"]}),
        ("5x7x9,0x5x6,33x20x40:43:44:45", {}, {EACH: ["mm"] * 2}),
    ],
)
def test_pytorch_multiplies_them_one_by_one_or_as_a_batch(monkeypatch, text, scales, calls, layout):
    torch, device = HostTorch(), HostDevice()
    monkeypatch.setattr(torch_peer, "cuda_torch", lambda: torch)
    problem = GemmProblem.of_groups(text, **scales).laid_out(layout)
    found = {}
    for choice, verdict in computed(TorchBaseline(device), problem, device):
        assert verdict.correct, verdict.detail
        found[choice] = torch.calls
        torch.calls = []
    assert found == calls


EXPERTS = {"dtype": "bfloat16", "groups": "5x48x64,0x48x64,16x48x64"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"transb": True}, ""),
        ({"groups": "0x48x64"}, "no products"),
        ({"dtype": "float16"}, "bfloat16 alone"),
        ({"out_dtype": "float32"}, "bfloat16 alone"),
        ({"transa": True}, "rows of A"),
        ({"beta": 1.0}, "neither alpha"),
        ({"epilogue": Epilogue(activation="relu")}, "nor an epilogue"),
        ({"groups": "5x48x64,5x40x64"}, "one n and one k"),
        ({"groups": "5x48x60"}, "multiples of 8"),
    ],
)
def test_what_torch_has_a_grouped_product_for(changes, reason):
    rest = EXPERTS | changes
    problem = GemmProblem.of_groups(rest.pop("groups"), **rest)
    cuda = SimpleNamespace(get_device_capability=lambda ordinal: (9, 0))
    torch = SimpleNamespace(_grouped_mm=None, cuda=cuda)
    found = why_not_grouped(torch, 0, problem)
    assert reason in found
    assert bool(reason) == bool(found)
    assert "no torch._grouped_mm" in why_not_grouped(SimpleNamespace(cuda=cuda), 0, problem)
    cuda.get_device_capability = lambda ordinal: (8, 0)
    assert "Hopper" in why_not_grouped(torch, 0, problem)


@pytest.mark.parametrize("along_k", [False, True])
def test_experts_are_brought_together_for_torch(along_k):
    torch = pytest.importorskip("torch")
    rows, (n, k) = (5, 0, 16), (48, 64)
    a = [torch.randn(m, k, dtype=torch.bfloat16) for m in rows]
    b = [torch.randn(*((n, k) if along_k else (k, n)), dtype=torch.bfloat16) for _ in rows]
    b = [each.mT if along_k else each for each in b]
    operands = GroupedOperands(torch, a, b)
    assert operands.b.stride(1 if along_k else 2) == 1
    c = [torch.full((m, n), torch.nan, dtype=torch.bfloat16) for m in rows]
    operands.multiply_into(c)
    for x, y, found in zip(a, b, c, strict=True):
        assert torch.allclose(found, x @ y, rtol=0.02, atol=0.02)


SCALED = {
    "dtype": "float8_e4m3",
    "out_dtype": "bfloat16",
    "scales": "rows",
    "groups": "5x48x64,0x48x64,16x48x64",
    "layout": "nt",
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"out_dtype": "float32"}, "e4m3 to bfloat16 alone"),
        ({"scales": "blocks"}, "rows of A and columns of B"),
        ({"layout": "nn"}, "layout NT"),
        ({"groups": "5x48x72"}, "multiples of 16"),
    ],
)
def test_what_torch_has_a_scaled_grouped_product_for(changes, reason):
    rest = SCALED | changes
    problem = GemmProblem.of_groups(rest.pop("groups"), rest.pop("layout"), **rest)
    cuda = SimpleNamespace(get_device_capability=lambda ordinal: (9, 0))
    torch = SimpleNamespace(_scaled_grouped_mm=None, cuda=cuda)
    found = why_not_scaled(torch, 0, problem)
    assert reason in found
    assert bool(reason) == bool(found)


def test_experts_of_8_bits_are_brought_together_with_their_scales(monkeypatch):
    torch = pytest.importorskip("torch")
    kind, rows, (n, k) = torch.float8_e4m3fn, (5, 0, 16), (48, 64)
    a = [torch.randn(m, k).to(kind) for m in rows]
    b = [torch.randn(n, k).to(kind).mT for _ in rows]
    scale_a, scale_b = (
        [torch.rand(each) for each in shapes]
        for shapes in ([(m, 1) for m in rows], [(1, n)] * len(rows))
    )

    def scaled(x, y, scale_x, scale_y, offs, **how):
        """What PyTorch has on GPUs alone."""
        assert how == {"out_dtype": torch.float32}
        assert (x.dtype, y.dtype, y.stride()) == (kind, kind, (n * k, 1, k))
        found, start = torch.empty(len(x), n), 0
        for group, end in enumerate(offs.tolist()):
            product = x[start:end].float() @ y[group].float()
            found[start:end] = product * scale_x[start:end, None] * scale_y[group]
            start = end
        return found

    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled, raising=False)
    operands = ScaledOperands(torch, a, b, scale_a, scale_b, out_dtype=torch.float32)
    c = [torch.full((m, n), torch.nan) for m in rows]
    operands.multiply_into(c)
    for x, y, of_x, of_y, found in zip(a, b, scale_a, scale_b, c, strict=True):
        assert torch.allclose(found, (x.float() * of_x) @ (y.float() * of_y), atol=1e-4)


def test_other_types_of_groups_are_refused(cublas):
    problem = GemmProblem.of_groups(ALIKE, dtype="float64")
    with pytest.raises(UnsupportedProblem, match="for float32 alone"):
        cublas.candidates(problem, [])


@pytest.mark.parametrize("kind", [LinearBaseline, TritonBaseline])
def test_libraries_without_groups_refuse_them(kind):
    with pytest.raises(UnsupportedProblem):
        kind.__new__(kind).candidates(GemmProblem.of_groups(ALIKE), [])


@pytest.mark.parametrize("text", [UNLIKE, ALIKE])
def test_each_product_by_itself(text):
    """With the operands of its epilogue."""
    problem = GemmProblem.of_groups(text, epilogue=Epilogue("column", residual=True))
    device, inputs = HostDevice(), make_inputs(problem)
    operands = Operands.upload(device, problem, inputs.arrays)
    singles = single_products(problem, bind_arguments(problem, operands))
    assert [each.shape for each, _ in singles] == [
        f"{m}x{n}x{k}" for m, n, k in problem.groups.table[:3].T.tolist() if m and n
    ]
    for product, bound in singles:
        a, b, c = (
            each.view(at(bound[name], each.size, np.float32))[0]
            for name, each in zip("ABC", layouts(product), strict=True)
        )
        added = at(bound["bias"], product.n, np.float32)
        # Padded further than C, see `storage.further_layouts`.
        ld = product.n + 2 * (product.ldc - product.n)
        rows = np.lib.stride_tricks.as_strided(
            at(bound["residual"], (product.m - 1) * ld + product.n, np.float32),
            (product.m, product.n),
            (4 * ld, 4),
        )
        c[...] = a @ b + added + rows
    result = operands.results(device, inputs.arrays)
    assert Reference(problem, inputs).check(*result).correct
    plain = GemmProblem(3, 4, 5)
    assert single_products(plain, {"A": 1}) == [(plain, {"A": 1})]


def test_equal_products_are_a_batch_in_the_same_memory():
    problem = GemmProblem.of_groups(ALIKE, alpha=2.0, epilogue=Epilogue(activation="relu"))
    batch = as_strided_batch(problem)
    assert (batch.batch, batch.alpha, batch.ldc) == (3, 2.0, 9)
    bound = {"A": 10**6, "B": 2 * 10**6, "C": 3 * 10**6}
    for number, (_, at_product) in enumerate(single_products(problem, bound)):
        for name, stride in zip("ABC", batch.strides, strict=True):
            assert at_product[name] == bound[name] + 4 * number * stride
    assert as_strided_batch(GemmProblem.of_groups(UNLIKE)) is None
    assert as_strided_batch(GemmProblem.of_groups(ALIKE, epilogue=Epilogue("column"))) is None
    assert as_strided_batch(GemmProblem(3, 4, 5, batch=3)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_torch_multiplies_experts_in_one_launch(layout):
    from gemmkit.devices.cuda import CudaDevice

    device = CudaDevice()
    if device.spec.capability.major < SINCE[0]:
        pytest.skip("PyTorch has no kernel for this board")
    try:
        baseline = TorchBaseline(device)
    except ImportError as missing:
        pytest.skip(str(missing))
    problem = GemmProblem.of_groups("5x48x64,0x48x64,160x48x64", layout, dtype="bfloat16")
    found = dict(computed(baseline, problem, device))
    assert list(found) == [EACH, GROUPED]
    assert found[GROUPED].correct, found[GROUPED].detail


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CublasBaseline, TorchBaseline])
@pytest.mark.parametrize("epilogue", ["none", "bias+relu+residual"])
@pytest.mark.parametrize("text", ["50x70x90,33x20x40:43:44:45,50x70x90", "64x48x40*5"])
def test_every_way_is_right(kind, epilogue, text):
    from gemmkit.devices.cuda import CudaDevice

    device = CudaDevice()
    try:
        baseline = kind(device)
    except ImportError as missing:
        pytest.skip(str(missing))
    problem = GemmProblem.of_groups(text, epilogue=Epilogue.parse(epilogue), alpha=1.5)
    for choice, verdict in computed(baseline, problem, device):
        assert choice in (GROUPED, BATCHED, EACH)
        assert verdict.correct, f"{choice}: {verdict.detail}"
