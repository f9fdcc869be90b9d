"""The Triton peer: what it tries and launches, with stand-ins for Triton and PyTorch."""

from __future__ import annotations

import sys
import types
from contextlib import contextmanager

import pytest

from gemmkit.bench import torch_tensors, triton_peer
from gemmkit.bench.triton_peer import CONFIGURATIONS, TritonBaseline, suitable
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import BROADCAST, GemmProblem


@pytest.fixture
def launches(monkeypatch):
    """What is launched, as (grid, operands, constants); Triton and PyTorch are stand-ins."""
    seen = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *operands, **constants: seen.append((grid, operands, constants))

    @contextmanager
    def on(stream):
        seen.append(stream)
        yield

    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        ExternalStream=lambda handle, device: ("stream", handle, device),
        stream=on,
    )
    triton = types.ModuleType("triton")
    triton.__version__ = "3.6.0"
    kernel = types.ModuleType("gemmkit.bench.triton_kernel")
    kernel.matmul = Kernel()
    for module in (torch, triton, kernel):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for module in (torch_tensors, triton_peer):
        monkeypatch.setattr(
            module, "device_tensor", lambda _torch, _ordinal, *what: ("tensor", *what[:3])
        )
    return seen


def device():
    stream = types.SimpleNamespace(device=types.SimpleNamespace(device_id=3), handle=77)
    return types.SimpleNamespace(stream=stream)


def test_what_is_launched(launches):
    problem = GemmProblem(300, 200, 96, 1.5, 0.0, lda=100, epilogue=Epilogue.parse("bias+relu"))
    bound = {"A": 1, "B": 2, "C": 3, "bias": 4}
    found = TritonBaseline(device()).candidates(problem, [bound, bound])
    name = "Triton 3.6.0 (64x128x16, 4 warps, 3 stages)"
    assert name in found
    assert all(len(way.works) == 2 for way in found.values())
    found[name].works[0](device().stream)
    stream, (grid, operands, constants) = launches
    assert stream == ("stream", 77, 3)
    assert grid == (5 * 2,)
    assert operands == (
        ("tensor", 1, (300, 96), (100, 1)),
        ("tensor", 2, (96, 200), (200, 1)),
        ("tensor", 3, (300, 200), (200, 1)),
        ("tensor", 4, (200,), (1,)),
        *(300, 200, 96, 100, 200, 200),
        *(0, 0, 0),
        *(1.5, 0.0),
    )
    assert (constants["BM"], constants["BN"], constants["BK"]) == (64, 128, 16)
    assert (constants["num_warps"], constants["num_stages"]) == (4, 3)
    flags = {key: constants[key] for key in ("BATCHED", "SCALED", "ADDED", "BIAS", "RELU")}
    assert flags == {"BATCHED": False, "SCALED": True, "ADDED": False, "BIAS": True, "RELU": True}


def test_products_of_a_batch_run_over_the_grid_s_second_axis(launches):
    problem = GemmProblem(64, 64, 32, batch=500, stride_b=BROADCAST, stride_c=5000)
    bound = {"A": 1, "B": 2, "C": 3, "bias": 0}
    found = TritonBaseline(device()).candidates(problem, [bound])
    found["Triton 3.6.0 (64x64x16, 4 warps, 4 stages)"].works[0](device().stream)
    _, (grid, operands, constants) = launches
    assert grid == (1, 500)
    assert operands[:3] == (
        ("tensor", 1, (64, 32), (32, 1)),
        ("tensor", 2, (32, 64), (64, 1)),
        ("tensor", 3, (64, 64), (64, 1)),
    )
    assert operands[-5:-2] == (64 * 32, 0, 5000)
    assert constants["BATCHED"]
    crowded = GemmProblem(8, 8, 8, batch=70_000)
    with pytest.raises(UnsupportedProblem, match="room for 65,535 products"):
        TritonBaseline(device()).candidates(crowded, [bound])


def test_the_configurations_suit_the_shape():
    assert {each.BM for each in suitable(GemmProblem(1, 4096, 4096))} == {16}
    large = suitable(GemmProblem(16384, 16384, 16384))
    assert (128, 128) in {(each.BM, each.BN) for each in large}
    assert min(each.BM * each.BN for each in large) > 64 * 64
    assert (128, 128) not in {(each.BM, each.BN) for each in suitable(GemmProblem(256, 256, 256))}
    for m in (1, 17, 300, 20000):
        assert suitable(GemmProblem(m, m, m))
    assert all(each.BK >= 16 for each in CONFIGURATIONS), "Triton's dot takes none below"


@pytest.mark.parametrize(
    "changes",
    [{"transb": True}, {"dtype": "float16"}, {"epilogue": Epilogue(activation="gelu")}],
    ids=str,
)
def test_other_products_are_refused(launches, changes):
    problem = GemmProblem(64, 64, 64, **changes)
    with pytest.raises(UnsupportedProblem, match="multiplies row-major float32"):
        TritonBaseline(device()).candidates(problem, [])


def test_without_cuda_there_is_none(launches):
    sys.modules["torch"].cuda.is_available = lambda: False
    with pytest.raises(RuntimeError, match="no CUDA"):
        TritonBaseline(device())
