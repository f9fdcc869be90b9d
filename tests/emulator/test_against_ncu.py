"""The emulator's counts of global memory equal what Nsight Compute read on a GPU."""

import json
from pathlib import Path

import pytest

from gemmkit.bench.run import run_kernel
from gemmkit.devices.choose import open_device
from gemmkit.kernels.ladder import find_kernel
from gemmkit.problem import GemmProblem

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
FILES = sorted(RESULTS.glob("*-ncu.json"))


def launches():
    measured = [json.loads(path.read_text("utf-8")) for path in FILES]
    return [
        pytest.param(each["gpu"], launch, id=f"{each['gpu']}-{launch['kernel']}-{launch['shape']}")
        for each in measured
        for launch in each["launches"]
    ]


def test_there_are_measurements():
    assert FILES, "benchmarks/compare_ncu.py has not been run, or its results are not committed"


@pytest.mark.parametrize(("gpu", "launch"), launches())
def test_global_requests_and_sectors(gpu, launch):
    kernel = find_kernel(launch["kernel"])
    record = run_kernel(
        kernel,
        GemmProblem.from_shape(launch["shape"]),
        open_device("emulator", gpu),
        config=kernel.configure(launch["config"]),
    )
    assert record.correct
    held = {
        name: value
        for name, value in launch["metrics"].items()
        if name.startswith(("l1tex__t_requests", "l1tex__t_sectors"))
    }
    assert len(held) >= 4, "requests and sectors of loads and of stores"
    assert {name: record.counters.get(name) for name in held} == held
