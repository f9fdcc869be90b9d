"""Read Nsight Compute's counters of small programs of asynchronous instructions.

Run it on a machine with a GPU of compute capability 9.0, `ncu` and leave to read its counters; it
writes `results/<gpu>-ncu-asynchronous.json`, which `tests/emulator/test_asynchronous_ncu.py` holds
the emulator against. The programs run by the helpers of `tests/emulator`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests" / "emulator"
sys.path[:0] = [str(HERE), str(TESTS)]

from asynchronous_programs import programs, tensor_copies  # noqa: E402
from compare_ncu import read_rows, run  # noqa: E402

from gemmkit.emulator.counters.asynchronous_metrics import ASYNCHRONOUS_METRICS  # noqa: E402

WANTED = tuple(each.name for each in ASYNCHRONOUS_METRICS if not each.name.startswith("ptx__"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--ncu", default="ncu", help="the profiler's command")
    parser.add_argument("--launch", action="store_true", help="launch the programs, nothing else")
    arguments = parser.parse_args()
    if arguments.launch:
        for name, gpu in launches():
            print(json.dumps({"name": name, "gpu": gpu}), flush=True)
        return
    check_metrics(run([arguments.ncu, "--query-metrics"]))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        printed = run([
            arguments.ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control",
            "none", "--log-file", str(log), "--metrics", ",".join(WANTED),
            sys.executable, __file__, "--launch",
        ])  # fmt: skip
        table = log.read_text("utf-8").splitlines()
    launched = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    (gpu,) = {each["gpu"] for each in launched}
    found = {
        "gpu": gpu,
        "profiler": run([arguments.ncu, "--version"]).strip().splitlines()[-1],
        "command": "python benchmarks/compare_ncu_asynchronous.py",
        "launches": measured([each["name"] for each in launched], table),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    key = "".join(each for each in gpu.lower() if each.isalnum())
    path = arguments.results / f"{key}-ncu-asynchronous.json"
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{len(launched)} launches, {len(WANTED)} metrics each: {path}")


def check_metrics(query: str) -> None:
    """End this program if the profiler does not know a metric, by its `--query-metrics`."""
    known = {line.split()[0] for line in query.splitlines() if line.strip()}
    unknown = [name for name in WANTED if name.removesuffix(".sum") not in known]
    if unknown:
        raise SystemExit(f"this profiler does not have for this GPU: {', '.join(unknown)}")


def measured(names: Sequence[str], table: Iterable[str]) -> list[dict[str, object]]:
    """The launches of these names, in their order, with the metrics that are not 0 in ncu's table
    of raw values."""
    rows = read_rows(table, WANTED)
    if len(rows) != len(names):
        raise SystemExit(f"ncu saw {len(rows)} kernels where {len(names)} were launched")
    return [
        {"name": name, "metrics": {key: int(row[key]) for key in sorted(row) if row[key]}}
        for name, (_, row) in zip(names, rows, strict=True)
    ]


def launches() -> Iterator[tuple[str, str]]:
    """Launch each program on the GPU; its name, and the GPU's, once it has ended."""
    from device_copies import run_on
    from gpu_executor import GPU

    from gemmkit.devices.cuda import CudaDevice
    from gemmkit.devices.tensor_maps import driver_encoded

    device = CudaDevice()
    for program in programs():
        program.run(GPU)
        yield program.name, device.spec.name
    for name, case, how in tensor_copies():
        run_on(device, driver_encoded, case, stores=how.stores, reduction=how.reduction)
        yield name, device.spec.name


if __name__ == "__main__":
    main()
