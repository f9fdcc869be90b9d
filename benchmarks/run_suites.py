"""Compare gemmkit with cuBLAS, PyTorch and Triton on the GPU of this machine, over the suites.

It writes `results/<gpu>-bench.json`, one record per line as each is done, from which
`render_readme.py` makes the README's performance part. An interrupted run is taken up again with
`--resume`. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from run_gpu import Writer

from gemmkit.bench.compare import Task, compare
from gemmkit.bench.run import problem_record
from gemmkit.bench.suites import find_suite
from gemmkit.cli.output import take_up
from gemmkit.devices.choose import open_device
from gemmkit.dispatch.choose import choose
from gemmkit.kernels.layouts import read_layout
from gemmkit.problem import ITEM_BYTES, Dtype, GemmProblem
from gemmkit.report.comparison import comparison_tables

HERE = Path(__file__).resolve().parent
SUITES = "square,k1024,off-tile,next-tile,one-past,skinny,fused"
PEERS = "cublas,torch,triton"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--suites", default=SUITES)
    parser.add_argument("--against", default=PEERS)
    parser.add_argument("--layouts", default="NN", help="each suite in these, such as NT,TN,TT")
    parser.add_argument("--dtype", default="float32", choices=ITEM_BYTES)
    parser.add_argument("--name", default="bench", help="of the results: <gpu>-<name>.json")
    parser.add_argument("--seconds", type=float, default=1.0, help="of samples a problem")
    parser.add_argument("--resume", action="store_true", help="add what the file lacks")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = open_device("cuda")
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{device.spec.key}-{arguments.name}.json"
    done = take_up(str(path)) if arguments.resume else []
    covered = {(record.suite, record.problem) for record in done}
    tasks = [
        Task(problem, suite)
        for suite in arguments.suites.split(",")
        for layout in arguments.layouts.split(",")
        for problem in _problems(suite, layout, arguments.dtype)
        if (suite, problem_record(problem)) not in covered
    ]
    start = time.monotonic()
    with path.open("a" if arguments.resume else "w", encoding="utf-8") as file:
        done += compare(
            tasks,
            lambda problem, gpu: (choose(problem, gpu),),
            device=device,
            against=arguments.against.split(","),
            seconds=arguments.seconds,
            progress=Writer(file, arguments.commit),
        )
    for table in comparison_tables(done):
        print(table.to_text(), flush=True)
    print(f"{len(tasks)} problems in {time.monotonic() - start:.0f} s")
    return 0 if all(record.correct for record in done) else 1


def _problems(suite: str, layout: str, dtype: Dtype) -> Iterator[GemmProblem]:
    """Those of a suite in another layout and type."""
    for each in find_suite(suite):
        yield replace(each, dtype=dtype, out_dtype=None).laid_out(read_layout(layout))


if __name__ == "__main__":
    sys.exit(main())
