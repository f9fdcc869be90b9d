"""Host time of warm calls of `matmul`, `grouped_matmul` and `ragged_matmul` beside PyTorch's.

    python benchmarks/overhead.py [--sizes 64,256,1024] [--products 16] [--rounds 50] [--calls 200]

All run in one process. A round times so many calls of each multiply in turn, none of which is
waited for, and then waits for the GPU; what counts is the median over the rounds. It writes
`results/<gpu>-overhead.json`, one record per line: microseconds of host time a call, and the ratio
to `torch.mm` called the same way, which for many products is once for each. Calls for many products
are fewer, so that `torch.mm` is called as often: CUDA's queue of launches is limited, and a full
one would make the host wait. The exit status is 1 if a ratio is above the goal; those of experts in
one matrix, in bfloat16, are to `torch._grouped_mm` and do not count for it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError:
    raise SystemExit("overhead.py compares with PyTorch, which is not installed") from None

from this_gpu import this_gpu

import gemmkit
from gemmkit.errors import GemmkitError

HERE = Path(__file__).resolve().parent

# What a call may cost of torch.mm's host time.
GOAL = 1.5

# What the ways begin with whose tokens lie in one matrix, and how many totals come in turn.
RAGGED = "rows of one matrix"
TOTALS = 4096

Multiply = Callable[[], Any]

# Of each way to call the callables by name: PyTorch's reference comes first, gemmkit's last.
Ways = Mapping[str, Mapping[str, Multiply]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", default="64,256,1024", help="N of N³, comma-separated")
    parser.add_argument("--products", type=int, default=16, help="products of a grouped call")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--calls", type=int, default=200, help="calls of each in a round")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = this_gpu()
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
            single = [(1, *each) for each in ways(size).items()]
            products = arguments.products
            grouped = [(products, *each) for each in grouped_ways(size, products).items()]
            ragged = [(products, *each) for each in ragged_ways(size, products).items()]
            for count, way, callables in single + grouped + ragged:
                tolerance = size**0.5 * 2**-6 if way.startswith(RAGGED) else 1e-3
                check(callables, tolerance)
                calls = max(1, arguments.calls // count)
                times = host_times(callables, arguments.rounds, calls)
                reference, *_, own = times.values()
                for entry in times.values():
                    entry["ratio"] = round(entry["median_us"] / reference["median_us"], 3)
                if not way.startswith(RAGGED):
                    worst = max(worst, own["ratio"])
                record = {
                    "size": size,
                    "way": way,
                    "products": count,
                    "rounds": arguments.rounds,
                    "calls": calls,
                    "host": times,
                    "environment": environment,
                }
                print(json.dumps(record), file=file, flush=True)
                told = ", ".join(
                    f"{name} {entry['median_us']:.2f} µs ({entry['ratio']:.2f})"
                    for name, entry in times.items()
                )
                print(f"{size}^3 {way}: {told}", flush=True)
    print(f"{path}: at worst {worst:.2f} times torch.mm; the goal is {GOAL}")
    return 0 if worst <= GOAL else 1


def ways(size: int) -> Ways:
    """For one product of size³: all callables of a way compute the same."""
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


def grouped_ways(size: int, count: int) -> Ways:
    """For `count` products in one call: of size³ each, and of experts with unequal numbers of rows.

    `torch._grouped_mm` is among the callables for experts where this PyTorch has it for float32.
    """
    generator = torch.Generator("cuda").manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    weights = random(count, size, size)
    bs = list(weights)
    cubes = list(random(count, size, size))
    outs = [torch.empty_like(each) for each in cubes]
    # From 1 to 2 * size - 1 in even steps: `size` on average.
    rows = [1 + 2 * (size - 1) * place // max(1, count - 1) for place in range(count)]
    tokens = random(sum(rows), size)
    experts = list(tokens.split(rows))
    ends = torch.tensor(rows, device="cuda").cumsum(0).to(torch.int32)

    def one_by_one(as_: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.mm(a, b) for a, b in zip(as_, bs, strict=True)]

    def one_by_one_into() -> list[torch.Tensor]:
        return [torch.mm(a, b, out=c) for a, b, c in zip(cubes, bs, outs, strict=True)]

    def in_one_call() -> torch.Tensor:
        return torch._grouped_mm(tokens, weights, offs=ends)

    return {
        f"{count} products": {
            "torch.mm, each": lambda: one_by_one(cubes),
            "gemmkit.grouped_matmul": lambda: gemmkit.grouped_matmul(cubes, bs),
        },
        f"{count} products, out": {
            "torch.mm, each": one_by_one_into,
            "gemmkit.grouped_matmul": lambda: gemmkit.grouped_matmul(cubes, bs, out=outs),
        },
        f"{count} experts": {
            "torch.mm, each": lambda: one_by_one(experts),
            **({"torch._grouped_mm": in_one_call} if runs(in_one_call) else {}),
            "gemmkit.grouped_matmul": lambda: gemmkit.grouped_matmul(experts, bs),
        },
    }


def ragged_ways(size: int, count: int) -> Ways:
    """For experts whose tokens lie in one matrix, `size` for each on average, with offsets on the
    GPU, in bfloat16: of the same number of tokens at each call, and of another at each.

    None where this PyTorch has no `torch._grouped_mm`, or this GPU no kernel that reads offsets.
    """
    generator = torch.Generator("cuda").manual_seed(2)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator).to(torch.bfloat16)

    weights, total = random(count, size, size), count * size
    tokens = random(total + TOTALS, size)
    ends = torch.tensor([size * (place + 1) for place in range(count)], device="cuda")
    ends = ends.to(torch.int32)
    same = tokens[:total]

    def in_turn(multiply: Callable[[torch.Tensor], torch.Tensor]) -> Multiply:
        # Rows past the last end are undefined.
        lengths = itertools.cycle(range(total, total + TOTALS))
        return lambda: multiply(tokens[: next(lengths)])[:total]

    def theirs(a: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, weights, offs=ends)

    def own(a: torch.Tensor) -> torch.Tensor:
        return gemmkit.ragged_matmul(a, weights, ends)

    if not (runs(lambda: theirs(same)) and runs(lambda: own(same))):
        return {}
    return {
        RAGGED: {
            "torch._grouped_mm": lambda: theirs(same),
            "gemmkit.ragged_matmul": lambda: own(same),
        },
        f"{RAGGED}, new totals": {
            "torch._grouped_mm": in_turn(theirs),
            "gemmkit.ragged_matmul": in_turn(own),
        },
    }


def runs(multiply: Multiply) -> bool:
    """Whether this PyTorch has the function, for these types and on this GPU."""
    try:
        multiply()
    except (AttributeError, NotImplementedError, RuntimeError, GemmkitError):
        return False
    return True


def check(callables: Mapping[str, Multiply], tolerance: float = 1e-3) -> None:
    """Check that gemmkit's result is near the last of PyTorch's.

    Raises:
        AssertionError: it is not.
    """
    *_, theirs, own = (joined(multiply()) for multiply in callables.values())
    torch.testing.assert_close(own, theirs, rtol=tolerance, atol=tolerance)


def joined(result: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of the result; those of many products one below the other."""
    return result.clone() if isinstance(result, torch.Tensor) else torch.cat(list(result))


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
