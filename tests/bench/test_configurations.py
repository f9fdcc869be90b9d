"""`benchmarks/configurations.py` reads what it writes, and leaves out what a problem rules out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmkit.devices.choose import open_device
from gemmkit.dispatch.choose import Dispatcher

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LABELS = ["naive:BM=8,BN=32", "gemm_wgmma:BM=7,BN=64"]


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("configurations")


def test_configurations_that_a_problem_takes_are_timed_beside_the_choice(
    script, tmp_path, monkeypatch
):
    file = tmp_path / "asked.json"
    row = {"shape": "40x36x64", "layout": "nn", "dtype": "float32", "configurations": LABELS}
    file.write_text(f"{json.dumps({'environment': {}})}\n{json.dumps(row)}\n")
    ((problem, labels),) = script.asked(file)
    assert (problem.shape, problem.layout, labels) == ("40x36x64", "nn", LABELS)
    device = open_device("emulator", "rtx3090")
    kernels, refused = script.taken(problem, labels, Dispatcher(device.spec, None))
    assert list(kernels)[1:] == LABELS[:1]
    assert list(refused) == LABELS[1:]
    assert all(each for each in refused.values())

    class Time:
        median = 2.0

    monkeypatch.setattr(script.Workload, "rotation", lambda *_: object())
    monkeypatch.setattr(
        script, "time_in_turn", lambda _, rotations, **__: [Time()] * len(rotations)
    )
    assert script.timed(problem, kernels, device, 0.1) == dict.fromkeys(kernels, 2.0)


def test_the_records_of_few_rows_can_be_measured_again(script):
    asked = script.asked(BENCHMARKS / "results" / "h200-few-rows.json")
    assert len(asked) == 8
    assert sum(len(labels) for _, labels in asked) == 168
