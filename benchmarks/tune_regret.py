"""How far is the tuner's best after 60 s from the best of all? Measured on the GPU of this machine.

For each shape the tuner runs from an empty store and an empty compiler cache. Then a long search
looks for something better: in the order of the estimates, at random, and with the tuner's strategy
from another seed, all into one store, until everything is tried or a time limit is reached (how
much was tried is written down). At last both winners are timed in turn. One line for each shape
goes to `results/<gpu>-tuner.json`; shapes that are there already are left out, and an interrupted
search goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from this_gpu import this_gpu

from gemmkit import GemmProblem, Store, Tuned, tune
from gemmkit.bench.workload import Workload
from gemmkit.devices.device import TimedDevice
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.tune.progress import TuneProgress
from gemmkit.tune.space import Candidate
from gemmkit.tune.trial import Bench, Compiled, Planned

HERE = Path(__file__).resolve().parent
SHAPES = "512x512x512,1024x1024x1024,1536x1536x1024,1000x1000x1000,64x4096x4096"
# The long search: strategies, seeds, and their shares of its time.
PASSES = (("exhaustive", 0, 0.5), ("random", 1, 0.2), ("model", 2, 0.3))
IN_TURN_SECONDS = 2.0


class Log(TuneProgress):
    """A line every few seconds, and the best found after some times: the tuner's way there."""

    def __init__(self) -> None:
        self.begun = self.last = time.monotonic()
        self.path: list[tuple[float, int, float]] = []

    def tried(self, _: Entry, count: int, leader: Entry | None) -> None:
        now = time.monotonic()
        if leader is None or leader.time_us is None:
            return
        if not self.path or leader.time_us < self.path[-1][2]:
            self.path.append((round(now - self.begun, 2), count, leader.time_us))
        if now - self.last > 5:
            self.last = now
            print(
                f"  {now - self.begun:5.0f} s  {count} tried, best {leader.label} "
                f"{leader.time_us:.2f} µs",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--budget", type=float, default=60.0, help="the tuner's, seconds a shape")
    parser.add_argument("--limit", type=float, default=90.0, help="of the exhaustive search, s")
    parser.add_argument("--within", type=float, default=3.0, help="times the best estimate")
    parser.add_argument(
        "--stores", type=Path, default=Path("tune-stores"), help="kept between runs"
    )
    parser.add_argument("--out", type=Path, help="by default results/<gpu>-tuner.json")
    parser.add_argument("--commit", help="of this tree, where git does not tell")
    arguments = parser.parse_args()
    device = this_gpu()
    out = arguments.out or HERE / "results" / f"{device.spec.key}-tuner.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    arguments.stores.mkdir(parents=True, exist_ok=True)
    done = (
        {json.loads(line)["shape"] for line in out.read_text().splitlines()} if out.exists() else ()
    )
    for shape in arguments.shapes.split(","):
        if shape in done:
            print(f"{shape}: is in {out.name} already", flush=True)
            continue
        row = measure(shape, device, arguments)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{shape}: {row['ratio']:.3f} of the best known, {row['tuner']['tflops']:.1f} and "
            f"{row['exhaustive']['tflops']:.1f} TFLOP/s",
            flush=True,
        )
    return 0


def measure(shape: str, device: TimedDevice, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row of one shape."""
    problem = GemmProblem.from_shape(shape)
    cache = Path(tempfile.mkdtemp(prefix="gemmkit-cache-"))
    log = Log()
    try:
        (tuned,) = tune(
            problem,
            budget=arguments.budget,
            device=device,
            progress=log,
            store=arguments.stores / f"tuner-{shape}-{time.time_ns()}.sqlite3",
            cache_dir=cache,
        )
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    print(f"{shape}: {tuned.trials} tried in {tuned.seconds:.1f} s", flush=True)
    store = Store(arguments.stores / f"exhaustive-{shape}.sqlite3")
    passes: list[Tuned] = []
    for strategy, seed, share in PASSES:
        passes += tune(
            problem,
            budget=share * arguments.limit,
            strategy=strategy,
            seed=seed,
            device=device,
            store=store,
            within=arguments.within,
            progress=Log(),
        )
    best = store.best(gpu_key(device.spec), ProblemClass.of(problem))
    assert tuned.best is not None
    assert best is not None
    ours, theirs = in_turn(problem, device, [tuned.best, best])
    last = passes[-1]
    environment = {**tuned.environment, "command": " ".join(["python", *sys.argv])}
    if arguments.commit:
        environment["commit"] = arguments.commit
    return {
        "shape": shape,
        "ratio": theirs / ours,
        "tuner": {
            "label": tuned.best.label,
            "time_us": ours,
            "tflops": problem.flops / ours / 1e6,
            "seconds": tuned.seconds,
            "trials": tuned.tried,
            "untried": tuned.untried,
            "improvements": log.path,
        },
        "exhaustive": {
            "label": best.label,
            "time_us": theirs,
            "tflops": problem.flops / theirs / 1e6,
            "seconds": sum(each.seconds for each in passes),
            "tried": last.known + last.trials,
            "untried": last.untried,
            "left_out": last.left_out,
            "rule": f"configurations that the kernels' rules allow, that fit an SM, and whose "
            f"closed-form estimate is within {arguments.within:g} times the best one; in the "
            "order of the estimates, then at random, then by the tuner's strategy from another "
            f"seed, for at most {arguments.limit:g} s",
        },
        "environment": environment,
    }


def in_turn(problem: GemmProblem, device: TimedDevice, entries: list[Entry]) -> list[float]:
    """Median microseconds of some entries, timed in turn; one that is named twice counts as one."""
    bench = Bench(Workload(problem, device), device)
    labels = list(dict.fromkeys(each.label for each in entries))
    compiled = []
    for label in labels:
        entry = next(each for each in entries if each.label == label)
        kernel = find_kernel(entry.kernel)
        plan = kernel.plan(problem, entry.tile_config, device.spec)
        candidate = Candidate(kernel, entry.tile_config, entry.predicted_us or 0.0)
        compiled.append(
            Compiled(Planned(len(compiled), candidate, plan), compile_plan(plan, device.spec.arch))
        )
    times = [each.median for each in bench.in_turn(compiled, IN_TURN_SECONDS)]
    return [times[labels.index(each.label)] for each in entries]


if __name__ == "__main__":
    raise SystemExit(main())
