"""Time the emulator: rungs, sanitizers, compiling, loading from the cache, the library's products.

    python benchmarks/emulator.py [--sizes 256,512,1024] [--threads 1,2] [--only products]

Times are the best of several runs, the variants taken in turn; processor time is that of all
threads, summaries of counters included. It writes `results/emulator-<cpu>.json`;
`ns_per_warp_instruction` is per PTX instruction of one warp. Products are `gemmkit.matmul` of NumPy
arrays, N³ in fp32: medians of warm calls, and of the first call of a process with a warm disk
cache, from `import gemmkit` on (NumPy is imported before).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemmkit.cores import usable_cores
from gemmkit.devices.device import Launch, Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.host import cpu_model, host_environment, package_version
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.emulator import load
from gemmkit.gpu import find_board
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem

HERE = Path(__file__).resolve().parent
BOARD = find_board("rtx3090")
RUNGS: Mapping[str, Mapping[str, int]] = {
    "naive_uncoalesced": {},
    "naive": {},
    "shared_tiling": {},
    "coarsening_2d": {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8},
    "async_copy": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", default="256,512,1024", help="N of N³, comma-separated")
    parser.add_argument("--threads", default=f"1,{usable_cores()}", help="comma-separated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--only", choices=("launches", "sanitizers", "loads", "products"))
    arguments = parser.parse_args()
    sizes = [int(each) for each in arguments.sizes.split(",")]
    threads = sorted({int(each) for each in arguments.threads.split(",")})
    parts: dict[str, Callable[[], Any]] = {
        "launches": lambda: [
            run for size in sizes for run in launches(size, threads, arguments.repeats)
        ],
        "sanitizers": lambda: sanitizers(arguments.repeats),
        "loads": loads,
        "products": lambda: products(arguments.repeats),
    }
    key = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
    path = arguments.results / f"emulator-{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found["environment"] = host_environment() | {"llvmlite": package_version("llvmlite")}
    for part, measure in parts.items():
        if arguments.only in (None, part):
            found["runs" if part == "launches" else part] = measure()
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(path)


def launches(size: int, threads: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Seconds of each rung with each number of threads."""
    rows = []
    for name, changes in RUNGS.items():
        binary, plan, problem = planned(name, size, changes)
        seconds = dict.fromkeys(threads, float("inf"))
        processor = dict.fromkeys(threads, float("inf"))
        instructions = 0.0
        for _ in range(repeats):
            for count in threads:
                launch, used = launched(count, binary, plan, problem)
                instructions = launch.counters["ptx__inst_executed.sum"]
                seconds[count] = min(seconds[count], launch.emulation_seconds or 0.0)
                processor[count] = min(processor[count], used)
        for count in threads:
            row = {
                "kernel": name,
                "size": size,
                "threads": count,
                "seconds": round(seconds[count], 6),
                "processor_seconds": round(processor[count], 6),
                "warp_instructions": int(instructions),
                "ns_per_warp_instruction": round(1e9 * seconds[count] / instructions, 3),
                "times_one_thread": round(seconds[threads[0]] / seconds[count], 3),
            }
            print(f"{name:18s} {size:5d}^3 {count} threads {seconds[count]:8.4f} s", flush=True)
            rows.append(row)
    return rows


def sanitizers(repeats: int) -> dict[str, Any]:
    """How much slower each rung runs with sanitizers, 512³ in one thread, and the median of that.

    The two ways are taken in turn, and the fastest of each compared.
    """
    rows: list[dict[str, Any]] = []
    for name in cubic_rungs(512):
        binary, plan, problem = planned(name, 512, {})
        seconds = {False: float("inf"), True: float("inf")}
        for _ in range(repeats):
            for sanitize in seconds:
                launch, _ = launched(1, binary, plan, problem, sanitize=sanitize)
                assert not launch.findings
                seconds[sanitize] = min(seconds[sanitize], launch.emulation_seconds or 0.0)
        row = {
            "kernel": name,
            "seconds": round(seconds[False], 6),
            "sanitized_seconds": round(seconds[True], 6),
            "times": round(seconds[True] / seconds[False], 3),
        }
        print(f"{name:18s} sanitizers {row['times']:.2f} times", flush=True)
        rows.append(row)
    median = statistics.median(row["times"] for row in rows)
    print(f"{'median':18s} sanitizers {median:.2f} times", flush=True)
    return {"rungs": rows, "median_times": round(median, 3)}


def cubic_rungs(size: int) -> list[str]:
    """The rungs that multiply N³; some are for skinny products alone."""
    cube = GemmProblem(size, size, size)
    return [each.name for each in LADDER if each.supports(cube, each.configure({}), BOARD) is None]


def planned(
    name: str, size: int, changes: Mapping[str, int]
) -> tuple[Binary, LaunchPlan, GemmProblem]:
    kernel, problem = find_kernel(name), GemmProblem(size, size, size)
    plan = kernel.plan(problem, kernel.configure(changes), BOARD)
    return compile_plan(plan, BOARD.arch), plan, problem


def launched(
    threads: int,
    binary: Binary,
    plan: LaunchPlan,
    problem: GemmProblem,
    *,
    sanitize: bool = False,
) -> tuple[Launch, float]:
    """One launch, and the processor time of all threads in it."""
    device = EmulatedDevice(BOARD, threads=threads, sanitize=sanitize)
    rng = np.random.default_rng(0)
    size = problem.m
    a, b, c = (device.upload(rng.standard_normal((size, size), np.float32)) for _ in range(3))
    bound = bind_arguments(problem, Operands(a, b, c))
    scratch = Scratch.of(device, plan, bound)  # must outlive the launch
    arguments = bound | scratch.arguments
    started = time.process_time()
    launch = device.launch(binary, plan, arguments)
    return launch, time.process_time() - started


def loads() -> list[dict[str, Any]]:
    """Seconds to compile every rung for this host, and to load it again from the cache.

    The first compilation also makes the runtime's parts that the kernel calls.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in cubic_rungs(512):
            binary, _, _ = planned(name, 512, {})
            row: dict[str, Any] = {
                "kernel": name,
                "ptx_lines": binary.ptx.count("\n"),
            }
            for what in ("cold_seconds", "warm_seconds"):
                started = time.perf_counter()
                program = load(binary.ptx, binary.entry, cache_dir=Path(folder))
                row[what] = round(time.perf_counter() - started, 4)
            row["instructions"] = len(program.flow.forms)
            print(f"{name:18s} cold {row['cold_seconds']} s, warm {row['warm_seconds']} s")
            rows.append(row)
    return rows


FIRST = """
import time
import numpy as np
ones = np.ones((64, 64), np.float32)
started, processor = time.perf_counter(), time.process_time()
import gemmkit
gemmkit.matmul(ones, ones, device="emulator")
print(time.perf_counter() - started, time.process_time() - processor)
"""
PRODUCTS = (1, 64, 128, 256, 512, 1024)


def products(repeats: int) -> dict[str, Any]:
    """Seconds of products as the library's users call them."""
    from gemmkit import matmul

    warm = []
    for size in PRODUCTS:
        ones = np.ones((size, size), np.float32)
        seconds = []
        matmul(ones, ones, device="emulator")
        for _ in range(10 * repeats):
            started = time.perf_counter()
            matmul(ones, ones, device="emulator")
            seconds.append(time.perf_counter() - started)
        row = {
            "size": size,
            "median_seconds": round(statistics.median(seconds), 6),
            "least_seconds": round(min(seconds), 6),
        }
        print(f"product of {size:4d}^3 {1e3 * row['median_seconds']:8.2f} ms", flush=True)
        warm.append(row)
    runs = []
    for _ in range(1 + 2 * repeats):
        command = [sys.executable, "-c", FIRST]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(each) for each in done.stdout.split()])
    # The first of them may have filled caches.
    first, processor = (statistics.median(each) for each in zip(*runs[1:], strict=True))
    print(f"first product of a process {first:.3f} s, {processor:.3f} s of the processor")
    return {
        "warm": warm,
        "first_seconds": round(first, 4),
        "first_processor_seconds": round(processor, 4),
    }


if __name__ == "__main__":
    main()
