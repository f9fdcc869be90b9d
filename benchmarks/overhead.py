"""Host time of a warm call of `gemmkit.matmul` on CUDA tensors, beside PyTorch's, in one process.

    python benchmarks/overhead.py [--sizes 64,256,1024] [--rounds 50] [--calls 200]

A round times so many calls of each multiply in turn, none of which is waited for, and then waits
for the GPU; what counts is the median over the rounds. It writes `results/<gpu>-overhead.json`, one
record per line: microseconds of host time a call, and the ratio to `torch.mm` called the same way.
The exit status is 1 if a ratio is above the goal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import gemmkit
from gemmkit.devices.choose import open_device

HERE = Path(__file__).resolve().parent

# What a call may cost of torch.mm's host time.
GOAL = 1.5

Multiply = Callable[[], Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", default="64,256,1024", help="N of N³, comma-separated")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--calls", type=int, default=200, help="calls of each in a round")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = open_device("cuda")
    environment = device.environment() | {
        "torch": torch.__version__,
        "command": " ".join(["python", *sys.argv]),
        **({"commit": arguments.commit} if arguments.commit else {}),
    }
    path = arguments.results / f"{device.spec.key}-overhead.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    worst = 0.0
    with path.open("w", encoding="utf-8") as file:
        for size in map(int, arguments.sizes.split(",")):
            for way, callables in ways(size).items():
                check(callables)
                times = host_times(callables, arguments.rounds, arguments.calls)
                reference = times["torch.mm"]["median_us"]
                for entry in times.values():
                    entry["ratio"] = round(entry["median_us"] / reference, 3)
                worst = max(worst, times["gemmkit.matmul"]["ratio"])
                record = {
                    "size": size,
                    "way": way,
                    "rounds": arguments.rounds,
                    "calls": arguments.calls,
                    "host": times,
                    "environment": environment,
                }
                print(json.dumps(record), file=file, flush=True)
                told = ", ".join(
                    f"{name} {entry['median_us']:.2f} µs ({entry['ratio']:.2f})"
                    for name, entry in times.items()
                )
                print(f"{size}^3 {way}: {told}", flush=True)
    print(f"{path}: at worst {worst:.2f} times torch.mm, the goal is {GOAL}")
    return 0 if worst <= GOAL else 1


def ways(size: int) -> Mapping[str, Mapping[str, Multiply]]:
    """The callables of each way to call: all of one compute the same."""
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(size, size, device="cuda", generator=generator) for _ in range(2))
    bias = torch.randn(size, device="cuda", generator=generator)
    out, transposed = torch.empty_like(a), b.T
    return {
        "new result": {
            "torch.mm": lambda: torch.mm(a, b),
            "torch.matmul": lambda: torch.matmul(a, b),
            "gemmkit.matmul": lambda: gemmkit.matmul(a, b),
        },
        "out": {
            "torch.mm": lambda: torch.mm(a, b, out=out),
            "torch.matmul": lambda: torch.matmul(a, b, out=out),
            "gemmkit.matmul": lambda: gemmkit.matmul(a, b, out=out),
        },
        "B transposed": {
            "torch.mm": lambda: torch.mm(a, transposed),
            "gemmkit.matmul": lambda: gemmkit.matmul(a, transposed),
        },
        "bias and ReLU": {
            # Two calls, for PyTorch has no one that is public; the first is what counts.
            "torch.mm": lambda: torch.mm(a, b),
            "torch.addmm, relu_": lambda: torch.addmm(bias, a, b).relu_(),
            "gemmkit.matmul": lambda: gemmkit.matmul(a, b, bias=bias, epilogue="bias+relu"),
        },
    }


def check(callables: Mapping[str, Multiply]) -> None:
    """Have looked whether gemmkit's result is near the last of PyTorch's.

    Raises:
        AssertionError: it is not.
    """
    results = [multiply().clone() for multiply in callables.values()]
    torch.testing.assert_close(results[-1], results[-2], rtol=1e-3, atol=1e-3)


def host_times(
    callables: Mapping[str, Multiply], rounds: int, calls: int
) -> dict[str, dict[str, float]]:
    """Median and quintiles of the host's microseconds per call, the callables taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in callables}
    for multiply in callables.values():
        for _ in range(calls):
            multiply()
        torch.cuda.synchronize()
    for _ in range(rounds):
        for name, multiply in callables.items():
            started = time.perf_counter_ns()
            for _ in range(calls):
                multiply()
            spent = time.perf_counter_ns() - started
            torch.cuda.synchronize()
            found[name].append(spent / calls / 1e3)
    return {
        name: {
            "median_us": round(statistics.median(times), 3),
            "p20_us": round(statistics.quantiles(times, n=5)[0], 3),
            "p80_us": round(statistics.quantiles(times, n=5)[3], 3),
        }
        for name, times in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
