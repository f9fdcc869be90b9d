"""Measure the ladder and the sweep on the GPU of this machine.

It writes `results/<gpu>-ladder.json` and `results/<gpu>-sweep.json`, one record per line, from
which `render_readme.py` makes a table and plots of `docs/results.md`; with `--dtype bf16`, the
rungs for tensor cores, `results/<gpu>-bf16-ladder.json` alone. The exit status is 1 if a result is
wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import IO

import msgspec
from this_gpu import this_gpu

from gemmkit import Kernel, Progress, Record, ladder, sweep
from gemmkit.bench.sweep import KERNELS, SIZES
from gemmkit.devices.device import Device
from gemmkit.problem import GemmProblem
from gemmkit.report.tables import ladder_table, sweep_table

HERE = Path(__file__).resolve().parent


class Writer(Progress):
    """Writes each record as it comes, with the command that made it."""

    def __init__(self, file: IO[str], commit: str | None) -> None:
        self._file = file
        self._added = {"command": " ".join(["python", *sys.argv])}
        if commit is not None:
            self._added["commit"] = commit

    def opened(self, device: Device, note: str) -> None:
        print(f"{device.spec.name} {note}", flush=True)

    def skipped(self, kernel: Kernel, problem: GemmProblem, reason: str) -> None:
        print(f"left out: {kernel.name} at {problem.shape}: {reason}", flush=True)

    def note(self, line: str) -> None:
        print(line, flush=True)

    def finished(self, record: Record) -> None:
        environment = {**record.environment, **self._added}
        line = msgspec.structs.replace(record, environment=environment).to_json()
        print(line, file=self._file, flush=True)
        verdict = "right" if record.correct else f"WRONG: {record.check}"
        ratio = record.ratio_to_cublas
        compared = "" if ratio is None else f", {ratio:.3f} x cuBLAS"
        wrong = [each.name for each in record.peers if not each.correct]
        compared += f", WRONG: {', '.join(wrong)}" if wrong else ""
        problem = record.problem
        words = [record.suite, problem.shape]
        if record.layer is not None:
            words[1] = record.layer.sizes
        elif (problem.types, problem.layout, problem.epilogue) != ("fp32", "nn", "none"):
            words += [problem.types, problem.layout, problem.epilogue]
        where = " ".join(filter(None, words))
        print(f"{record.kernel} {where}: {verdict}{compared}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--sizes", default="1024,2048,4096", help="of the ladder, M = N = K")
    parser.add_argument("--sweep-sizes", default=",".join(map(str, SIZES)), help="M = N")
    parser.add_argument("--sweep-kernels", default=",".join(KERNELS))
    parser.add_argument("--dtype", help="of A and B, by default fp32: the ladder's alone")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = this_gpu()
    arguments.results.mkdir(parents=True, exist_ok=True)

    records: list[Record] = []
    dtype = arguments.dtype
    name = f"{device.spec.key}-{dtype}-ladder" if dtype else f"{device.spec.key}-ladder"
    with (arguments.results / f"{name}.json").open("w", encoding="utf-8") as file:
        for size in _numbers(arguments.sizes):
            writer = Writer(file, arguments.commit)
            found = ladder(size, device=device, dtype=dtype, progress=writer)
            fused = {"kernels": [found[-1].kernel], "epilogue": "bias+relu"}
            found += ladder(size, device=device, dtype=dtype, progress=writer, **fused)
            print(ladder_table(found).to_text(), flush=True)
            records += found
    if dtype:
        return 0 if all(record.correct for record in records) else 1
    with (arguments.results / f"{device.spec.key}-sweep.json").open("w", encoding="utf-8") as file:
        found = sweep(
            _numbers(arguments.sweep_sizes),
            kernels=arguments.sweep_kernels.split(","),
            device=device,
            progress=Writer(file, arguments.commit),
        )
        print(sweep_table(found).to_text(), flush=True)
    return 0 if all(record.correct for record in records + found) else 1


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
