"""`benchmarks/run_suites.py` and `benchmarks/goals.py`, with a comparison that needs no GPU."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import msgspec
import pytest

from gemmkit import nn
from gemmkit.bench.run import problem_record
from gemmkit.gpu import BOARDS
from gemmkit.problem import GemmProblem
from gemmkit.record import DeviceRecord, PeerRecord, TimeRecord
from gemmkit.report.readme import read_records

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
TIME = TimeRecord(
    median=10.0, p20=10.0, p80=10.0, minimum=10.0, mean=10.0, maximum=10.0, samples=5
)  # fmt: skip


def load(name, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make(make_record):
    def record(suite, problem, **changes):
        peer = PeerRecord(
            vendor="cublas",
            choice="best",
            name="cuBLAS",
            candidates=1,
            time_us=TIME,
            tflops=1.0,
            speedup=1.25,
            correct=True,
            max_error=1e-6,
            error_ratio=0.1,
        )
        fields = {
            "device": DeviceRecord(kind="cuda", gpu="H100"),
            "time_us": TIME,
            "tflops": 1.0,
            "peers": (peer,),
            "ratio_to_cublas": 1.25,
        }
        return make_record(suite=suite, problem=problem, **(fields | changes))

    return record


def test_all_suites_go_to_one_file_and_are_taken_up(monkeypatch, tmp_path, make, capsys):
    script = load("run_suites", monkeypatch)
    asked, chosen = [], []

    def compare(tasks, choose, *, device, against, seconds, progress, every, functions, sustained):
        asked.append((tasks, against, seconds))
        chosen.append((choose, every, functions))
        records = [make(each.suite, problem_record(each.problem)) for each in tasks]
        for record in records:
            progress.finished(record)
        return records

    monkeypatch.setattr(script, "compare", compare)
    device = types.SimpleNamespace(spec=BOARDS["h100"])
    monkeypatch.setattr(script, "this_gpu", lambda: device)
    words = ["run_suites.py", "--results", str(tmp_path), "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", [*words, "--suites", "skinny", "--against", "cublas"])
    assert script.main() == 0
    path = tmp_path / "h100-bench.json"
    assert len(read_records(path)) == 10
    assert read_records(path)[0].environment["commit"] == "abc"
    assert "--suites skinny" in read_records(path)[0].environment["command"]
    monkeypatch.setattr(sys, "argv", [*words, "--suites", "skinny,off-tile", "--resume"])
    assert script.main() == 0
    tasks, against, seconds = asked[1]
    assert {each.suite for each in tasks} == {"off-tile"}
    assert (against, seconds) == (["cublas", "torch", "linear", "triton"], 1.0)
    assert len(read_records(path)) == 18
    assert "naive skinny 1x4096x4096: right, 1.250 x cuBLAS" in capsys.readouterr().out
    options = ["--dtype", "float16", "--layouts", "NT,col", "--candidates", "--name", "other"]
    monkeypatch.setattr(sys, "argv", [*words, "--suites", "skinny", *options])
    assert script.main() == 0
    records = read_records(tmp_path / "h100-other.json")
    assert {(each.problem.dtype, each.problem.layout) for each in records} == {
        ("float16", "nt"),
        ("float16", "ttt"),
    }
    assert "skinny 1x4096x4096 fp16 nt none: right" in capsys.readouterr().out
    choose, every, functions = chosen[-1]
    assert every
    assert functions is nn
    first, *others = choose(GemmProblem(256, 256, 256, dtype="float16"), BOARDS["h100"])
    assert len(others) == len({str(each.config) for each in others}) >= 2
    assert (first.kernel, first.config) not in [(each.kernel, each.config) for each in others]


def test_goals(monkeypatch, make, make_record, tmp_path, capsys):
    script = load("goals", monkeypatch)

    def cube(size):
        return msgspec.structs.replace(make_record().problem, m=size, n=size, k=size)

    def fused(name):
        return msgspec.structs.replace(cube(512), epilogue=name)

    (peer,) = make("square", cube(256)).peers
    plain = msgspec.structs.replace(peer, vendor="gemmkit", choice="plain", speedup=0.9)
    records = [
        make("square", cube(256)),
        make("square", cube(4096), ratio_to_cublas=1.02),
        make("off-tile", cube(4095), tflops=0.9, max_error=3e-6),
        *(make("fused", fused(name), peers=(plain,)) for name in ("bias+gelu", "bias+residual")),
    ]
    seen = {each.goal: each for each in script.goals(records)}
    assert seen["squares and K = 1024: x cuBLAS"].missed == []
    assert seen["squares and K = 1024: geometric mean"].worst[0] == pytest.approx(
        (1.25 * 1.02) ** 0.5
    )
    assert seen["squares from 4096: x cuBLAS"].missed == ["4096³"]
    assert seen["off-tile: speed over the next tile multiple's"].worst == (0.9, "4095³")
    assert seen["max error over cuBLAS's"].missed == ["4095³"]
    assert seen["skinny: x cuBLAS"].worst is None
    # A residual is a matrix more to read.
    assert seen["fused: over the plain product"].missed == ["512³"]
    path = tmp_path / "x.json"
    path.write_text("".join(f"{each.to_json()}\n" for each in records))
    monkeypatch.setattr(sys, "argv", ["goals.py", str(path)])
    assert script.main() == 1
    assert "1: 4096³" in capsys.readouterr().out
