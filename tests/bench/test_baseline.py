"""The baselines need a GPU to compute; their choice and their fallback do not."""

import numpy as np
import pytest

from gemmkit.bench import baseline as baseline_module
from gemmkit.bench.baseline import CublasBaseline, TorchBaseline, _without_tf32, find_baseline
from gemmkit.bench.triton_peer import TritonBaseline
from gemmkit.devices.device import bind_arguments
from gemmkit.epilogue import Epilogue
from gemmkit.problem import GemmProblem
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


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CublasBaseline, TorchBaseline, TritonBaseline])
@pytest.mark.parametrize("epilogue", ["none", "bias+relu"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_every_candidate_is_right(kind, epilogue, beta):
    from gemmkit.devices.cuda import CudaDevice

    device = CudaDevice()
    try:
        baseline = kind(device)
    except ImportError as missing:
        pytest.skip(str(missing))
    problem = GemmProblem(
        200, 136, 96, 1.5, beta, lda=100, ldc=140, epilogue=Epilogue.parse(epilogue)
    )
    inputs = make_inputs(problem)
    a, b, bias = (device.upload(x) for x in (inputs.a, inputs.b, np.zeros(problem.n, np.float32)))
    if inputs.bias is not None:
        bias = device.upload(inputs.bias)
    for name in baseline.candidates(problem, [bind_arguments(problem, a, b, a, bias)]):
        c = device.upload(inputs.c)
        bound = bind_arguments(problem, a, b, c, bias)
        baseline.candidates(problem, [bound])[name][0](device.stream)
        result = np.empty_like(inputs.c)
        device.download(c, result)
        verdict = check(problem, inputs, result)
        assert verdict.correct, f"{name}: {verdict.detail}"
