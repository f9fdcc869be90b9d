"""Time configurations of kernels at problems, in turn: `python benchmarks/configurations.py FILE`.

FILE has a line for each problem, {"shape": "16x12288x4096", "layout": "nt", "dtype": "bfloat16",
"configurations": ["gemm_wgmma:BM=16,BN=64,…", …]}, as the files that it writes have after their
line of environment, so that one repeats another. What dispatch chooses is timed beside them. Each
result is checked; configurations that do not take a problem are left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dispatch_regret import RESULTS
from this_gpu import this_gpu

from gemmkit.bench.suites import variants
from gemmkit.bench.timer import time_in_turn
from gemmkit.bench.workload import Workload
from gemmkit.devices.device import TimedDevice
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.jit.compiler import compile_many
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem, read_problem


def asked(path: Path) -> list[tuple[GemmProblem, list[str]]]:
    """The problems of a file, and the labels of their configurations."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "shape" in row:
            shape, dtype, layout = read_problem(row["shape"]), row["dtype"], row["layout"]
            (problem,) = variants([shape], [dtype], layouts=[layout])
            found.append((problem, row["configurations"]))
    return found


def taken(
    problem: GemmProblem, labels: Iterable[str], dispatcher: Dispatcher
) -> tuple[dict[str, Kernel], dict[str, str]]:
    """The kernels by label that take a problem, dispatch's choice first, each with its
    configuration as its default; and why the others do not."""
    choice = dispatcher.choose(problem)
    found, refused = {}, {}
    for label in dict.fromkeys((f"{choice.kernel.name}:{choice.config}", *labels)):
        kernel = find_kernel(label)
        why = kernel.supports(problem, kernel.default, dispatcher.gpu)
        if why is None:
            found[label] = kernel
        else:
            refused[label] = why
    return found, refused


def timed(
    problem: GemmProblem, kernels: dict[str, Kernel], device: TimedDevice, seconds: float
) -> dict[str, float]:
    """Median microseconds by label, in turn; nan where a result is wrong."""
    gpu = device.spec
    plans = [kernel.plan(problem, kernel.default, gpu) for kernel in kernels.values()]
    workload = Workload(problem, device, 0)
    rotations, kept, right = [], [], []
    for label, plan, binary in zip(kernels, plans, compile_many(plans, gpu.arch), strict=True):
        _, verdict = workload.run(binary, plan)
        if verdict.correct:
            right.append(label)
            rotations.append(workload.rotation(device, binary, plan))
            kept += workload.kept
    times = time_in_turn(device, rotations, seconds=seconds, kept=kept)
    medians = {label: time.median for label, time in zip(right, times, strict=True)}
    return {label: medians.get(label, float("nan")) for label in kernels}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--results", type=Path, help="by default results/<gpu>-configurations.json")
    parser.add_argument("--seconds", type=float, default=1.5, help="of samples a problem")
    arguments = parser.parse_args()
    device = this_gpu()
    dispatcher = Dispatcher(device.spec)
    path = arguments.results or RESULTS / f"{device.spec.key}-configurations.json"
    lines: list[dict[str, Any]] = [
        {"environment": device.environment(), "command": " ".join(["python", *sys.argv])}
    ]
    wrong = 0
    for problem, labels in asked(arguments.file):
        kernels, refused = taken(problem, labels, dispatcher)
        times = timed(problem, kernels, device, arguments.seconds)
        for label, why in refused.items():
            print(f"left out: {label}: {why}")
        for label, time in sorted(times.items(), key=lambda each: each[1]):
            print(f"{problem.shape:18} {problem.layout} {time:9.2f} µs  {label}", flush=True)
        wrong += sum(time != time for time in times.values())
        lines.append(
            {
                "shape": problem.shape,
                "layout": problem.layout,
                "dtype": problem.dtype,
                "configurations": list(times),
                "times": times,
            }
        )
        text = "\n".join(json.dumps(each) for each in lines)
        path.write_text(f"{text}\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
