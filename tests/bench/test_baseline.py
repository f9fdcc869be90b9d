"""The baselines need a GPU to compute; their choice and their fallback do not."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gemmkit.bench import cublas_lt, cublas_peer, peers
from gemmkit.bench.baseline import arithmetic_of
from gemmkit.bench.cublas_peer import CublasBaseline
from gemmkit.bench.linear_peer import LinearBaseline
from gemmkit.bench.peers import find_baseline
from gemmkit.bench.torch_peer import TorchBaseline, in_precision
from gemmkit.bench.torch_scaled import refuse_unscalable
from gemmkit.bench.triton_peer import TritonBaseline
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.dtypes import PRECISIONS
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.storage import layouts
from gemmkit.verify import Reference, make_inputs
from gemmkit.verify.arithmetic import FORMATS, FP32, Rounded


def test_the_first_that_works_is_taken(monkeypatch):
    def broken(_device):
        raise ImportError("no nvmath")

    monkeypatch.setattr(peers, "CublasBaseline", broken)
    monkeypatch.setattr(peers, "TorchBaseline", lambda _device: "torch")
    assert find_baseline(None) == "torch"
    monkeypatch.setattr(peers, "TorchBaseline", broken)
    assert find_baseline(None) is None


class OldSettings:
    allow_tf32 = True


class NewSettings:
    fp32_precision = "tf32"
    allow_bf16_reduced_precision_reduction = True


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("settings", [OldSettings(), NewSettings()])
def test_tf32_is_on_where_it_is_allowed_alone_and_as_before_after(settings, precision):
    lower = precision == "tf32"
    name, within = "allow_tf32", lower
    if isinstance(settings, NewSettings):
        name, within = "fp32_precision", "tf32" if lower else "ieee"
    before = getattr(settings, name)
    with in_precision(settings, precision):
        assert getattr(settings, name) == within
        assert not getattr(settings, "allow_bf16_reduced_precision_reduction", False)
    assert getattr(settings, name) == before
    assert getattr(settings, "allow_bf16_reduced_precision_reduction", True)


class Recorder:
    """Stands for a library's module: its functions note what they are called with."""

    def __init__(self, **known):
        self.calls = []
        self.__dict__ |= known

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments)) or len(self.calls)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cublas_multiplies_in_tf32_where_it_is_allowed_alone(monkeypatch, precision):
    types = SimpleNamespace(COMPUTE_32F="exact", COMPUTE_32F_FAST_TF32="tf32")
    cublas = Recorder(
        Operation=SimpleNamespace(N="plain", T="turned"),
        Math=SimpleNamespace(DISALLOW_REDUCED_PRECISION_REDUCTION=16),
        ComputeType=types,
        GemmAlgo=SimpleNamespace(DEFAULT="default"),
        get_version=lambda _: 130400,
    )
    monkeypatch.setattr(cublas_peer, "LtPlan", lambda *_: SimpleNamespace(algorithms=[]))
    bindings = ModuleType("nvmath.bindings")
    bindings.cublas, bindings.cublasLt = cublas, Recorder()
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    device = SimpleNamespace(empty=lambda _: SimpleNamespace(address=9))
    problem = GemmProblem(3, 4, 5, precision=precision)
    bound = bind_arguments(
        problem, Operands(*(SimpleNamespace(address=x) for x in (100, 200, 300)))
    )
    ((name, way),) = CublasBaseline(device).candidates(problem, [bound]).items()
    way.works[0](SimpleNamespace(handle=1))
    lower = precision == "tf32"
    assert name.endswith("(cublasGemmEx)" if lower else "(cublasSgemm)")
    called = {each[0]: each for each in cublas.calls}
    assert ("gemm_ex" in called) == lower == ("sgemm" not in called)
    if lower:
        assert called["gemm_ex"][-2:] == ("tf32", "default")
    assert cublas_lt.compute_type(cublas, problem) == ("tf32" if lower else "exact")


def test_a_peer_in_tf32_is_judged_by_operands_that_are_cut():
    exact, lower = (
        arithmetic_of(GemmProblem(64, 64, 64, precision=precision), ())
        for precision in ("fp32", "tf32")
    )
    assert exact == FP32
    assert lower.rounded == (Rounded(FORMATS["tf32"], 2, cut=True),)
    assert 2 * 2.0**-10 < lower.relative(64, 0.0) < 3 * 2.0**-10
    kept = arithmetic_of(
        GemmProblem(64, 64, 64, out_dtype="bfloat16", precision="tf32"), ("product",)
    )
    assert (kept.rounded, kept.stored) == (lower.rounded, ("product",))
    assert "tf32" in kept.reason


def test_cublas_is_told_of_a_batch(monkeypatch):
    """Column-major Cᵀ = Bᵀ·Aᵀ for all products: B's matrices and strides go first."""
    seen = {}

    def describe(layout, attribute, address, size):
        pointed = ctypes.string_at(address, size)
        seen[layout, attribute] = int.from_bytes(pointed, "little"), size

    cublas = Recorder(
        Operation=SimpleNamespace(N="plain", T="turned"),
        Math=SimpleNamespace(DISALLOW_REDUCED_PRECISION_REDUCTION=16),
        get_version=lambda _: 130400,
    )
    lt = Recorder(
        MatrixLayoutAttribute=SimpleNamespace(BATCH_COUNT="count", STRIDED_BATCH_OFFSET="stride"),
        matrix_layout_set_attribute=describe,
    )
    monkeypatch.setattr(cublas_peer, "LtPlan", lambda *_: SimpleNamespace(algorithms=[]))
    bindings = ModuleType("nvmath.bindings")
    bindings.cublas, bindings.cublasLt = cublas, lt
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    device = SimpleNamespace(empty=lambda _: SimpleNamespace(address=9))
    problem = GemmProblem(3, 4, 5, ldc=8, batch=7, stride_a=20, stride_b=BROADCAST)
    bound = bind_arguments(
        problem, Operands(*(SimpleNamespace(address=x) for x in (100, 200, 300)))
    )
    (name, way), *others = CublasBaseline(device).candidates(problem, [bound]).items()
    (work,) = way.works
    assert name.endswith("(cublasSgemmStridedBatched)")
    assert not others
    work(SimpleNamespace(handle=1))
    call = next(each for each in cublas.calls if each[0] == "sgemm_strided_batched")
    assert call[2:7] == ("plain", "plain", 4, 3, 5)
    assert (call[8:11], call[11:14]) == ((200, 4, 0), (100, 5, 20))
    assert call[15:] == (300, 8, 24, 7)

    for layout, stride in zip("abc", problem.strides, strict=True):
        cublas_lt.describe_batch(lt, layout, problem.batch, stride)
    assert seen == {
        **{(layout, "count"): (7, 4) for layout in "abc"},
        ("a", "stride"): (20, 8),
        ("b", "stride"): (0, 8),
        ("c", "stride"): (24, 8),
    }


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "nnt", "ntt", "tnt", "ttt"])
def test_layouts_as_column_major_blas_has_them(layout):
    """Memory read by BLAS's rules gives what the problem's own layouts give."""
    rng = np.random.default_rng(0)
    problem = GemmProblem(3, 4, 5).laid_out(layout)
    form = cublas_lt.ColumnMajor.of(problem)
    stored = {"A": rng.random(15), "B": rng.random(20)}
    a, b = (
        each.view(stored[name])[0] for name, each in zip("AB", layouts(problem)[:2], strict=True)
    )
    operands = []
    for (name, ld, _, turned), second in ((form.first, False), (form.second, True)):
        rows, columns = form.stored(problem.k, second=second)
        assert ld == rows
        matrix = stored[name].reshape(columns, rows).T
        operands.append(matrix.T if turned else matrix)
    result = np.zeros(12)
    result.reshape(form.columns, form.rows).T[:] = operands[0] @ operands[1]
    assert np.allclose(layouts(problem)[2].view(result)[0], a @ b)


def computed(baseline, problem, device):
    """The verdict on each way of a baseline."""
    inputs = make_inputs(problem)
    operands = Operands.upload(device, problem, inputs.arrays)
    bound = bind_arguments(problem, operands)
    for name, way in baseline.candidates(problem, [bound]).items():
        fresh = operands.with_results(device, problem, inputs.arrays)
        again = baseline.candidates(problem, [bind_arguments(problem, fresh)])[name]
        (again.judged or again.works)[0](device.stream)
        reference = Reference(problem, inputs, arithmetic=arithmetic_of(problem, way.stored))
        yield name, reference.check(*fresh.results(device, inputs.arrays))


def opened(kind):
    from gemmkit.devices.cuda import CudaDevice

    device = CudaDevice()
    try:
        return kind(device), device
    except ImportError as missing:
        pytest.skip(str(missing))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CublasBaseline, TorchBaseline, TritonBaseline])
@pytest.mark.parametrize("epilogue", ["none", "bias+relu"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("batch", [{}, {"batch": 5, "stride_b": BROADCAST, "stride_a": 21000}])
def test_every_candidate_is_right(kind, epilogue, beta, batch):
    baseline, device = opened(kind)
    problem = GemmProblem(
        200, 136, 96, 1.5, beta, lda=100, ldc=140, epilogue=Epilogue.parse(epilogue), **batch
    )
    for name, verdict in computed(baseline, problem, device):
        assert verdict.correct, f"{name}: {verdict.detail}"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CublasBaseline, TorchBaseline])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "nnt", "ttt"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 3])
def test_types_and_layouts(kind, layout, dtype, batch):
    baseline, device = opened(kind)
    problem = GemmProblem(72, 136, 96, 1.5, 0.5, dtype=dtype, batch=batch).laid_out(layout)
    for name, verdict in computed(baseline, problem, device):
        assert verdict.correct, f"{name}: {verdict.detail}"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CublasBaseline, TorchBaseline])
@pytest.mark.parametrize(
    "epilogue",
    [
        Epilogue("column", "gelu_tanh"),
        Epilogue("row", "silu", residual=True),
        Epilogue("column", "gelu", scale=0.5, auxiliary=True),
        Epilogue("column", "gelu_tanh", auxiliary=True),
        Epilogue("column", residual=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 2])
def test_epilogues(kind, epilogue, dtype, batch):
    baseline, device = opened(kind)
    problem = GemmProblem(72, 136, 96, dtype=dtype, epilogue=epilogue, batch=batch)
    for name, verdict in computed(baseline, problem, device):
        assert verdict.correct, f"{name}: {verdict.detail}"


@pytest.mark.gpu
# PyTorch's compiler calls what other packages, but not gemmkit, deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!gemmkit)")
@pytest.mark.parametrize(
    "epilogue",
    [
        Epilogue(),
        Epilogue("column", "gelu"),
        Epilogue("column", "relu", residual=True, scale=0.5, auxiliary=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_linear(epilogue, dtype, layout):
    baseline, device = opened(LinearBaseline)
    problem = GemmProblem(72, 136, 96, dtype=dtype, epilogue=epilogue).laid_out(layout)
    for name, verdict in computed(baseline, problem, device):
        assert verdict.correct, f"{name}: {verdict.detail}"


@pytest.mark.gpu
def test_results_of_another_type():
    baseline, device = opened(CublasBaseline)
    problem = GemmProblem(72, 136, 96, dtype="float16", out_dtype="float32", transb=True)
    for name, verdict in computed(baseline, problem, device):
        assert verdict.correct, f"{name}: {verdict.detail}"
    with pytest.raises(UnsupportedProblem, match="PyTorch multiplies float16 to float16"):
        TorchBaseline(device).candidates(problem, [])


def test_what_torch_multiplies_of_8_bits():
    given = {"dtype": "float8_e4m3", "out_dtype": "bfloat16", "transb": True}
    for scales in ("", "tensor", "rows", "blocks", "1x128,1x128", "128x128,1x128"):
        refuse_unscalable(GemmProblem(40, 48, 64, scales=scales, **given))
    narrow = {**given, "out_dtype": "float8_e4m3", "epilogue": "scale_result"}
    refuse_unscalable(GemmProblem(40, 48, 64, **narrow))
    for changes, message in (
        ({"scales": "rows,tensor"}, "takes no scales rows,tensor"),
        ({"transb": False}, "along k alone: layout NT"),
        ({"n": 40}, "multiples of 16"),
        ({"alpha": 2.0}, "neither alpha nor beta"),
        ({"batch": 2}, "one product at a time"),
        ({"out_dtype": "float8_e5m2", "epilogue": "relu"}, "scale_result alone of the epilogues"),
    ):
        problem = {"m": 40, "n": 48, "k": 64, **given, **changes}
        with pytest.raises(UnsupportedProblem, match=message):
            refuse_unscalable(GemmProblem(**problem))


def test_libraries_sum_products_of_8_bits_on_tensor_cores():
    problem = GemmProblem(4, 4, 4096, dtype="float8_e4m3", out_dtype="bfloat16")
    promoted = arithmetic_of(problem, ())
    assert (promoted.promoted, promoted.sum_bits) == (128, 14)
    fast = GemmProblem(4, 4, 4096, dtype="float8_e4m3", precision="fast")
    assert arithmetic_of(fast, ()).promoted == 0
    blocks = GemmProblem(4, 4, 4096, dtype="float8_e4m3", precision="fast", scales="blocks")
    assert arithmetic_of(blocks, ()).promoted == 128
