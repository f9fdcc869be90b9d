"""The baselines need a GPU to compute; their choice and their fallback do not."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gemmkit.bench import baseline as baseline_module
from gemmkit.bench.baseline import CublasBaseline, TorchBaseline, _without_tf32, find_baseline
from gemmkit.bench.triton_peer import TritonBaseline
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.epilogue import Epilogue
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.verify import check, make_inputs


def test_the_first_that_works_is_taken(monkeypatch):
    def broken(_device):
        raise ImportError("no nvmath")

    monkeypatch.setattr(baseline_module, "CublasBaseline", broken)
    monkeypatch.setattr(baseline_module, "TorchBaseline", lambda _device: "torch")
    assert find_baseline(None) == "torch"
    monkeypatch.setattr(baseline_module, "TorchBaseline", broken)
    assert find_baseline(None) is None


class OldSettings:
    allow_tf32 = True


class NewSettings:
    fp32_precision = "tf32"


@pytest.mark.parametrize(
    ("settings", "name", "exact"),
    [(OldSettings(), "allow_tf32", False), (NewSettings(), "fp32_precision", "ieee")],
)
def test_tf32_is_off_within_and_as_before_after(settings, name, exact):
    before = getattr(settings, name)
    with _without_tf32(settings):
        assert getattr(settings, name) == exact
    assert getattr(settings, name) == before


class Recorder:
    """Stands for a library's module: its functions note what they are called with."""

    def __init__(self, **known):
        self.calls = []
        self.__dict__ |= known

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments)) or len(self.calls)


def test_cublas_is_told_of_a_batch(monkeypatch):
    """Column-major Cᵀ = Bᵀ·Aᵀ for all products: B's matrices and strides go first."""
    seen = {}

    def describe(layout, attribute, address, size):
        pointed = ctypes.string_at(address, size)
        seen[layout, attribute] = int.from_bytes(pointed, "little"), size

    cublas = Recorder(Operation=SimpleNamespace(N="plain"), get_version=lambda _: 130400)
    lt = Recorder(
        MatrixLayoutAttribute=SimpleNamespace(BATCH_COUNT="count", STRIDED_BATCH_OFFSET="stride"),
        matrix_layout_set_attribute=describe,
    )
    monkeypatch.setattr(baseline_module, "_LtPlan", lambda *_: SimpleNamespace(algorithms=[]))
    bindings = ModuleType("nvmath.bindings")
    bindings.cublas, bindings.cublasLt = cublas, lt
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    device = SimpleNamespace(empty=lambda _: SimpleNamespace(address=9))
    problem = GemmProblem(3, 4, 5, ldc=8, batch=7, stride_a=20, stride_b=BROADCAST)
    bound = bind_arguments(
        problem, Operands(*(SimpleNamespace(address=x) for x in (100, 200, 300)))
    )
    (name, (work,)), *others = CublasBaseline(device).candidates(problem, [bound]).items()
    assert name.endswith("(cublasSgemmStridedBatched)")
    assert not others
    work(SimpleNamespace(handle=1))
    call = next(each for each in cublas.calls if each[0] == "sgemm_strided_batched")
    assert call[2:7] == ("plain", "plain", 4, 3, 5)
    assert (call[8:11], call[11:14]) == ((200, 4, 0), (100, 5, 20))
    assert call[15:] == (300, 8, 24, 7)

    for layout, stride in zip("abc", problem.strides, strict=True):
        baseline_module._describe_batch(lt, layout, problem.batch, stride)
    assert seen == {
        **{(layout, "count"): (7, 4) for layout in "abc"},
        ("a", "stride"): (20, 8),
        ("b", "stride"): (0, 8),
        ("c", "stride"): (24, 8),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CublasBaseline, TorchBaseline, TritonBaseline])
@pytest.mark.parametrize("epilogue", ["none", "bias+relu"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("batch", [{}, {"batch": 5, "stride_b": BROADCAST, "stride_a": 21000}])
def test_every_candidate_is_right(kind, epilogue, beta, batch):
    from gemmkit.devices.cuda import CudaDevice

    device = CudaDevice()
    try:
        baseline = kind(device)
    except ImportError as missing:
        pytest.skip(str(missing))
    problem = GemmProblem(
        200, 136, 96, 1.5, beta, lda=100, ldc=140, epilogue=Epilogue.parse(epilogue), **batch
    )
    inputs = make_inputs(problem)
    a, b, bias = (device.upload(x) for x in (inputs.a, inputs.b, np.zeros(problem.n, np.float32)))
    if inputs.bias is not None:
        bias = device.upload(inputs.bias)
    for name in baseline.candidates(problem, [bind_arguments(problem, Operands(a, b, a, bias))]):
        c = device.upload(inputs.c)
        bound = bind_arguments(problem, Operands(a, b, c, bias))
        baseline.candidates(problem, [bound])[name][0](device.stream)
        result = np.empty_like(inputs.c)
        device.download(c, result)
        verdict = check(problem, inputs, result)
        assert verdict.correct, f"{name}: {verdict.detail}"
