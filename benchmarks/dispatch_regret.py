"""How much slower dispatch's choice is than the best candidate, on random shapes, on this GPU.

`python benchmarks/dispatch_regret.py` times every candidate that dispatch considers at 200 random
shapes of a fixed seed, each checked, the leaders and the heuristic's choice in turn at the end, and
writes `results/<gpu>-dispatch.json`: a line of environment, then one a shape. Started again, it
goes on where it stopped. `--compile BOARD --cache FOLDER` fills a cache ahead where there is no
GPU, and `--report FILE` prints what a file says. `dispatch_fit.py` fits the heuristic to such a
file.

What it bounds: the regret is against the best of dispatch's own candidates. A search over all
configurations may find one that is not in the list.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from gemmkit.bench.workload import Workload
from gemmkit.devices.choose import open_device
from gemmkit.devices.device import TimedDevice
from gemmkit.dispatch.candidates import candidates_for
from gemmkit.dispatch.choose import Dispatcher, Ranked
from gemmkit.errors import DeviceError
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_many
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.problem import GemmProblem, read_problem
from gemmkit.tune.freshness import source_digest
from gemmkit.tune.space import Candidate
from gemmkit.tune.trial import Bench, Compiled, Planned

RESULTS = Path(__file__).resolve().parent / "results"
SEED, SHAPES = 0, 200
SMALLEST, LARGEST, SKINNY = 16, 8192, 16
SKINNY_SHARE, ALIGNED_SHARE = 0.15, 0.5
# At 50 TFLOP/s 0.34 ms a launch; and 64 MiB a matrix, since each result is compared on the host.
MOST_MULTIPLY_ADDS, MOST_ELEMENTS = 2**33, 2**24
# Candidates that the closed form puts so far behind its best are not timed.
WITHIN = 2.0
# Those so close to the fastest at a first look meet again in turn.
CLOSE, MOST_LEADERS, TURN_SECONDS = 1.06, 6, 0.08


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: where, how and of what code times are; a thread's registers by instance."""

    gpu: str
    environment: dict[str, object]
    command: str
    sources: dict[str, str]
    registers: dict[str, int]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One shape: microseconds by label at a first look and in turn, and what was wrong with others.

    `ratio` is the time of the heuristic's choice over the best one's. `left_out` candidates were
    estimated far behind and not timed.
    """

    m: int
    n: int
    k: int
    best: str
    chosen: str
    ratio: float
    looks: dict[str, float]
    turns: dict[str, float]
    wrong: dict[str, str]
    left_out: int

    @property
    def problem(self) -> GemmProblem:
        return GemmProblem(self.m, self.n, self.k)

    @property
    def times(self) -> dict[str, float]:
        """The better figure of each label."""
        return self.looks | self.turns


def random_shapes(count: int = SHAPES, seed: int = SEED) -> list[GemmProblem]:
    """Shapes with sizes uniform in their logarithms, half of them aligned, some of them skinny."""
    rng = random.Random(seed)
    low, high = np.log2(SMALLEST), np.log2(LARGEST)
    found: list[GemmProblem] = []
    while len(found) < count:
        m, n, k = (round(2 ** rng.uniform(low, high)) for _ in range(3))
        if rng.random() < SKINNY_SHARE:
            short = rng.randint(1, SKINNY)
            m, n = (short, n) if rng.random() < 0.5 else (m, short)
        if rng.random() < ALIGNED_SHARE:
            n, k = (max(4, each // 4 * 4) for each in (n, k))
        if m * n * k <= MOST_MULTIPLY_ADDS and max(m * n, m * k, n * k) <= MOST_ELEMENTS:
            found.append(GemmProblem(m, n, k))
    return found


def entered(dispatcher: Dispatcher, problem: GemmProblem) -> tuple[list[Ranked], int]:
    """The candidates to time, the best estimate first, and how many are left out."""
    ranked = list(dispatcher.ranked(problem))
    limit = WITHIN * ranked[0].estimate.microseconds
    near = [each for each in ranked if each.estimate.microseconds <= limit]
    return near, len(ranked) - len(near)


def compiled(
    dispatcher: Dispatcher, problems: Sequence[GemmProblem], cache_dir: Path | None
) -> dict[str, Binary]:
    """A binary for each instance that the shapes need, by its entry."""
    wanted: dict[str, LaunchPlan] = {}
    for problem in problems:
        for each in entered(dispatcher, problem)[0]:
            plan = each.contender.kernel.plan(problem, each.contender.config, dispatcher.gpu)
            wanted.setdefault(plan.entry, plan)
    started = time.monotonic()
    binaries = compile_many(list(wanted.values()), dispatcher.gpu.arch, cache_dir=cache_dir)
    print(f"{len(wanted)} instances compiled in {time.monotonic() - started:.1f} s", flush=True)
    return dict(zip(wanted, binaries, strict=True))


def registers(gpu: GpuSpec, binaries: dict[str, Binary]) -> dict[str, int]:
    """Registers of a thread by instance; of two with other alignment the greater."""
    found: dict[str, int] = {}
    for candidate in candidates_for(gpu):
        for problem in (GemmProblem(16, 16, 16), GemmProblem(15, 15, 15)):
            plan = candidate.kernel.plan(problem, candidate.config, gpu)
            binary = binaries.get(plan.entry)
            if binary is not None and binary.resources is not None:
                taken = max(found.get(candidate.instance, 0), binary.resources.registers)
                found[candidate.instance] = taken
    return found


def measure(
    problem: GemmProblem, device: TimedDevice, dispatcher: Dispatcher, binaries: dict[str, Binary]
) -> Row:
    """Time the candidates of one shape; a wrong result or a failed launch takes one out."""
    bench = Bench(Workload(problem, device), device)
    near, left_out = entered(dispatcher, problem)
    ready: dict[str, Compiled] = {}
    looks: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for number, each in enumerate(near):
        kernel, config = each.contender.kernel, each.contender.config
        label = each.contender.candidate.label
        plan = kernel.plan(problem, config, device.spec)
        planned = Planned(number, Candidate(kernel, config, each.estimate.microseconds), plan)
        ready[label] = Compiled(planned, binaries[plan.entry])
        try:
            reason = bench.check(ready[label])
            if not reason:
                leader = min(looks.values(), default=None)
                looks[label] = bench.look(ready[label], leader).median
        except DeviceError as error:
            reason = str(error)
        if reason:
            wrong[label] = reason
    order = sorted(looks, key=looks.__getitem__)
    leaders = [each for each in order[:MOST_LEADERS] if looks[each] <= CLOSE * looks[order[0]]]
    # `looks` has the order of the estimates.
    chosen = next(iter(looks))
    leaders += [chosen] * (chosen not in leaders)
    seen = bench.in_turn([ready[each] for each in leaders], TURN_SECONDS)
    turns = {label: each.median for label, each in zip(leaders, seen, strict=True)}
    best = min(turns, key=turns.__getitem__)
    return Row(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        best=best,
        chosen=chosen,
        ratio=turns[chosen] / turns[best],
        looks=looks,
        turns=turns,
        wrong=wrong,
        left_out=left_out,
    )


def read(path: Path) -> tuple[Head, list[Row]]:
    """The lines of a file of results."""
    first, *rest = path.read_bytes().splitlines()
    head = msgspec.json.decode(first, type=Head)
    return head, [msgspec.json.decode(line, type=Row) for line in rest]


def begin(path: Path, head: Head, *, anew: bool) -> set[tuple[int, int, int]]:
    """The shapes that a file has already; it is begun where it is missing or of other code."""
    if path.exists() and not anew:
        old, rows = read(path)
        if old.sources == head.sources and old.gpu == head.gpu:
            return {(row.m, row.n, row.k) for row in rows}
        raise SystemExit(f"{path} is of other kernels or another GPU: give --anew to replace it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(head) + b"\n")
    return set()


def measure_all(
    problems: Sequence[GemmProblem],
    device: TimedDevice,
    path: Path,
    *,
    seconds: float,
    cache_dir: Path | None = None,
    anew: bool = False,
) -> list[Row]:
    """Measure what the file does not have yet, as long as there is time; all of its rows."""
    dispatcher = Dispatcher(device.spec, None)
    binaries = compiled(dispatcher, problems, cache_dir)
    kernels = {each.name: each.kernel for each in candidates_for(device.spec)}
    head = Head(
        gpu=device.spec.name,
        environment=device.environment(),
        command=" ".join(["python", *sys.argv]),
        sources={name: source_digest(kernel) for name, kernel in kernels.items()},
        registers=registers(device.spec, binaries),
    )
    done = begin(path, head, anew=anew)
    end = time.monotonic() + seconds
    with path.open("ab") as file:
        for number, problem in enumerate(problems):
            if (problem.m, problem.n, problem.k) in done:
                continue
            if time.monotonic() > end:
                print(f"stopped at shape {number}: {seconds:.0f} s are over", flush=True)
                break
            row = measure(problem, device, dispatcher, binaries)
            file.write(msgspec.json.encode(row) + b"\n")
            file.flush()
            wrong = f"  WRONG: {row.wrong}" if row.wrong else ""
            print(f"{number:3} {problem.shape:16} {row.ratio:6.3f}  {row.best}{wrong}", flush=True)
    return read(path)[1]


def summary(ratios: Sequence[float]) -> str:
    """Regret in words: how much longer than the best the choice takes."""
    p50, p80, p95 = np.percentile(ratios, (50, 80, 95))
    near = np.mean(np.asarray(ratios) <= 1.08)
    return (
        f"{len(ratios)} shapes: median {p50 - 1:.1%}, p80 {p80 - 1:.1%}, p95 {p95 - 1:.1%}, "
        f"worst {max(ratios) - 1:.1%}; {near:.0%} of them within 8%"
    )


def report(rows: Sequence[Row]) -> str:
    """The regret of all shapes and of some kinds, and how often each instance is the best."""
    kinds = {
        "all": lambda _: True,
        "aligned": lambda row: row.n % 4 == row.k % 4 == 0,
        "not aligned": lambda row: row.n % 4 or row.k % 4,
        "skinny": lambda row: min(row.m, row.n) <= SKINNY,
        "small": lambda row: SKINNY < min(row.m, row.n) < 512,
        "others": lambda row: min(row.m, row.n) >= 512,
    }
    lines = []
    for name, belongs in kinds.items():
        ratios = [row.ratio for row in rows if belongs(row)]
        lines += [f"{name:12} {summary(ratios)}"] if ratios else []
    wins = Counter(re.sub(r"split_k=\d+,", "", row.best) for row in rows)
    lines += [f"{count:5} × {instance}" for instance, count in wins.most_common()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, help="by default results/<gpu>-dispatch.json")
    parser.add_argument("--shapes-file", type=Path, help="a shape MxNxK on each line")
    parser.add_argument("--count", type=int, default=SHAPES, help="of random shapes")
    parser.add_argument("--seed", type=int, default=SEED, help="of random shapes")
    parser.add_argument("--seconds", type=float, default=280.0, help="after which no shape begins")
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--anew", action="store_true", help="replace what the file has")
    parser.add_argument("--compile", metavar="BOARD", help="only fill the cache for a board")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print what a file says")
    arguments = parser.parse_args()
    if arguments.report is not None:
        print(report(read(arguments.report)[1]))
        return 0
    problems = random_shapes(arguments.count, arguments.seed)
    if arguments.shapes_file is not None:
        problems = [read_problem(each) for each in arguments.shapes_file.read_text().split()]
    if arguments.compile is not None:
        compiled(Dispatcher(find_board(arguments.compile), None), problems, arguments.cache)
        return 0
    device = open_device("cuda")
    assert isinstance(device, TimedDevice)
    rows = measure_all(
        problems,
        device,
        arguments.results or RESULTS / f"{device.spec.key}-dispatch.json",
        seconds=arguments.seconds,
        cache_dir=arguments.cache,
        anew=arguments.anew,
    )
    print(report(rows))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
