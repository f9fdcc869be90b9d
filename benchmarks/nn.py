"""Time gemmkit's layers in turn with PyTorch's own on the GPU of this machine, TF32 off.

It writes `results/<gpu>-nn.json`, one record per line, from which `render_nn.py` makes the table in
`docs/library.md`. Each layer is timed as CUDA graphs, which is what the GPU needs, and as calls one
after the other, where the host may be what takes longest. The exit status is 1 if a result is
wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import torch
from render_nn import LayerRecord, Part, table
from torch.nn import functional

from gemmkit import nn
from gemmkit.bench.timer import time_in_turn
from gemmkit.devices.choose import open_device

HERE = Path(__file__).resolve().parent
# Inputs of layers that run in turn lie apart by this much at least, beyond any L2 cache.
ROTATED_BYTES = 2**27
MOST_COPIES = 16
PROFILED_CALLS = 5
# How many times PyTorch's own error a right result may have; sums are ordered otherwise.
MOST_ERROR = 16.0

Way = Literal["graph", "calls"]
WAYS: tuple[Way, ...] = get_args(Way)
Layer = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A layer with the shapes of its arrays, gemmkit's function of them and PyTorch's.

    `theirs` gets what `prepared` makes of the arrays, by default the arrays themselves.
    """

    layer: str
    sizes: str
    shapes: Sequence[tuple[int, ...]]
    ours: Layer
    theirs: Layer
    flops: float
    scales: Sequence[float] = ()
    prepared: Callable[[list[torch.Tensor]], list[Any]] = list

    def arrays(self, seed: int, dtype: Any = torch.float32) -> list[torch.Tensor]:
        """Random inputs: activations of size 1, and weights as small as layers have them."""
        generator = torch.Generator("cuda").manual_seed(seed)
        scales = self.scales or [1.0] * len(self.shapes)
        return [
            (torch.randn(shape, device="cuda", generator=generator) * scale).to(dtype)
            for shape, scale in zip(self.shapes, scales, strict=True)
        ]


def linear(rows: int, k: int, n: int, activation: str, *, residual: bool = False) -> Case:
    after = {
        "none": lambda x: x,
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }[activation]

    def ours(x: Any, weight: Any, bias: Any, *added: Any) -> Any:
        more = added[0] if added else None
        return nn.linear(x, weight, bias, activation=activation, residual=more)

    def theirs(x: Any, weight: Any, bias: Any, *added: Any) -> Any:
        result = after(functional.linear(x, weight, bias))
        return result + added[0] if added else result

    shapes = [(rows, k), (n, k), (n,), *([(rows, n)] if residual else [])]
    text = f"{rows}x{k} -> {n}, {activation}" + (", residual" if residual else "")
    scales = [1.0, k**-0.5, 1.0, 1.0][: len(shapes)]
    return Case("linear", text, shapes, ours, theirs, 2.0 * rows * k * n, scales=scales)


def conv2d(
    images: int, channels: int, size: int, filters: int, taps: int, stride: int, method: str
) -> Case:
    padding = taps // 2

    def ours(x: Any, weight: Any, bias: Any) -> Any:
        options = {"stride": stride, "padding": padding, "activation": "relu"}
        return nn.conv2d(x, weight, bias, method=method, **options)

    def theirs(x: Any, weight: Any, bias: Any) -> Any:
        return functional.relu(functional.conv2d(x, weight, bias, stride, padding))

    out = (size + 2 * padding - taps) // stride + 1
    shapes = [(images, channels, size, size), (filters, channels, taps, taps), (filters,)]
    depth = channels * taps * taps
    text = f"{images}x{channels}x{size}x{size}, {filters} of {taps}x{taps}, stride {stride}"
    flops = 2.0 * images * filters * depth * out * out
    scales = [1.0, depth**-0.5, 1.0]
    return Case(f"conv2d, {method}", text, shapes, ours, theirs, flops, scales=scales)


def attention(batch: int, heads: int, tokens: int, size: int, *, causal: bool) -> Case:
    def ours(q: Any, k: Any, v: Any) -> Any:
        return nn.attention(q, k, v, causal=causal)

    def theirs(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    text = f"{batch}x{heads} heads, {tokens} tokens of {size}" + (", causal" if causal else "")
    shapes = [(batch, heads, tokens, size)] * 3
    flops = 4.0 * batch * heads * tokens * tokens * size
    return Case("attention", text, shapes, ours, theirs, flops)


def recurrent(kind: Literal["lstm", "gru"], steps: int, batch: int, size: int) -> Case:
    gates = {"lstm": 4, "gru": 3}[kind]

    def ours(x: Any, *weights: Any) -> Any:
        return getattr(nn, kind)(x, None, [weights])[0]

    def prepared(arrays: list[torch.Tensor]) -> list[Any]:
        x, *weights = arrays
        module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](size, size)
        module.to(x)
        for parameter, values in zip(module.parameters(), weights, strict=True):
            parameter.data.copy_(values)
        # In one piece, as cuDNN wants them.
        module.flatten_parameters()
        return [x, module]

    def theirs(x: Any, module: Any) -> Any:
        return module(x)[0]

    rows = gates * size
    shapes = [(steps, batch, size), (rows, size), (rows, size), (rows,), (rows,)]
    scales = [1.0, *[size**-0.5] * 4]
    text = f"{steps} steps of {batch}x{size}"
    flops = 4.0 * steps * batch * rows * size
    return Case(kind, text, shapes, ours, theirs, flops, scales, prepared)


CASES = [
    linear(64, 4096, 4096, "none"),
    linear(4096, 1024, 4096, "gelu"),
    linear(4096, 4096, 1024, "none", residual=True),
    linear(8192, 2048, 2048, "relu"),
    *(
        conv2d(*sizes, method)
        for sizes in (
            (32, 3, 224, 64, 7, 2),
            (32, 64, 56, 64, 3, 1),
            (32, 128, 28, 128, 3, 1),
            (32, 256, 14, 256, 3, 1),
            (32, 256, 56, 64, 1, 1),
        )
        for method in ("im2col", "implicit")
    ),
    attention(16, 16, 512, 64, causal=False),
    attention(8, 16, 1024, 64, causal=True),
    recurrent("lstm", 64, 64, 512),
    recurrent("gru", 64, 64, 512),
]


class Torch:
    """What `time_in_turn` needs of a device, by PyTorch's streams, graphs and events."""

    stream = None

    def __init__(self, way: Way) -> None:
        self._way = way

    def record(self, works: Sequence[Any], kept: Sequence[object] = ()) -> Replayed:
        """The works as one graph, or as they are."""
        if self._way == "calls":
            return Replayed(lambda: [work(None) for work in works], kept)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for work in works:
                work(None)
        return Replayed(graph.replay, [graph, kept])


class Replayed:
    """Work that is run again and again on the current stream."""

    def __init__(self, run: Callable[[], object], kept: object) -> None:
        self._run, self._kept = run, kept
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def microseconds(self) -> float:
        """Run it once more and wait: the time from its first launch to the end of its last."""
        self._start.record()
        self._run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3


def measure(case: Case, way: Way, seconds: float, environment: dict[str, Any]) -> LayerRecord:
    """Check a layer and PyTorch's against float64, and time them in turn."""
    exact = case.theirs(*case.prepared(case.arrays(0, torch.float64)))
    largest = exact.abs().max().item()
    nbytes = sum(array.nbytes for array in case.arrays(0))
    copies = max(1, min(MOST_COPIES, ROTATED_BYTES // nbytes))
    inputs = [case.arrays(seed) for seed in range(copies)]
    entrants = [(case.ours, inputs), (case.theirs, [case.prepared(each) for each in inputs])]
    result_bytes = exact.numel() * inputs[0][0].itemsize
    error, torch_error = (
        (layer(*given[0]).double() - exact).abs().max().item() / largest
        for layer, given in entrants
    )
    del exact
    contenders = [
        [lambda _, layer=layer, arrays=arrays: layer(*arrays) for arrays in given]
        for layer, given in entrants
    ]
    stream = torch.cuda.Stream() if way == "graph" else None
    with torch.cuda.stream(stream) if stream else nullcontext():
        # Each once outside of a recording, so that what a first call makes is there.
        for contender in contenders:
            for work in contender:
                work(None)
        ours, theirs = time_in_turn(Torch(way), contenders, seconds=seconds)
    return LayerRecord(
        layer=case.layer,
        sizes=case.sizes,
        way=way,
        correct=bool(error <= MOST_ERROR * max(torch_error, 2.0**-24)),
        error=error,
        torch_error=torch_error,
        time_us=ours,
        torch_us=theirs,
        speedup=theirs.median / ours.median,
        tflops=case.flops / ours.median / 1e6,
        minimal_bytes=nbytes + result_bytes,
        parts={},
        torch_parts={},
        environment=environment,
    )


def with_parts(records: Sequence[LayerRecord], case: Case) -> list[LayerRecord]:
    """Records of a case with the kernels of the layer and of PyTorch's."""
    arrays = case.arrays(0)
    theirs = case.prepared(arrays)
    parts = kernels_of(lambda: case.ours(*arrays))
    torch_parts = kernels_of(lambda: case.theirs(*theirs))
    return [msgspec.structs.replace(each, parts=parts, torch_parts=torch_parts) for each in records]


def kernels_of(call: Callable[[], object]) -> dict[str, Part]:
    """The kernels of a call by name, copies among them, the longest first."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_CALLS):
            call()
        torch.cuda.synchronize()
    found: defaultdict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[_plain(event.name)].append(event.time_range.elapsed_us())
    parts = {
        name: Part(len(times) / PROFILED_CALLS, sum(times) / PROFILED_CALLS)
        for name, times in found.items()
    }
    return dict(sorted(parts.items(), key=lambda each: -each[1].us))


def _plain(name: str) -> str:
    """`void a::(anonymous namespace)::f<4>(float*)` as `f`."""
    bare = name.replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    return bare.removeprefix("void ").rpartition("::")[2].strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--layers", default="", help="parts of layers' names, comma-separated")
    parser.add_argument("--seconds", type=float, default=0.5, help="of samples a layer and way")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    # cuDNN tries its algorithms and keeps the fastest.
    torch.backends.cudnn.benchmark = True
    device = open_device("cuda")
    environment = device.environment() | {
        "torch": str(torch.__version__),
        "cudnn": torch.backends.cudnn.version(),
        "command": " ".join(["python", *sys.argv]),
        **({"commit": arguments.commit} if arguments.commit else {}),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    wanted = arguments.layers.split(",")
    cases = [case for case in CASES if any(each in case.layer for each in wanted)]
    measured: list[tuple[Case, list[LayerRecord]]] = []
    path = arguments.results / f"{device.spec.key}-nn.json"
    with torch.inference_mode():
        with path.open("w", encoding="utf-8") as file:
            for case in cases:
                measured.append((case, []))
                for way in WAYS:
                    record = measure(case, way, arguments.seconds, environment)
                    print(record.to_json(), file=file, flush=True)
                    measured[-1][1].append(record)
                    print(
                        f"{record.layer:16} {record.sizes:42} {way:5} "
                        f"{'right' if record.correct else 'WRONG'}  "
                        f"{record.time_us.median:9.1f} µs  {record.tflops:5.1f} TFLOP/s  "
                        f"{record.speedup:.2f} x PyTorch",
                        flush=True,
                    )
        # The profiler slows down what runs beside it, so it comes last.
        records = [record for case, each in measured for record in with_parts(each, case)]
    path.write_text("".join(record.to_json() + "\n" for record in records), "utf-8")
    print(table(records).to_text().plain)
    return 0 if all(record.correct for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
