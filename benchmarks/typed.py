"""Time every tile that dispatch has for other types than fp32, and PyTorch, on this machine's GPU.

It writes `results/<gpu>-typed.json`, a line per problem, to which `dispatch_fit.py` fits the costs
of each tile. Contenders are checked against float64 and timed in turn by
replaying CUDA graphs, over the same arrays again and again, which the L2 cache keeps if they are
small. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from gemmkit.bench.timer import Contender, time_in_turn
from gemmkit.devices.choose import open_device
from gemmkit.devices.device import Device, TimedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.dispatch.candidates import Candidate, candidates_for
from gemmkit.dispatch.choose import choose
from gemmkit.jit.compiler import compile_many
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import Dtype, GemmProblem
from gemmkit.record import TimeRecord

RESULTS = Path(__file__).resolve().parent / "results"
DTYPES: tuple[Dtype, ...] = ("float64", "float16", "bfloat16")
SHAPES = "256,512,1024,2048,4096,64x64x4096,512x4096x4096"
# Relative to the sums of |a|·|b|: several roundings of each type's own, and of its results.
BOUNDS: dict[Dtype, float] = {"float64": 2**-46, "float16": 2**-10, "bfloat16": 2**-7}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One way to a product; `config` is that of a kernel of gemmkit's."""

    name: str
    config: dict[str, int]
    correct: bool
    time_us: TimeRecord
    tflops: float


class TypedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A product of a type and layout; `chosen` is the number of what dispatch takes."""

    dtype: Dtype
    layout: str
    shape: str
    chosen: int
    entries: list[Entry]
    environment: dict[str, Any]


class Operand:
    """What `bind_arguments` needs of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.address, self.nbytes = tensor.data_ptr(), tensor.nbytes


def measure(
    problem: GemmProblem, device: TimedDevice, seconds: float, environment: dict[str, Any]
) -> TypedRecord:
    """Check all contenders of a product, then time them in turn."""
    dtype = getattr(torch, problem.dtype)
    a = torch.randn(problem.m, problem.k, device="cuda").to(dtype)
    b = torch.randn(problem.k, problem.n, device="cuda").to(dtype)
    out = torch.empty(problem.m, problem.n, device="cuda", dtype=dtype)
    # As they lie in memory, and as views of that.
    left = a.T.contiguous() if problem.transa else a
    right = b.T.contiguous() if problem.transb else b
    views = left.T if problem.transa else left, right.T if problem.transb else right
    exact = a.double() @ b.double()
    bound = BOUNDS[problem.dtype] * (a.double().abs() @ b.double().abs())
    ready = list(own_contenders(problem, device, left, right, out))

    def multiply(stream: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.handle))):
            torch.mm(*views, out=out)

    ready.append(("torch.mm", None, [multiply]))
    correct = []
    for _, _, contender in ready:
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        contender[0](device.stream)
        torch.cuda.synchronize()
        correct.append(bool(((out.double() - exact).abs() <= bound).all()))
    times = time_in_turn(device, [each for *_, each in ready], seconds=seconds)
    chosen = choose(problem, device.spec, store=None)
    picked = chosen.kernel.name, chosen.config
    return TypedRecord(
        dtype=problem.dtype,
        layout=problem.layout,
        shape=problem.shape,
        chosen=[(name, config) for name, config, _ in ready].index(picked),
        entries=[
            Entry(
                name=name,
                config=config.as_dict() if config else {},
                correct=right,
                time_us=time,
                tflops=problem.flops / time.median / 1e6,
            )
            for (name, config, _), right, time in zip(ready, correct, times, strict=True)
        ],
        environment=environment,
    )


def own_contenders(
    problem: GemmProblem, device: TimedDevice, a: Any, b: Any, out: Any
) -> Iterator[tuple[str, TileConfig | None, Contender]]:
    """Every tile that takes the product."""
    found = plans(problem, device)
    binaries = compile_many([plan for _, plan in found], device.spec.arch)
    bound = bind_arguments(problem, Operands(Operand(a), Operand(b), Operand(out)))
    for (candidate, plan), binary in zip(found, binaries, strict=True):
        yield candidate.name, candidate.config, [device.work(binary, plan, bound)]


def plans(problem: GemmProblem, device: Device) -> list[tuple[Candidate, LaunchPlan]]:
    """Candidates that take the product, with their launches."""
    return [
        (each, each.kernel.plan(problem, each.config, device.spec))
        for each in candidates_for(device.spec)
        if each.kernel.supports(problem, each.config, device.spec) is None
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--shapes", default=SHAPES, help="N or MxNxK, comma-separated")
    parser.add_argument("--layouts", default="nn,nt,tn")
    parser.add_argument("--seconds", type=float, default=0.3, help="of samples a product")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = open_device("cuda")
    assert isinstance(device, TimedDevice)
    environment = device.environment() | {
        "torch": str(torch.__version__),
        "command": " ".join(["python", *sys.argv]),
        **({"commit": arguments.commit} if arguments.commit else {}),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    problems = [
        GemmProblem(shape.m, shape.n, shape.k, dtype=dtype, transa=x == "t", transb=y == "t")
        for dtype in DTYPES
        for shape in map(GemmProblem.from_shape, arguments.shapes.split(","))
        for x, y in arguments.layouts.split(",")
    ]
    compile_many([plan for each in problems for _, plan in plans(each, device)], device.spec.arch)
    right = True
    with (arguments.results / f"{device.spec.key}-typed.json").open("wb") as file:
        for problem in problems:
            record = measure(problem, device, arguments.seconds, environment)
            file.write(msgspec.json.encode(record) + b"\n")
            file.flush()
            right &= all(entry.correct for entry in record.entries)
            own, best = record.entries[record.chosen], record.entries[-1]
            fastest = min(each.time_us.median for each in record.entries[:-1])
            print(
                f"{record.dtype} {record.layout} {record.shape}: {own.name} {own.tflops:.1f} "
                f"TFLOP/s, {own.time_us.median / fastest:.3f} of the fastest tile's time, "
                f"torch.mm {best.tflops:.1f}",
                flush=True,
            )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
