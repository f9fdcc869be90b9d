"""Compare gemmkit with its peers on the GPU of this machine, over suites of products and layers.

It writes `results/<gpu>-<name>.json`, one record per line as each is done; from `<gpu>-bench.json`
`render_readme.py` makes `docs/results.md`, and `render_suites.py` tables of others. An
interrupted run is taken up again with `--resume`. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from run_gpu import Writer
from this_gpu import this_gpu

from gemmkit import nn
from gemmkit.bench.compare import Choice, compare
from gemmkit.bench.suites import variants
from gemmkit.bench.tasks import Task, left, suite_tasks
from gemmkit.cli.output import read_existing
from gemmkit.dispatch.choose import Choice as Chosen
from gemmkit.dispatch.choose import Dispatcher, choose
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.layouts import read_layout
from gemmkit.problem import GemmProblem
from gemmkit.report.comparison import comparison_tables
from gemmkit.report.sustained import sustained_tables
from gemmkit.units import read_shape

HERE = Path(__file__).resolve().parent
SUITES = "square,k1024,off-tile,next-tile,one-past,skinny,fused"
PEERS = "cublas,torch,linear,triton"


def parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def chosen(problem: GemmProblem, gpu: GpuSpec) -> Sequence[Choice]:
    return (choose(problem, gpu),)


def every_tile(problem: GemmProblem, gpu: GpuSpec) -> Sequence[Choice]:
    """What dispatch takes, then every other configuration that it has for types and layouts."""
    asked = Dispatcher(gpu, None)
    first = asked.choose(problem)
    found: list[Choice] = [first]
    for each in asked.ranked(problem):
        taken, microseconds = each.costed, each.estimate.microseconds
        if (taken.kernel, taken.config) != (first.kernel, first.config):
            other = Chosen(taken.kernel, taken.config, "a candidate", "heuristic", microseconds)
            found.append(other)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--suites", type=parts, default=SUITES)
    parser.add_argument("--against", type=parts, default=PEERS)
    parser.add_argument(
        "--layouts", type=parts, default="", help="each suite in these, such as NT,TN,TT"
    )
    parser.add_argument("--dtype", type=parts, default="", help="types of A and B, likewise")
    parser.add_argument("--out-dtype", help="of C, by default that of A and B")
    parser.add_argument("--precision", help="of those of float32: ieee, fp32 or tf32")
    parser.add_argument("--prepared", help="operands that are prepared before: a, b or ab")
    parser.add_argument(
        "--candidates", action="store_true", help="time all tiles of dispatch for other types too"
    )
    parser.add_argument("--name", default="bench", help="of the results: <gpu>-<name>.json")
    parser.add_argument("--seconds", type=float, default=1.0, help="of samples a problem")
    parser.add_argument(
        "--sustained", type=float, default=0.0, help="seconds of each at the power limit, too"
    )
    parser.add_argument(
        "--shapes", type=parts, default="", help="instead of suites, such as 4096x4096x1024"
    )
    parser.add_argument("--resume", action="store_true", help="add what the file lacks")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = this_gpu()
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{device.spec.key}-{arguments.name}.json"
    done = read_existing(str(path)) if arguments.resume else []
    layouts = [read_layout(each) for each in arguments.layouts]

    def asked(problems: Sequence[GemmProblem]) -> list[GemmProblem]:
        return variants(
            *(problems, arguments.dtype, arguments.out_dtype, layouts),
            arguments.precision,
            prepared=arguments.prepared,
        )

    if arguments.shapes:
        sizes = map(read_shape, arguments.shapes)
        tasks = [
            Task(each) for each in asked([GemmProblem(*mnk, batch=batch) for *mnk, batch in sizes])
        ]
    else:
        tasks = suite_tasks(arguments.suites, asked)
    start = time.monotonic()
    with path.open("a" if arguments.resume else "w", encoding="utf-8") as file:
        done += compare(
            left(tasks, done),
            every_tile if arguments.candidates else chosen,
            device=device,
            against=arguments.against,
            seconds=arguments.seconds,
            progress=Writer(file, arguments.commit),
            every=arguments.candidates,
            functions=nn,
            sustained=arguments.sustained,
        )
    for table in comparison_tables(done) + sustained_tables(done):
        print(table.to_text(), flush=True)
    print(f"{len(tasks)} problems in {time.monotonic() - start:.0f} s")
    return 0 if all(record.correct for record in done) else 1


if __name__ == "__main__":
    sys.exit(main())
