"""Speed at the board's power limit: `python benchmarks/sustained.py --results FILE`.

Each product runs for some seconds in replays of a CUDA graph, after a rest: the first replays are
the burst, the median of the second half is the sustained speed. gemmkit and PyTorch (cuBLAS) follow
each other on the same random normal operands, of fp32 in each precision and of fp8. The clock and
the temperature are read after the last replay. It needs a GPU, and PyTorch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cuda.core import Device

import gemmkit
from gemmkit.devices.management import management_probes

REPLAYED, REST_SECONDS = 4, 3.0
SENSORS = ("sm_clock_mhz", "temperature_c")

Product = Callable[[], object]


def timed(product: Product, seconds: float) -> tuple[float, float, dict[str, float]]:
    """Microseconds of a product at first and sustained, and what the board's sensors say then."""
    product()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPLAYED):
            product()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replay() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / REPLAYED

    torch.cuda.synchronize()
    time.sleep(REST_SECONDS)
    first = min(replay() for _ in range(2))
    late: list[float] = []
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        duration = replay()
        if passed > seconds / 2:
            late.append(duration)
    device = Device()
    device.set_current()
    probes = management_probes(device.default_stream)
    sensors = {name: probes[name]() for name in SENSORS if name in probes}
    return first, statistics.median(late), sensors


def products(size: int) -> Iterator[tuple[str, str, Product]]:
    """What is multiplied, by whom, and how."""
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    out = torch.empty(size, size, device="cuda")
    for precision in ("fp32", "tf32"):
        yield (
            precision,
            "gemmkit",
            lambda: gemmkit.matmul(a, b, out=out, precision=precision),  # noqa: B023
        )
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        yield precision, "torch", lambda: torch.mm(a, b, out=out)
    torch.backends.cuda.matmul.allow_tf32 = False
    narrow, turned = (each.to(torch.float8_e4m3fn) for each in (a, b))
    half = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)
    one = torch.ones((), device="cuda")
    for name, fast in (("fp8", False), ("fp8, fast accumulation", True)):
        yield (
            name,
            "gemmkit",
            lambda: gemmkit.matmul(
                narrow,
                turned.T,
                out=half,
                precision="fast" if fast else "ieee",  # noqa: B023
            ),
        )
        yield (
            name,
            "torch",
            lambda: torch._scaled_mm(
                narrow,
                turned.T,
                scale_a=one,
                scale_b=one,
                out_dtype=torch.bfloat16,
                use_fast_accum=fast,  # noqa: B023
            ),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--seconds", type=float, default=3.0, help="that each product runs")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for size in arguments.sizes:
        for name, library, product in products(size):
            first, sustained, sensors = timed(product, arguments.seconds)
            row: dict[str, Any] = {"size": size, "product": name, "library": library}
            for key, duration in (("first", first), ("sustained", sustained)):
                row[f"{key}_tflops"] = round(2 * size**3 / duration / 1e6, 1)
            rows.append(row | sensors)
            print(json.dumps(rows[-1]), flush=True)
    environment = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gemmkit": gemmkit.__version__,
        "command": " ".join(["python benchmarks/sustained.py", *sys.argv[3:]]),
    }
    text = json.dumps({"environment": environment, "rows": rows}, indent=1)
    arguments.results.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
