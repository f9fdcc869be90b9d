"""`benchmarks/overhead.py`: NumPy in the place of PyTorch, and the emulator in that of a GPU."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import gemmkit
from gemmkit.gpu import find_board

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "overhead.py"


class Tensor(np.ndarray):
    def clone(self):
        return self.copy()

    def relu_(self):
        return np.maximum(self, 0, out=self)

    def split(self, rows):
        return np.split(self, np.cumsum(rows)[:-1])

    def to(self, dtype):
        return self.astype(dtype)


class Generator:
    def __init__(self, device):
        assert device == "cuda"

    def manual_seed(self, seed):
        self.random = np.random.default_rng(seed)
        return self


def grouped_mm(tokens, weights, *, offs):
    assert offs.dtype == np.int32
    starts = [0, *offs[:-1]]
    return np.concatenate(
        [tokens[start:end] @ b for start, end, b in zip(starts, offs, weights, strict=True)]
    ).view(Tensor)


@pytest.fixture
def torch():
    module = types.ModuleType("torch")
    module.__version__ = "2"
    module.Tensor, module.Generator, module.int32 = Tensor, Generator, np.int32
    # NumPy has none.
    module.bfloat16 = np.float32
    module.randn = lambda *shape, device, generator: generator.random.standard_normal(
        shape, np.float32
    ).view(Tensor)
    module.tensor = lambda values, device: np.array(values).view(Tensor)
    module.empty_like = np.empty_like
    module.cat = np.concatenate
    module.mm = module.matmul = lambda a, b, out=None: np.matmul(a, b, out=out)
    module.addmm = lambda bias, a, b: a @ b + bias
    module.testing = types.SimpleNamespace(assert_close=np.testing.assert_allclose)
    module.cuda = types.SimpleNamespace(synchronize=lambda: None)
    return module


@pytest.fixture
def script(torch, monkeypatch):
    """The benchmark; gemmkit itself sees no PyTorch."""
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(SCRIPT.parent))
        patched.setitem(sys.modules, "torch", torch)
        spec = importlib.util.spec_from_file_location("overhead", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    device = types.SimpleNamespace(spec=find_board("h100"), environment=lambda: {"gpu": "none"})
    monkeypatch.setattr(module, "this_gpu", lambda: device)
    return module


def records(script, monkeypatch, tmp_path, *words):
    given = ["--sizes", "8", "--rounds", "3", "--calls", "4", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["overhead.py", *given, *words])
    code = script.main()
    lines = (tmp_path / "h100-overhead.json").read_text("utf-8").splitlines()
    return code, {each["way"]: each for each in map(json.loads, lines)}


def test_each_way_is_a_record(script, torch, monkeypatch, tmp_path):
    torch._grouped_mm = grouped_mm
    monkeypatch.setattr(script, "GOAL", float("inf"))
    product = gemmkit.ragged_matmul
    monkeypatch.setattr(
        gemmkit, "ragged_matmul", lambda *given: product(*given).view(Tensor), raising=False
    )
    code, found = records(script, monkeypatch, tmp_path, "--products", "3", "--commit", "abc")
    assert code == 0
    grouped = ["3 products", "3 products, out", "3 experts"]
    ragged = ["rows of one matrix", "rows of one matrix, new totals"]
    single = ["new result", "out", "B transposed", "bias and ReLU"]
    assert list(found) == [*single, *grouped, *ragged]
    for way in ragged:
        record = found.pop(way)
        assert (record["products"], record["calls"]) == (3, 1)
        assert list(record["host"]) == ["torch._grouped_mm", "gemmkit.ragged_matmul"]
    for way, record in found.items():
        count = 3 if way in grouped else 1
        # A call for many products makes as many launches of PyTorch's.
        assert (record["products"], record["calls"]) == (count, 4 // count)
        reference, *_, own = record["host"]
        assert reference == ("torch.mm, each" if way in grouped else "torch.mm")
        assert own == ("gemmkit.grouped_matmul" if way in grouped else "gemmkit.matmul")
        for times in record["host"].values():
            ratio = times["median_us"] / record["host"][reference]["median_us"]
            assert times["ratio"] == pytest.approx(ratio, abs=1e-3)
        assert record["environment"]["commit"] == "abc"
    assert "torch._grouped_mm" in found["3 experts"]["host"]


def test_the_exit_status_tells_whether_the_goal_is_reached(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "GOAL", 0.0)
    assert records(script, monkeypatch, tmp_path, "--products", "2")[0] == 1


def test_experts_have_different_numbers_of_rows(script, torch, monkeypatch):
    seen = []

    def product(as_, bs, **_):
        seen.append([a.shape for a in as_])
        return [a @ b for a, b in zip(as_, bs, strict=True)]

    monkeypatch.setattr(gemmkit, "grouped_matmul", product, raising=False)
    ways = script.grouped_ways(8, 4)
    ways["4 experts"]["gemmkit.grouped_matmul"]()
    assert seen == [[(1, 8), (5, 8), (10, 8), (15, 8)]]
    assert list(script.grouped_ways(1, 1)["1 experts"]) == [
        "torch.mm, each",
        "gemmkit.grouped_matmul",
    ]


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError])
def test_a_pytorch_without_grouped_products_of_float32_is_left_out(script, torch, error):
    def refused(*_, **__):
        raise error("Expected mat_a to be BFloat16")

    torch._grouped_mm = refused
    assert "torch._grouped_mm" not in script.grouped_ways(8, 2)["2 experts"]


def test_each_call_has_another_number_of_rows(script, torch, monkeypatch):
    torch._grouped_mm = grouped_mm
    seen = []

    def product(a, b, offsets):
        seen.append((len(a), offsets.tolist()))
        return np.zeros((len(a), b.shape[2])).view(Tensor)

    monkeypatch.setattr(gemmkit, "ragged_matmul", product, raising=False)
    ways = script.ragged_ways(8, 3)
    seen.clear()
    for way in ways.values():
        assert [way["gemmkit.ragged_matmul"]().shape for _ in range(3)] == [(24, 8)] * 3
    assert seen == [(rows, [8, 16, 24]) for rows in (24, 24, 24, 24, 25, 26)]
    del torch._grouped_mm
    assert script.ragged_ways(8, 3) == {}


def test_a_wrong_result_is_not_timed(script, torch):
    right = lambda: [np.ones((2, 2)).view(Tensor)] * 2  # noqa: E731
    wrong = lambda: [np.ones((2, 2)).view(Tensor), np.zeros((2, 2)).view(Tensor)]  # noqa: E731
    script.check({"torch.mm, each": right, "gemmkit.grouped_matmul": right})
    with pytest.raises(AssertionError):
        script.check({"torch.mm, each": right, "gemmkit.grouped_matmul": wrong})
