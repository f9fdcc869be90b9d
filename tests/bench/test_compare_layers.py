"""Layers in a comparison, with stand-ins for PyTorch and its clock; gemmkit's run emulated."""

from __future__ import annotations

import types
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest

from gemmkit import nn
from gemmkit.bench import compare as compare_module
from gemmkit.bench import compare_layers
from gemmkit.bench.compare import Pick, compare
from gemmkit.bench.layers import Attention, Conv2d, Linear, Recurrent
from gemmkit.bench.progress import Progress
from gemmkit.bench.tasks import Task
from gemmkit.devices.choose import open_device
from gemmkit.errors import UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Part, Record
from gemmkit.report.comparison import comparison_tables

NAIVE = find_kernel("naive")
FUNCTIONS = types.SimpleNamespace(
    linear=lambda *arrays, **rest: nn.linear(*arrays, device="emulator", **rest)
)


class Tensor(np.ndarray):
    """An array with what a comparison asks of PyTorch's."""

    def to(self, where):
        assert where == "cuda"
        return self

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


@dataclass(frozen=True)
class Ours(Linear):
    """A layer whose counterpart is NumPy's; `spoil` is added to its results."""

    spoil: float = 0.0

    def ours(self, functions, arrays, **options):
        return super().ours(functions, [np.asarray(each) for each in arrays]).view(Tensor)

    def theirs(self, torch, arrays):
        def apply(x, weight, bias):
            return (x @ weight.T + bias + np.float32(self.spoil)).view(Tensor)

        return apply, list(arrays)


class Uncompiled(Ours):
    compiles = False


@pytest.fixture
def torch(monkeypatch):
    matmul = types.SimpleNamespace(allow_tf32=True)
    cudnn = types.SimpleNamespace(allow_tf32=True, benchmark=False, version=lambda: 91900)
    seen = []

    def compiled(function, *, fullgraph, dynamic):
        assert fullgraph
        assert not dynamic
        return lambda *arrays: function(*arrays)

    def from_numpy(array):
        assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark) == (False, False, True)
        return array.view(Tensor)

    module = types.SimpleNamespace(
        __version__="2.11",
        backends=types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=matmul), cudnn=cudnn),
        cuda=types.SimpleNamespace(
            Stream=lambda: "a stream", stream=lambda _: nullcontext(), synchronize=lambda: None
        ),
        inference_mode=nullcontext,
        from_numpy=from_numpy,
        compile=compiled,
        compiler=types.SimpleNamespace(reset=lambda: seen.append("reset")),
        seen=seen,
    )
    monkeypatch.setattr(compare_layers, "cuda_torch", lambda: module)
    return module


@pytest.fixture
def device(fakes, monkeypatch, torch):
    monkeypatch.setattr(compare_module, "copy_gb_per_s", lambda _device: 800.0)
    monkeypatch.setattr(compare_module, "management_probes", lambda _stream: {})
    recorded = {"graph": [], "calls": []}

    class Timer:
        """The second of rotations takes 120 µs, others 100; a call 50 more."""

        stream = None

        def __init__(self, module, manner):
            self.manner, self.rotations = manner, {}

        def record(self, works, kept=()):
            for work in works:
                work(None)
            recorded[self.manner].append(len(works))
            # Each rotation is recorded once, and again where it is lengthened.
            number = self.rotations.setdefault(id(works[0]), len(self.rotations))
            each = 100.0 + 20 * (number == 1) + 50 * (self.manner == "calls")
            return types.SimpleNamespace(microseconds=lambda: each * len(works))

    monkeypatch.setattr(compare_layers, "TorchTimer", Timer)
    monkeypatch.setattr(compare_layers, "MAX_BUFFER_SETS", 3)
    monkeypatch.setattr("gemmkit.bench.timer.GRAPH_US", 200.0)

    def kernels_of(_torch, call):
        call()
        torch.seen.append("profiled")
        return {"split_k": Part(1.0, 80.0), "cell": Part(2.0, 20.0)}

    monkeypatch.setattr(compare_layers, "kernels_of", kernels_of)
    found = fakes["FakeTimedDevice"](microseconds=100.0)
    found.buffer_sets = recorded
    return found


def tasks(*layers):
    return [Task(each.product, "layers", each) for each in layers]


def test_a_layer_is_checked_timed_and_taken_apart(device, torch):
    layer = Ours(10, 24, 17)
    (record,) = compare(
        tasks(layer), None, device=device, against=["torch"], functions=FUNCTIONS, seconds=0.01
    )
    assert (record.suite, record.kernel, record.correct) == ("layers", "nn.linear", True)
    assert (record.layer.name, record.layer.sizes) == ("linear", "10x24 -> 17, none")
    assert record.problem.layout == "nt"
    assert (record.time_us.median, record.layer.call_us.median) == (100.0, 150.0)
    assert record.tflops == pytest.approx(layer.flops / 100e-6 / 1e12)
    assert 0 < record.max_error < record.error_bound
    eager, compiled = record.peers
    assert [each.choice for each in (eager, compiled)] == ["eager", "compiled"]
    assert [each.name for each in (eager, compiled)] == [
        "PyTorch 2.11: linear, op by op",
        "PyTorch 2.11: linear, torch.compile",
    ]
    assert (eager.time_us.median, eager.call_us.median) == (120.0, 170.0)
    assert eager.speedup == pytest.approx(1.2)
    assert all(each.correct and each.max_error > 0 for each in record.peers)
    assert record.layer.parts == eager.parts == {"split_k": Part(1, 80), "cell": Part(2, 20)}
    assert record.profile.copy_share == pytest.approx(layer.minimal_bytes / 100e-6 / 1e9 / 800)
    assert record.environment["against"] == ["torch"]
    # Inputs rotate, since one set is smaller than the L2 cache.
    assert min(device.buffer_sets["graph"]) == min(device.buffer_sets["calls"]) == 3
    assert Record.from_json(record.to_json()) == record
    backends = torch.backends
    assert backends.cuda.matmul.allow_tf32
    assert (backends.cudnn.allow_tf32, backends.cudnn.benchmark) == (True, False)


def test_a_wrong_result_of_either_is_told(device):
    spoiled = compare(
        tasks(Ours(10, 24, 17, spoil=1e-3)),
        None,
        device=device,
        against=["torch"],
        functions=FUNCTIONS,
        seconds=0.01,
    )
    (record,) = spoiled
    assert record.correct
    assert [each.correct for each in record.peers] == [False, False]
    assert record.peers[0].check.startswith("C[")
    (table,) = comparison_tables(spoiled)
    assert "op by op is wrong at 10x24 -> 17, none: C[" in table.to_text().plain
    off = types.SimpleNamespace(linear=lambda *arrays, **rest: FUNCTIONS.linear(*arrays) * 1.01)
    (record,) = compare(
        tasks(Ours(10, 24, 17)),
        None,
        device=device,
        against=["torch"],
        functions=off,
        seconds=0.01,
    )
    assert not record.correct


def test_what_the_compiler_cannot_do_is_left_out(device, torch):
    def refuse(*_, **__):
        raise RuntimeError("a graph break\nand much more")

    torch.compile = refuse
    notes = []
    log = Progress()
    log.measuring, log.note = (lambda *what: notes.append(what)), notes.append
    for layer, left in ((Ours(10, 24, 17), 1), (Uncompiled(10, 24, 17), 0)):
        notes.clear()
        (record,) = compare(
            tasks(layer),
            None,
            device=device,
            against=["torch"],
            functions=FUNCTIONS,
            seconds=0.01,
            progress=log,
        )
        assert [each.choice for each in record.peers] == ["eager"]
        told = "torch.compile left out at linear 10x24 -> 17, none: RuntimeError: a graph break"
        assert notes == [("linear 10x24 -> 17, none", 0, 1), *[told] * left]


def test_layers_come_after_products_and_are_taken_apart_last(device, torch, monkeypatch):
    order = []

    class Log(Progress):
        def started(self, kernel, problem, done, total):
            order.append((kernel.name, done, total))

        def measuring(self, layer, done, total):
            order.append((layer.partition(" ")[0], done, total))

        def finished(self, record):
            order.append(record.suite)

    monkeypatch.setattr(compare_module, "open_peers", lambda _names, _device: [])
    product = Task(GemmProblem(48, 40, 32), "square")
    records = compare(
        [*tasks(Ours(10, 24, 17), Ours(9, 8, 7)), product],
        lambda _problem, _gpu: (Pick(NAIVE, NAIVE.default),),
        device=device,
        against=["torch"],
        functions=FUNCTIONS,
        seconds=0.01,
        progress=Log(),
    )
    assert [each.suite for each in records] == ["square", "layers", "layers"]
    assert order == [
        ("naive", 0, 3),
        "square",
        ("linear", 1, 3),
        ("linear", 2, 3),
        "layers",
        "layers",
    ]
    titles = [
        table.to_text().plain.strip().partition("\n")[0] for table in comparison_tables(records)
    ]
    assert titles == [
        "square (M = N = K from 256 to 16384), fp32, on RTX 3090",
        "layers (layers of gemmkit.nn beside PyTorch's), fp32, on RTX 3090",
    ]


def test_layers_have_one_peer(device, monkeypatch):
    layer = tasks(Recurrent("lstm", 2, 3, 8))
    for against, functions in ((["cublas"], FUNCTIONS), (["torch"], None)):
        with pytest.raises(UsageError, match="layers are compared with 'torch' alone"):
            compare(layer, None, device=device, against=against, functions=functions)

    def absent():
        raise ImportError("No module named 'torch'")

    monkeypatch.setattr(compare_layers, "cuda_torch", absent)
    with pytest.raises(UsageError, match=r"gemmkit\[torch\].*No module named 'torch'"):
        compare(layer, None, device=device, against=["torch"], functions=FUNCTIONS)


@pytest.mark.gpu
# PyTorch's compiler calls what other packages, but not gemmkit, deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!gemmkit)")
@pytest.mark.parametrize(
    "layer",
    [
        Linear(64, 256, 128, "gelu", residual=True),
        Conv2d(4, 16, 20, 32, 3, 2, "im2col"),
        Conv2d(4, 16, 20, 32, 3, 1, "implicit"),
        Attention(2, 4, 128, 64, causal=True),
        Recurrent("lstm", 8, 16, 64),
        Recurrent("gru", 8, 16, 64),
    ],
    ids=str,
)
def test_on_a_gpu(layer):
    pytest.importorskip("torch", reason="needs PyTorch")
    (record,) = compare(
        tasks(layer),
        None,
        device=open_device("cuda"),
        against=["torch"],
        functions=nn,
        seconds=0.05,
    )
    assert record.correct, record.check
    assert all(each.correct for each in record.peers), [each.check for each in record.peers]
    assert len(record.peers) == 1 + layer.compiles
    assert sum(part.us for part in record.layer.parts.values()) > 0
    assert record.time_us.median > 0
